"""docs/how-to/python.md: its snippets, which are those of the library's promise, run as written."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "python.md"


def test_the_snippets_run_as_written_in_a_script_without_a_guard(tmp_path):
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    more = "print(list(run.rounds['round']), sorted(set(run.clients['client'])), model.classes)"
    (tmp_path / "page.py").write_text("\n".join([*snippets, more]))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records, *ends = done.stdout.splitlines()[0], *done.stdout.splitlines()[-2:]
    assert records.startswith("{'round': 1") and "'test_sensitivity_mean':" in records
    assert ends == ["6 completed", "[1, 2, 3, 4, 5, 6] ['north', 'south'] ('0', '1')"]

"""docs/how-to/python.md: its snippets run as they are written, one after the other."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "how-to" / "python.md"


def test_the_snippets_run_as_written(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "6 completed"
    assert done.stdout.count("'test_sensitivity_mean': ") == 5

"""The snippets of the front page and of docs/how-to/python.md run as they are written."""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2]


def printed(page, folder):
    """Run the page's snippets one after the other; return what they print."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_about_python(tmp_path):
    said = printed("how-to/python.md", tmp_path)
    assert said.splitlines()[-1] == "6 completed"
    assert said.count("'test_sensitivity_mean': ") == 5


def test_the_front_page(tmp_path):
    assert "[15 rows x " in printed("index.md", tmp_path)

"""What the documents name is there: a file that was renamed leaves no false trail."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "docs/tutorials", ROOT / "docker")
    for path in folder.glob("*.md")
    if path.name != "CHANGELOG.md"  # of what was
)
ROOMS = "benchmarks|clients|configs|docker|examples|fedhet|strategies|tests"
FILES = re.compile(rf"\b((?:{ROOMS})/[\w./-]+\.(?:py|yaml|md))\b")
PROGRAMS = re.compile(r"python -m (benchmarks\.\w+)")
BARE = re.compile(r"`(test_(?!my_)\w+\.py)`")  # `my_method` is the reader's own


def missing(text: str) -> list[str]:
    """Files and programs of the checkout that a text names and nobody finds."""
    named = [name for name in FILES.findall(text) if "NAME" not in name]
    lost = [name for name in named if not (ROOT / name).exists()]
    for program in PROGRAMS.findall(text):
        place = ROOT / program.replace(".", "/")
        if not (place.is_dir() or place.with_suffix(".py").exists()):
            lost.append(program)
    return lost + [name for name in BARE.findall(text) if not any(ROOT.glob(f"tests/**/{name}"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    assert missing(page.read_text(encoding="utf-8")) == []


def test_lost_ones_are_found():
    text = "`tests/no/test_x.py`, `test_y.py`, python -m benchmarks.none, configs/NAME.yaml"
    assert missing(text) == ["tests/no/test_x.py", "benchmarks.none", "test_y.py"]

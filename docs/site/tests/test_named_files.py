"""Files and programs that the documents name exist."""

import re
from pathlib import Path

from fedhet.config.schema import MAJORITY, METRICS

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    path
    for folder in (
        "",
        *(f"docs/{part}" for part in ("", "tutorials", "how-to", "explanation", "reference")),
        "docker",
    )
    for path in (ROOT / folder).glob("*.md")
    if path.name != "CHANGELOG.md"  # it names files that are gone
]
ROOMS = "benchmarks|clients|configs|docker|examples|fedhet|strategies|tests"
FILES = re.compile(rf"\b((?:{ROOMS})/[\w./-]+\.(?:py|yaml|md))\b")
PROGRAMS = re.compile(r"python -m (benchmarks\.\w+)")
TESTS = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
BARE = re.compile(r"`(test_(?!my_)\w+\.py)`")  # `my_method` is the reader's own


def test_every_file_that_a_page_names_is_there():
    lost = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = [name for name in FILES.findall(text) if "NAME" not in name]
        named += [f"{program.replace('.', '/')}.py" for program in PROGRAMS.findall(text)]
        lost += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
        for name, test in TESTS.findall(text):
            if not re.search(rf"^def {test}\(", (ROOT / name).read_text(encoding="utf-8"), re.M):
                lost.append(f"{page.name}: {name}::{test}")
        bare = BARE.findall(text)
        lost += [f"{page.name}: {name}" for name in bare if not any(ROOT.glob(f"tests/**/{name}"))]
    assert lost == []


def test_names_on_the_page_about_a_round_are_in_the_code():
    page = (ROOT / "docs/explanation/round.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+\.)?([A-Za-z_]\w*)`", page))
    code = [
        path.read_text("utf-8")
        for room in ROOMS.split("|")
        for path in ROOT.glob(f"{room}/**/*.py")
    ]
    assert len(named) > 30
    assert named - set(re.findall(r"\w+", "\n".join(code))) == set()


def test_the_page_about_metrics_lists_them_all():
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*METRICS, MAJORITY]

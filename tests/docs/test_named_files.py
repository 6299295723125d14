"""Files and programs that the documents name exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
BARE = re.compile(r"`(test_(?!my_)\w+\.py)`")  # `my_method` is the reader's own


def test_every_file_that_a_page_names_is_there():
    lost = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = [name for name in FILES.findall(text) if "NAME" not in name]
        named += [f"{program.replace('.', '/')}.py" for program in PROGRAMS.findall(text)]
        lost += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
        bare = BARE.findall(text)
        lost += [f"{page.name}: {name}" for name in bare if not any(ROOT.glob(f"tests/**/{name}"))]
    assert lost == []

"""Check the prose of the documentation: lengths of sentences, table cells and pages (STYLE 26, 28).

``python docs/site/prose.py`` prints each place above its limit and exits with 1 if there is one.
Parts made from records, code blocks and link targets are left out.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SENTENCE, CELL, PAGE = 25, 25, 150  # words, words, lines
LINES = {"README.md": 120, "SECURITY.md": 80, "docs/how-to/deploy.md": 150}


def pages() -> list[Path]:
    """Return README, SECURITY, CONTRIBUTING and all pages that are written by hand."""
    own = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
    return [*own, *sorted((ROOT / "docs").rglob("*.md"))]


def faults(path: Path) -> list[str]:
    """Return a line for every sentence, cell or page that is too long."""
    name = str(path.relative_to(ROOT))
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<!-- made by .*?<!-- end of ", "<!-- ", text, flags=re.DOTALL)
    found = []
    if (count := text.count("\n")) > (most := LINES.get(name, PAGE)):
        found.append(f"{name}: {count} lines, at most {most}")
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)  # code, too
    text = re.sub(r"\]\([^)]*\)|`[^`]*`", " x", text)  # a target or a piece of code is one word
    for row in re.findall(r"^\|.*\|$", text, flags=re.MULTILINE):
        for cell in row.strip("|").split("|"):
            if (words := len(cell.split())) > CELL:
                found.append(f"{name}: a cell of {words} words: {cell.strip()[:60]}")
    prose = re.sub(r"^\|.*$|^#.*$", ".", text, flags=re.MULTILINE)
    for sentence in re.split(r"[.:;?!](?:\*\*)?(?:\s|$)|\n\s*(?:[-*]|\d+\.)\s|\n\s*\n", prose):
        if (words := len(sentence.split())) > SENTENCE:
            found.append(f"{name}: a sentence of {words} words: {' '.join(sentence.split())[:60]}")
    return found


def main() -> int:
    """Print what is too long."""
    found = [fault for path in pages() for fault in faults(path)]
    print("\n".join(found) or f"{len(pages())} pages are within their limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

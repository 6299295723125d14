"""Documents that a repository keeps beside its records: verdict, pictures, one table, details.

``results.md`` and ``results/SETTING.md`` are written anew between two marks each; what stands
outside of them is somebody's own and stays. The README of the folder above gets a picture and
three lines where it has the marks for them.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from fedhet.errors import ReadError, UserError
from fedhet.files import write_text
from fedhet.reading.bounds import MEBI, decoded, read_bytes
from fedhet.reports.drawing import Picture
from fedhet.reports.markup import escaped, markdown_rows, to_markdown
from fedhet.reports.panels import differences, shortened
from fedhet.reports.sections import Report, Section
from fedhet.reports.verdict import brief

BEGIN, END = "<!-- made by fedhet report -->", "<!-- end of what fedhet report made -->"
_PICTURES = {"differences", "traffic", "at-a-glance"}  # of all settings: no setting's page
_MOST = 16 * MEBI  # bytes of a document


def around(path: Path, begin: str, end: str) -> tuple[str, str]:
    """What stands before and after the marked part of a Markdown file, with its own line ends.

    UserError without marks, and for what is no text.
    """
    try:
        content = decoded(read_bytes(path, _MOST), f"'{path}'")
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from error
    except ReadError as error:
        where = f" in {error.place}: save it as UTF-8" if error.place else ""
        raise UserError(f"'{path}' cannot be read: {error.what}{where}") from error
    before, first, rest = content.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise UserError(f"'{path}' has no part between '{begin}' and '{end}'")
    return before, after


def joined(before: str, part: str, after: str) -> str:
    """The file again, with a new part, which gets the line ends of the rest."""
    return before + (part.replace("\n", "\r\n") if "\r\n" in before + after else part) + after


def written(made: Report, docs: Path) -> dict[Path, str]:
    """The content of every document of ``docs``, by its path; nothing is written."""
    slugs = [comparison.setting.slug for comparison in made.comparisons]
    pages: dict[str, tuple[Section, str]] = {}
    for section in made.sections:
        if section.name in slugs:
            name = page_name(section.title)
            taken = _PICTURES | {other for _, other in pages.values()}
            pages[section.name] = section, name if name and name not in taken else section.name
    content = {
        docs / "results.md": _within(docs / "results.md", _results(made, pages), "# Results\n\n")
    }
    for picture in made.whole.figures[:2]:
        if picture.panels:
            content[docs / "results" / f"{picture.name}.svg"] = _marked(picture)
    for section, name in pages.values():
        path = docs / "results" / f"{name}.md"
        curve = next(picture for picture in section.figures if picture.name.startswith("rounds-"))
        content[path] = _within(
            path, _setting(section, curve, name), f"# {escaped(section.title)}\n\n"
        )
        if curve.panels:
            content[path.with_suffix(".svg")] = _marked(curve)
    readme = docs.absolute().parent / "README.md"
    if readme.exists() and BEGIN.encode() in readme.read_bytes():
        glance = _glance(made)
        content[readme] = _within(readme, _short(made, glance, docs.name), "")
        if glance.panels:
            content[docs / "results" / f"{glance.name}.svg"] = _marked(glance)
    return content


def place(content: Mapping[Path, str], docs: Path) -> None:
    """Write the documents, and remove those of settings that are no more and hold nothing else."""
    for path, value in content.items():
        if not path.exists() or path.read_bytes() != value.encode():
            write_text(path, value)
    for path in stale(content, docs):
        path.unlink()


def stale(content: Mapping[Path, str], docs: Path) -> list[Path]:
    """Documents of earlier reports that this one does not write; those with own text stay."""
    found = []
    for path in sorted((docs / "results").glob("*.*")):
        ours = path.suffix in {".svg", ".md"} and BEGIN.encode() in path.read_bytes()
        if path in content or not ours:
            continue
        if path.suffix == ".svg":
            found.append(path)
        else:
            before, after = around(path, BEGIN, END)
            if not after.strip() and before.strip().count("\n") == 0:
                found.append(path)
    return found


def page_name(title: str) -> str:
    """The file name of a setting's document, made from its title."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _within(path: Path, part: str, head: str) -> str:
    before, after = around(path, BEGIN, END) if path.exists() else (head, "\n")
    return joined(before, f"{BEGIN}\n\n{part.strip()}\n\n{END}", after)


def _marked(picture: Picture) -> str:
    """The picture as a file that a later report knows to be one of ours, and may remove."""
    return f"{picture.svg}{BEGIN}\n"


def _image(picture: Picture, path: str) -> list[str]:
    if not picture.panels:
        return []
    return [escaped(picture.caption), "", f"![{escaped(picture.title)}]({path})", ""]


def _results(made: Report, pages: Mapping[str, tuple[Section, str]]) -> str:
    lines = [f"- {escaped(sentence)}" for sentence in made.verdict]
    lines += ["", escaped(made.lead), ""]
    for picture in made.whole.figures[:2]:
        lines += _image(picture, f"results/{picture.name}.svg")
    table = made.whole.tables[0]
    lines += [
        *markdown_rows(table, lambda slug: f"results/{pages[slug][1]}.md"),
        "",
        escaped(table.note),
    ]
    return "\n".join(lines)


def _setting(section: Section, curve: Picture, name: str) -> str:
    lines = [escaped(section.note), "", *(f"    {one}" for one in section.commands), ""]
    lines += ["All settings: [results.md](../results.md).", ""]
    lines += _image(curve, f"{name}.svg")
    return "\n".join([*lines, *(to_markdown(table, 2) for table in section.tables)])


def _glance(made: Report) -> Picture:
    """The picture of differences; of the settings that say most where there are others."""
    shown = shortened(made.comparisons)
    whole = made.whole.figures[0]
    return whole if len(shown) == len(made.comparisons) else differences(shown, "at-a-glance")


def _short(made: Report, glance: Picture, docs: str) -> str:
    said, note = brief(made.comparisons)
    lines = [f"- {escaped(line)}" for line in said or made.verdict[:1]]
    caption, *picture = _image(glance, f"{docs}/results/{glance.name}.svg") or [""]
    return "\n".join([*picture, *lines, "", escaped(note), "", caption])

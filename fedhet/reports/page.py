"""``report.html``: everything on one page; drawings that would make it too big are linked."""

import json
from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment

from fedhet.files import finite
from fedhet.reports.drawing import Picture
from fedhet.reports.sections import Report, Section
from fedhet.reports.svg import STYLE

PAGE_LIMIT = 2_000_000  # bytes of report.html


def to_page(made: Report) -> tuple[str, frozenset[str]]:
    """The page, and the names of the figures that it links to instead of holding them."""
    drawn = {picture.name: picture.inline() for picture in made.figures() if picture.panels}
    page = _render(made, drawn)
    linked: set[str] = set()
    size = len(page.encode())
    opening = {picture.name for picture in made.whole.figures}
    for name in sorted(drawn, key=lambda n: (n in opening, -_size(drawn[n]), n)):
        if size <= PAGE_LIMIT:
            break
        linked.add(name)
        size -= _size(drawn[name]) - 200
    if linked:
        page = _render(made, {name: own for name, own in drawn.items() if name not in linked})
    return page, frozenset(linked)


def _size(panels: list[str]) -> int:
    return sum(len(panel.encode()) for panel in panels)


def _render(made: Report, drawn: Mapping[str, list[str]]) -> str:
    source = files("fedhet.reports").joinpath("templates/report.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    data = json.dumps(finite(made.data), separators=(",", ":"), allow_nan=False)
    missing = [f"{p.title}: {p.absent}" for p in made.figures() if p.absent]
    return environment.from_string(source).render(
        title=made.title, verdict=made.verdict, lead=made.lead, style=STYLE,
        whole=_shown(made.whole, drawn),
        sections=[_shown(section, drawn) for section in made.sections if section.full()],
        missing=missing, data=data.replace("</", "<\\/"),
    )  # fmt: skip


def _shown(section: Section, drawn: Mapping[str, list[str]]) -> dict[str, object]:
    return {
        "name": section.name, "title": section.title, "note": section.note,
        "tables": section.tables, "facts": section.facts, "commands": section.commands,
        "figures": [_figure(picture, drawn) for picture in section.figures if picture.panels],
    }  # fmt: skip


def _figure(picture: Picture, drawn: Mapping[str, list[str]]) -> dict[str, object]:
    return {
        "name": picture.name, "title": picture.title, "caption": picture.caption,
        "panels": drawn.get(picture.name, []), "file": f"figures/{picture.name}.svg",
    }  # fmt: skip

"""A figure of a report: its drawings, or the reason why there is none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedhet.reports.names import file_name
from fedhet.reports.svg import Drawing, side_by_side

ACCURACY = "test accuracy, %"
WIDTH = 460.0  # pixels of a figure that stands alone
Colours = Mapping[str, int]  # arm's name to the number of its look, the same in all figures


@dataclass(frozen=True)
class Picture:
    """A figure of one or more panels; ``name`` becomes a file name. A notebook shows it."""

    name: str
    title: str
    caption: str
    panels: Sequence[Drawing] = field(default=(), repr=False)
    absent: str = ""
    columns: int = 1  # of panels in a file

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", file_name(self.name))

    @property
    def svg(self) -> str:
        """A file of its own; empty where the figure is absent."""
        return side_by_side(self.panels, self.columns).file(self.title) if self.panels else ""

    def _repr_svg_(self) -> str | None:
        return self.svg or None

    def inline(self) -> list[str]:
        """The panels as parts of a page."""
        many = len(self.panels) > 1
        return [
            panel.svg(f"{self.title}, {panel.title}" if many else self.title)
            for panel in self.panels
        ]


def absent(name: str, title: str, reason: str) -> Picture:
    """A figure that could not be drawn."""
    return Picture(name, title, "", absent=reason)


def drawn(
    name: str, title: str, caption: str, height: float, draw: Callable[[Drawing], None]
) -> Picture:
    """A figure of one panel that ``draw`` fills."""
    panel = Drawing(WIDTH, height)
    draw(panel)
    return Picture(name, title, caption, [panel])


def thin(count: int, most: int = 60) -> list[int]:
    """At most ``most`` evenly spread positions of ``count``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})

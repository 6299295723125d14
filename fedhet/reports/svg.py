"""Small pictures as SVG text: scales with proper ticks, marks, labels that lie on no other.

Written by hand because matplotlib needs half a second of processor time a figure, and 17 settings
have a hundred: these take a millisecond each and a tenth of the bytes. Colours are classes of
:data:`STYLE`, which follows the reader's system into the dark; coordinates have one decimal, so
that the same numbers give the same bytes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

# Hues that readers of every colour vision tell apart by lightness too, at a contrast of at least
# 3 to the page: (light, dark). The first is the baseline's grey.
HUES = (
    ("#6b7480", "#98a2ad"), ("#0066b3", "#62b5f5"), ("#c44e00", "#ff9a57"), ("#00805c", "#3fcf9f"),
    ("#b8388f", "#ee93cd"), ("#8a6100", "#dcb54f"), ("#5b4bc4", "#ab9ff5"),
)  # fmt: skip
_LIGHT = {
    "ink": "#1b1f24",
    "soft": "#59626e",
    "line": "#868e99",
    "grid": "#e3e6eb",
    "page": "#ffffff",
}
_DARK = {
    "ink": "#e4e8ec",
    "soft": "#a2abb6",
    "line": "#77808b",
    "grid": "#2d343c",
    "page": "#14181d",
}
MARKS = "osD^vPX"
_LARGER = 1.5  # times its size at which a page shows a drawing, at most
_EDGE = 10.0  # pixels around a file of its own
_WIDE = 0.62  # of the size: a letter of a sans-serif in the mean


def _rules(colours: dict[str, str], hues: Iterable[str]) -> str:
    made = [
        f"text,.ink{{fill:{colours['ink']}}}.soft{{fill:{colours['soft']}}}",
        f".axis{{stroke:{colours['line']}}}.grid{{stroke:{colours['grid']}}}",
        f".page{{fill:{colours['page']}}}.halo{{stroke:{colours['page']}}}",
    ]
    made += [f".f{i}{{fill:{hue}}}.s{i}{{stroke:{hue}}}" for i, hue in enumerate(hues)]
    return "".join(made)


STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".small{font-size:10px}.head{font-weight:600;font-size:12px}"
    ".grid,.axis{stroke-width:1}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}"
    ".whisker{stroke-width:2;stroke-linecap:round}.faint{opacity:.4}.open{fill-opacity:0}"
    ".dots{fill:none;stroke-linecap:round}.halo{stroke-width:3px;paint-order:stroke;stroke-linejoin:round}"
    + _rules(_LIGHT, (light for light, _ in HUES))
    + "@media(prefers-color-scheme:dark){"
    + _rules(_DARK, (dark for _, dark in HUES))
    + "}"
)


def n(value: float) -> str:
    """A coordinate with one decimal at most."""
    shown = f"{value:.1f}".removesuffix(".0")
    return "0" if shown == "-0" else shown


def wide(text: str, size: float = 11) -> float:
    """About how wide a text is, in pixels."""
    return _WIDE * size * len(text)


def cut(text: str, most: int) -> str:
    """The text, shortened where it is longer than ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Scale:
    """Numbers to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a number."""
        low, high, value = (self._of(x) for x in (self.low, self.high, value))
        share = (value - low) / ((high - low) or 1.0)
        return self.start + share * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within; powers of ten on a logarithmic scale."""
        if self.log:
            first, last = (
                math.ceil(self._of(self.low) - 1e-9),
                math.floor(self._of(self.high) + 1e-9),
            )
            every = max(1, math.ceil((last - first + 1) / most))
            return [10.0**exponent for exponent in range(first, last + 1, every)]
        span = (self.high - self.low) or 1.0
        rough = span / max(1, most - 1)
        base = 10.0 ** math.floor(math.log10(rough))
        step: float = next(base * m for m in (1, 2, 2.5, 5, 10) if base * m >= rough - 1e-12)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [0.0 if k == 0 else float(f"{k * step:.10g}") for k in range(first, last + 1)]


def padded(values: Iterable[float], share: float = 0.05) -> tuple[float, float]:
    """The range of ``values`` with a margin; never empty."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    margin = share * (high - low) or max(1e-9, 0.05 * abs(high)) or 1.0
    return low - margin, high + margin


_SUPER = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def power(value: float) -> str:
    """A power of ten as people write it: 1, 10, 100, 10³, 10⁶."""
    exponent = round(math.log10(value))
    return f"{10**exponent:g}" if 0 <= exponent <= 2 else f"10{str(exponent).translate(_SUPER)}"


def plain(value: float, *, sign: bool = False) -> str:
    """A tick's number; a real minus."""
    shown = f"{value:+,g}" if sign and value else f"{value:,g}"
    return shown.replace("-", "−")


@dataclass
class Drawing:
    """Parts of a picture of a size in pixels."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)
    title: str = ""
    left: float = 0.0  # pixels left of x = 0 that a long number of an axis needs

    def add(self, part: str) -> None:
        """Append SVG text."""
        self.parts.append(part)

    def text(
        self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "", full: str = ""
    ) -> None:
        """A text with its baseline at ``y``; ``anchor`` middle or end; ``full`` shows on hover."""
        name = f' class="{kind}"' if kind else ""
        place = f' text-anchor="{anchor}"' if anchor else ""
        title = f"<title>{escape(full)}</title>" if full and full != text else ""
        self.add(f'<text x="{n(x)}" y="{n(y)}"{name}{place}>{title}{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, more: str = "") -> None:
        """A straight line."""
        self.add(f'<path class="{kind}"{more} d="M{n(x1)} {n(y1)}L{n(x2)} {n(y2)}"/>')

    def path(self, points: Sequence[tuple[float, float]], kind: str, more: str = "") -> None:
        """A line through points."""
        if points:
            way = "L".join(f"{n(x)} {n(y)}" for x, y in points)
            self.add(f'<path class="{kind}"{more} d="M{way}"/>')

    def dots(self, points: Iterable[tuple[float, float]], kind: str, size: float) -> None:
        """Round dots of ``size`` pixels, all in one element."""
        way = "".join(f"M{n(x)} {n(y)}h0" for x, y in points)
        if way:
            self.add(f'<path class="dots {kind}" stroke-width="{n(size)}" d="{way}"/>')

    def mark(self, x: float, y: float, shape: str, kind: str, size: float = 4) -> None:
        """A mark: o s D ^ v P X."""
        self.add(f'<path class="{kind}" d="{_shape(x, y, shape, size)}"/>')

    def x_axis(
        self, scale: Scale, top: float, bottom: float, *, label: str = "", sign: bool = False
    ) -> None:
        """Grid lines with numbers below, and a label."""
        for tick in scale.ticks():
            x = scale(tick)
            self.line(x, top, x, bottom, "grid")
            shown = power(tick) if scale.log else plain(tick, sign=sign)
            self.text(x, bottom + 12, shown, "soft small", anchor="middle")
        if label:
            middle = (scale.start + scale.end) / 2
            self.text(middle, bottom + 25, label, "soft small", anchor="middle")

    def y_axis(self, scale: Scale, left: float, right: float, *, label: str = "") -> None:
        """Grid lines with numbers to the left; the label stands above the axis."""
        for tick in scale.ticks():
            y = scale(tick)
            self.line(left, y, right, y, "grid")
            self.text(left - 4, y + 3.5, plain(tick), "soft small", anchor="end")
            self.left = max(self.left, math.ceil(wide(plain(tick), 10) + 4 - left))
        if label:
            self.text(2, scale.end - 8, label, "soft small")

    def inner(self) -> str:
        """The parts."""
        return "".join(self.parts)

    def svg(self, title: str) -> str:
        """As part of a page, where :data:`STYLE` stands once."""
        whole = self.left + self.width
        size = f'viewBox="{n(-self.left)} 0 {n(whole)} {n(self.height)}"'
        most = f'style="max-width:{_LARGER * whole:.0f}px"'
        return f'<svg role="img" aria-label="{escape(title)}" {size} {most}>{self.inner()}</svg>'

    def file(self, title: str) -> str:
        """A file of its own: its style and ground are inside."""
        wide, tall = n(self.left + self.width + 2 * _EDGE), n(self.height + 2 * _EDGE)
        start, edge = n(-self.left - _EDGE), n(-_EDGE)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{start} {edge} {wide} {tall}" '
            f'width="{wide}" height="{tall}"><title>{escape(title)}</title>'
            f'<style>{STYLE}</style><path class="page" d="M{start} {edge}h{wide}v{tall}H{start}z"/>'
            f"{self.inner()}</svg>\n"
        )


def side_by_side(panels: Sequence[Drawing], columns: int, gap: float = 16) -> Drawing:
    """Panels as one picture, row by row."""
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    left = max(panel.left for panel in panels)
    whole = Drawing(max(sum(left + p.width + gap for p in row) - gap for row in rows), 0)
    for row in rows:
        x = 0.0
        for panel in row:
            place = f"{n(x + left)} {n(whole.height)}"
            whole.add(f'<g transform="translate({place})">{panel.inner()}</g>')
            x += left + panel.width + gap
        whole.height += max(panel.height for panel in row) + gap
    whole.height -= gap
    return whole


def _shape(x: float, y: float, shape: str, r: float) -> str:
    if shape == "o":
        half = f"a{n(r)} {n(r)} 0 1 0"
        return f"M{n(x - r)} {n(y)}{half} {n(2 * r)} 0{half} {n(-2 * r)} 0z"
    s, t, w = 0.88 * r, 1.15 * r, 0.38 * r
    plus = [(-w, -t), (w, -t), (w, -w), (t, -w), (t, w), (w, w), (w, t), (-w, t), (-w, w)]
    turned = math.sqrt(0.5)
    corners = {
        "s": [(-s, -s), (s, -s), (s, s), (-s, s)],
        "D": [(0, -1.3 * r), (1.3 * r, 0), (0, 1.3 * r), (-1.3 * r, 0)],
        "^": [(0, -t), (t, t * 0.85), (-t, t * 0.85)],
        "v": [(0, t), (t, -t * 0.85), (-t, -t * 0.85)],
        "P": [*plus, (-t, w), (-t, -w), (-w, -w)],
        "X": [
            (turned * (a - b), turned * (a + b))
            for a, b in [*plus, (-t, w), (-t, -w), (-w, -w)]
        ],
    }[shape]  # fmt: skip
    return "M" + "L".join(f"{n(x + dx)} {n(y + dy)}" for dx, dy in corners) + "z"


def hue(index: int) -> int:
    """Colour of the ``index``-th series: the number of its classes ``f`` and ``s``."""
    return 0 if index == 0 else 1 + (index - 1) % (len(HUES) - 1)


def mark(index: int) -> str:
    """Mark of the ``index``-th series; with the colour it is no other's among the first 40."""
    return MARKS[index % len(MARKS)]


def apart(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """The places moved as little as need be to be ``least`` apart within ``low`` to ``high``."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    least = min(least, (high - low) / max(1, len(places) - 1))
    groups: list[tuple[list[int], float]] = []  # members, and the middle they want
    for i in order:
        members, middle = [i], places[i]
        while groups:
            earlier, theirs = groups[-1]
            if (
                theirs + (len(earlier) - 1) / 2 * least + least
                <= middle - (len(members) - 1) / 2 * least + 1e-9
            ):
                break
            groups.pop()
            total = len(earlier) + len(members)
            members = [*earlier, *members]
            middle = sum(places[k] for k in members) / total
        half = (len(members) - 1) / 2 * least
        middle = min(max(middle, low + half), high - half)
        groups.append((members, middle))
    found = list(places)
    for members, middle in groups:
        for slot, i in enumerate(members):
            found[i] = middle + (slot - (len(members) - 1) / 2) * least
    return found

"""Labels beside points, so that none lies on another or on a point."""

from collections.abc import Sequence

Box = tuple[float, float, float, float]  # left, top, right, bottom
Label = tuple[float, float, str, bool]  # x, baseline y, anchor, whether a line leads to it
_TALL, _AWAY = 9.0, 6.0


def beside_points(
    points: Sequence[tuple[float, float]], widths: Sequence[float], frame: Box
) -> list[Label]:
    """A place for the label of every point within ``frame``, pixels.

    Right, left, above and below are tried, then places further up and down with a leading line;
    what fits nowhere goes where it covers least.
    """
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    made: dict[int, Label] = {}
    # the crowded ones first: they have fewest places to go
    order = sorted(range(len(points)), key=lambda i: (-_crowd(points, i), points[i][1], i))
    for i in order:
        x, y = points[i]
        best: tuple[float, int, Label, Box] | None = None
        for rank, (label, box) in enumerate(_places(x, y, widths[i])):
            own = (x - 4, y - 4, x + 4, y + 4)
            covered = sum(_overlap(box, other) for other in taken if other != own)
            covered += 3 * _outside(box, frame)
            if best is None or covered < best[0] - 1e-9:
                best = covered, rank, label, box
            if covered == 0:
                break
        assert best is not None
        made[i] = best[2]
        taken.append(best[3])
    return [made[i] for i in range(len(points))]


def _places(x: float, y: float, width: float) -> list[tuple[Label, Box]]:
    made: list[tuple[Label, Box]] = []

    def place(lx: float, base: float, anchor: str, *, far: bool) -> None:
        left = {"": lx, "end": lx - width, "middle": lx - width / 2}[anchor]
        made.append(((lx, base, anchor, far), (left, base - _TALL, left + width, base + 2)))

    for dy in (3.5, -1.0, 8.0):
        place(x + _AWAY, y + dy, "", far=False)
        place(x - _AWAY, y + dy, "end", far=False)
    place(x, y - 6, "middle", far=False)
    place(x, y + 14, "middle", far=False)
    for step in range(1, 9):
        for sign in (-1, 1):
            for dx, anchor in ((12, ""), (-12, "end")):
                place(x + dx, y + 3.5 + sign * step * 11, anchor, far=True)
    return made


def _crowd(points: Sequence[tuple[float, float]], i: int) -> int:
    x, y = points[i]
    return sum(abs(a - x) < 70 and abs(b - y) < 14 for a, b in points)


def _overlap(one: Box, other: Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return across * down if across > 0 and down > 0 else 0.0


def _outside(box: Box, frame: Box) -> float:
    over = (frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3])
    return sum(max(0.0, value) * 10 for value in over)

"""The drawing of figures: ticks, labels, colours, and nothing that depends on the day."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from fedhet.reports.label_placement import beside_points
from fedhet.reports.panels import frontier
from fedhet.reports.svg import (
    HUES,
    Drawing,
    Scale,
    apart,
    hue,
    mark,
    padded,
    plain,
    power,
    side_by_side,
)


def test_ticks_are_round_and_within():
    assert Scale(-3.1, 11.9, 0, 100).ticks() == [0, 5, 10]
    assert Scale(42.2, 42.9, 0, 100).ticks() == pytest.approx([42.2, 42.4, 42.6, 42.8])
    assert Scale(0.5, 0.5, 0, 100)(0.5) == 0


def test_powers_of_ten_are_written_as_such():
    scale = Scale(1, 1e7, 0, 70, log=True)
    assert [power(tick) for tick in scale.ticks()] == ["1", "100", "10⁴", "10⁶"]
    assert [scale(tick) for tick in scale.ticks()] == [0, 20, 40, 60]
    assert power(0.001) == "10⁻³" and plain(-1500.0) == "−1,500" and plain(2.5, sign=True) == "+2.5"


def test_a_range_is_that_of_the_data_and_never_empty():
    assert padded([40.0, 50.0], 0.1) == (39.0, 51.0)
    low, high = padded([5.0, 5.0])
    assert low < 5.0 < high


def test_labels_at_line_ends_are_moved_apart_as_little_as_need_be():
    assert apart([10.0, 50.0], 10, 0, 100) == [10.0, 50.0]
    assert apart([50.0, 52.0, 90.0], 10, 0, 100) == [46.0, 56.0, 90.0]
    assert apart([99.0, 98.0], 10, 0, 100) == [100.0, 90.0]
    many = sorted(apart([50.0] * 30, 10, 0, 100))
    assert many[0] >= 0 and many[-1] <= 100
    assert all(b - a == pytest.approx(100 / 29) for a, b in zip(many, many[1:], strict=False))


def test_labels_beside_points_lie_on_no_point_and_no_other_label():
    points = [(100.0 + 3 * i, 100.0 + (i % 3)) for i in range(6)]
    labels = beside_points(points, [50.0] * 6, (0, 0, 320, 250))
    boxes = [(*p, *p) for p in points]
    boxes = [(x - 2, y - 2, x + 2, y + 2) for x, y in points]
    for x, y, anchor, _ in labels:
        left = {"": x, "end": x - 50, "middle": x - 25}[anchor]
        boxes.append((left, y - 8, left + 50, y + 1))
    for one, other in combinations(boxes[6:], 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_a_long_number_of_an_axis_has_room_in_a_file_a_page_and_beside_others():
    short, long = Drawing(100, 50), Drawing(100, 50)
    short.y_axis(Scale(0, 9, 50, 0), 30, 100)
    long.y_axis(Scale(38.2, 38.4, 50, 0), 30, 100)  # 38.25 among them
    assert short.left == 0 and short.svg("x").count('viewBox="0 0 100 50"') == 1
    assert long.left >= 5
    for text in (long.svg("x"), long.file("x")):
        view = re.search(r'viewBox="(-?[\d.]+) \S+ ([\d.]+)', text)
        assert view is not None
        assert float(view[1]) <= -long.left and float(view[1]) + float(view[2]) >= 100
    both = side_by_side([short, long], 2)
    assert both.width == 2 * (100 + long.left) + 16


def test_the_frontier_is_what_nobody_beats_in_both():
    points = [(0.0, 50.0), (10.0, 49.0), (20.0, 60.0), (20.0, 55.0), (99.0, 60.0), (100.0, 61.0)]
    assert frontier(points) == [0, 2, 5]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_series_have_contrast_and_a_look_of_their_own():
    for light, dark in HUES:
        assert 1.05 / (luminance(light) + 0.05) >= 3
        assert (luminance(dark) + 0.05) / (luminance("#14181d") + 0.05) >= 3
    looks = [(hue(i), mark(i)) for i in range(40)]
    assert len(set(looks)) == 40
    # a reader without colours has the marks: no two of seven neighbours share one
    assert all(len({mark(i + k) for k in range(7)}) == 7 for i in range(30))


def test_names_are_escaped_and_a_file_is_whole():
    panel = Drawing(100, 50)
    panel.text(1, 2, "<b>&amp; $x$", full='a "full" name')
    panel.line(0.04, -0.04, 1.26, 100.0, "grid")
    root = ElementTree.fromstring(panel.file("a < b"))
    texts = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert texts == ["a < b", 'a "full" name']
    assert "M0 0L1.3 100" in panel.inner()
    assert "prefers-color-scheme:dark" in panel.file("x")
    assert not re.search(r"-0[ L\"]", panel.inner())

"""The bubble plot: a bubble where there are images, none elsewhere, and no global state."""

import numpy as np
import pytest
from PIL import Image

from fedhet.data.describe import bubble_plot
from fedhet.errors import UserError


def _ink(path) -> int:
    """Pixels of the bubbles' colour."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return int((pixels[..., 2] - pixels[..., 0] > 60).sum())


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (40, 10), (5, 30)])
def test_area_of_the_bubbles_follows_the_counts(tmp_path, clients, classes):
    counts = np.full((clients, classes), 40)
    names = [f"class {s}" for s in range(classes)]
    bubble_plot(counts, names, tmp_path / "full.png")
    counts[:, 0] = 20
    counts[:, 1:] = 0
    counts[0, 0] = 40
    bubble_plot(counts, names, tmp_path / "part.png")
    bubble_plot(np.zeros_like(counts), names, tmp_path / "none.png")
    legend = _ink(tmp_path / "none.png")
    full, part = (_ink(tmp_path / f"{name}.png") - legend for name in ("full", "part"))
    expected = counts.sum() / (40 * clients * classes)
    assert part / full == pytest.approx(expected, rel=0.35)


def test_an_unwritable_path_is_one_line(tmp_path):
    with pytest.raises(UserError, match="plot .*: cannot write"):
        bubble_plot(np.ones((2, 2), dtype=np.int64), ["a", "b"], tmp_path / "none" / "x.png")

"""What one client adds to a sum: a flat vector of what it shares, and its metrics behind it.

Every client of a run has the same entries; what it lacks counts zero times. Each metric is brought
within ``sum-range``: accuracies as shares of 1, a method's own by its declared range, losses cut
off at it. Counts of images are summed in two parts, which give the exact sum. FLOPs are not summed:
the server knows what an image costs each architecture, so that sums of FLOPs and of images would be
two equations in its clients' numbers of images. ``train_flops`` is null.
"""

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE_ACCURACY, RunConfig
from fedhet.protocol.payload import Array

UNIT = 4096  # images that a weight of 1 stands for, unless `max-images` says it
Vector = NDArray[np.float64]  # (L,), the same L for every client of a run
Ranges = Mapping[str, tuple[float, float]]  # of a method's metrics, by name


@dataclass(frozen=True)
class Summand:
    """What one client adds: values (L1,) float64 and, behind them, counts (L2,) float64.

    Noise covers the values; counts are numbers of owners, or weights by images.
    """

    values: Vector
    counts: Vector

    @property
    def flat(self) -> Vector:
        """Both, (L,)."""
        return np.concatenate([self.values, self.counts])


@dataclass(frozen=True)
class Own:
    """What a client knows of itself and of the run when it makes its contribution.

    ``seen`` are the ids of its classes, ascending, and ``images`` its training images of each.
    ``shared`` are the classes that have owners enough (``sum-owners``) for their rows to be summed;
    None where nobody has counted them, or the method sends no rows of classes.
    """

    config: RunConfig
    classes: int
    seen: tuple[int, ...]
    images: tuple[int, ...]
    shared: Collection[int] | None = None

    @property
    def weight(self) -> float:
        """w_k: training images in :func:`sum_unit`, at most 1; 1 with ``weighting: uniform``."""
        images = np.array(sum(self.images))
        return 1.0 if self.config.weighting == "uniform" else float(self.weigh(images))

    def weigh(self, images: Array) -> Array:
        """Return numbers of own images (...) in units, as many times less as it has too many."""
        own, most = sum(self.images), sum_unit(self.config)
        if own > most:
            about = f"{own} training examples count as {most}: a larger max-images counts more"
            print(f"fedhet: {about}", file=sys.stderr)
        return np.asarray(images / max(most, own))

    def shares(self, classes: Array) -> Array:
        """Return of which of these class ids (M,) rows may be summed: (M,) bool."""
        if self.shared is None:
            return np.ones(len(classes), dtype=np.bool_)
        return np.isin(classes, sorted(self.shared))


def sum_unit(config: RunConfig) -> int:
    """Return the unit of weights, in images: ``max-images``, or :data:`UNIT` if it is not set."""
    most = config.max_images
    return UNIT if most == RunConfig.model_fields["max_images"].default else most


def ownership(own: Own) -> Vector:
    """Return C ones and zeros: the classes that this client has."""
    return np.isin(np.arange(own.classes), own.seen).astype(np.float64)


def too_few(owners: Vector, min_owners: int) -> int:
    """Return how many classes have owners, and fewer than ``min_owners``, by their sum (C,)."""
    rounded = np.rint(owners)
    return int(((rounded > 0) & (rounded < min_owners)).sum())


# --- metrics ----------------------------------------------------------------------------------

ACCURACIES = ("test_accuracy", "val_accuracy", "test_accuracy_before", "val_accuracy_before")
SPENT = "epsilon_spent"  # what its uploads have cost a client: told beside the sum, no secret
IMAGES = "train_images"  # a number too large for one entry: summed in two parts
BITS = 20  # of its lower part, and of a cell of a confusion matrix
HIGH = 2.0**-10  # what one of the higher part counts


def coarse(
    metrics: Mapping[str, float], examples: Mapping[str, int], fewest: int
) -> dict[str, float]:
    """Return a client's metrics as a site with limits adds them to a sum.

    Scores of a split are multiples of 1 % (or 0.01); a split of fewer than ``fewest`` ``examples``
    (by its name) has none. Exact ones are fractions with small denominators: from their sum the
    sizes of all test splits and the scores of all sites could be computed.
    """
    rounded = {}
    for name, value in metrics.items():
        part, step = name.partition("_")[0], 1.0
        if part not in examples:
            rounded[name] = value
        elif examples[part] >= fewest and math.isfinite(value):
            if name in BESIDE_ACCURACY and not BESIDE_ACCURACY[name].percent:
                step = 0.01
            rounded[name] = round(value / step) * step
    return rounded


class SumMetrics:
    """The entries of a run; ``own`` are the ranges of its method's metrics, by name.

    The metrics beside accuracy come last: the hash chain covers the ``chained`` entries before.
    """

    def __init__(self, largest: float, own: Ranges) -> None:
        self.largest = largest
        self.scales = dict.fromkeys(ACCURACIES, 100.0) | {"train_loss": 1.0}
        self.scales |= {n: max(1.0, *(abs(b) / largest for b in own[n])) for n in sorted(own)}
        self.scales[IMAGES] = 0.0  # two parts of its own
        self.chained = 2 * len(self.scales)
        for name, metric in sorted(BESIDE_ACCURACY.items()):
            self.scales[name] = 100.0 if metric.percent else 1.0

    def __len__(self) -> int:
        return 2 * len(self.scales)

    def vector(self, metrics: Mapping[str, float]) -> Vector:
        """Return one client's numbers, each with a one, or two zeros for one that it lacks."""
        entries: list[float] = []
        for name, scale in self.scales.items():
            value = metrics.get(name, math.nan)
            if name == IMAGES:
                most = int(self.largest / HIGH) << BITS
                high, low = divmod(min(round(metrics.get(name, 0.0)), most), 2**BITS)
                entries += [high * HIGH, low * (self.largest / 2**BITS)]
            elif math.isfinite(value):
                entries += [min(max(value / scale, -self.largest), self.largest), 1.0]
            else:
                entries += [0.0, 0.0]
        return np.array(entries)

    def means(
        self, total: Vector, clients: int, min_clients: int = 1
    ) -> dict[str, tuple[float, int]]:
        """Return the means of a sum of so many clients' :meth:`vector`, and how many have each.

        Nothing of what fewer than ``min_clients`` of them have.
        """
        means: dict[str, tuple[float, int]] = {}
        pairs = total.reshape(-1, 2).tolist()
        for (name, scale), (value, there) in zip(self.scales.items(), pairs, strict=True):
            if name == IMAGES:
                whole = value / HIGH * 2**BITS + there / (self.largest / 2**BITS)
                means[name] = whole / clients, clients
            elif (count := round(there)) >= max(1, min_clients):
                means[name] = value * scale / count, count
        return means

"""How long a sweep may take here and what it keeps.

No image is opened, and a file of other examples once, for their shape.

What of a round's time belongs to a client, to an image, to an image's epoch and to evaluation is
known for every kind of cell (method, its parameters, models, batch size, arithmetic), and scaled by
the cell's own numbers. It is measured when somebody asks for it, by three tiny federations on
invented examples, which differ in epochs and in images, and kept for this machine
(:mod:`fedhet.sweeps.calibration`); until then it is rough arithmetic
(:mod:`fedhet.sweeps.flop_estimate`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedhet.config.schema import RunConfig
from fedhet.data.flower_partition import says_clients
from fedhet.data.folder import ImageFolder
from fedhet.data.named_sources import find_source
from fedhet.data.partition_file import count_clients
from fedhet.data.synthetic import Synthetic, SyntheticKind
from fedhet.errors import RunFailedError, UserError
from fedhet.site.local_data import DEFAULT_CLIENTS, load_partition
from fedhet.sweeps.calibration import Calibration
from fedhet.sweeps.cost import Cost, opened, probe_of
from fedhet.sweeps.flop_estimate import Rough

T = TypeVar("T")
Unknown = UserError | RunFailedError  # why nobody can say
EXTENTS = {  # images, classes
    "digits": (1797, 10), "cifar10": (60_000, 10), "cifar100": (60_000, 100),
    "fashion-mnist": (70_000, 10),
}  # fmt: skip


@dataclass(frozen=True)
class Guess:
    """Seconds of a cell from its first round to its last, or None and why; bytes that it keeps."""

    seconds: float | None
    reason: str = ""
    kept: float = 0.0
    rough: bool = False  # arithmetic: nothing of its kind was ever timed here


def extent(config: RunConfig) -> tuple[int, int]:
    """Images and classes of a cell's data set, by its name or the names of its files.

    Of chosen ``classes`` each is taken to have as many images as any. Raises UserError where they
    are not here to be counted.
    """
    images, classes = _whole(config)
    chosen = len(config.classes) or classes
    return images * min(chosen, classes) // classes, chosen


def _whole(config: RunConfig) -> tuple[int, int]:
    if config.dataset in EXTENTS:
        return EXTENTS[config.dataset]
    data = opened(config)
    if data is not None:
        return len(data.labels), len(data.classes)
    source = find_source(
        config.dataset, data_path=config.data_path, seed=config.seed, downloads=Path()
    )
    if not isinstance(source, ImageFolder | Synthetic | SyntheticKind):
        raise UserError(f"dataset '{config.dataset}': nothing but its own code counts its images")
    images, classes = source.extent()
    if classes < 2 or images < classes:
        raise UserError(
            f"data-path '{config.data_path}': {images} images of {classes} classes are too few: "
            "expected <class>/<image>"
        )
    return images, classes


class Estimator:
    """Remembers what data sets hold and what kinds of cells cost, or why nobody can say.

    ``measure`` times every kind anew, once, and keeps it for this machine; ``tell`` is called
    before each. Otherwise what was kept counts, and arithmetic for the rest.
    """

    def __init__(
        self, *, measure: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.calibration = Calibration.load()
        if measure:
            self.calibration.renew()
        self.measure, self.tell = measure, tell
        self.rough = Rough(self.calibration)
        self.uncalibrated: set[str] = set()
        self._extents: dict[Any, tuple[int, int] | Unknown] = {}
        self._costs: dict[Any, Cost | Unknown] = {}

    def guess(self, config: RunConfig) -> Guess:
        """How long a cell takes in one process, or with all that Ray would start for it."""
        try:
            data = (config.dataset, config.data_path, config.classes)
            images, classes = _once(self._extents, data, lambda: extent(config))
            clients = config.clients or DEFAULT_CLIENTS
            if config.partition == "file" and not config.clients:
                clients = count_clients(config.partition_file)
            natural = config.partition == "natural" or says_clients(config.partition)
            if natural and not config.clients:
                clients = len(load_partition(config, 0)[1].ids)
            probe = probe_of(config, classes)
            kind = repr(sorted(probe.flat().items(), key=lambda pair: pair[0]))
            cost = _once(self._costs, kind, lambda: self._cost(kind, probe, classes))
        except (UserError, RunFailedError) as error:
            return Guess(None, str(error))
        together = config.processes(clients) if config.engine == "ray" else 1
        seconds = cost.of(config, images, clients) / together
        kept = cost.kept(config, clients)
        return Guess(seconds, kept=kept, rough=kind in self.uncalibrated)

    def _cost(self, kind: str, probe: RunConfig, classes: int) -> Cost:
        if self.measure:
            self.tell(f"timing kind {len(self._costs) + 1}: {probe.method}, {probe.dataset}")
            from fedhet.sweeps.probe import measure  # noqa: PLC0415  (both apps)

            cost = measure(probe)
            self.calibration.keep(kind, cost)
            return cost
        known = self.calibration.cost(kind)
        if known is not None:
            return known
        self.uncalibrated.add(kind)
        return self.rough.cost(probe, classes)


def _once(kept: dict[Any, T | Unknown], key: object, make: Callable[[], T]) -> T:
    """What ``make`` gave or raised the first time for this key."""
    if key not in kept:
        try:
            kept[key] = make()
        except (UserError, RunFailedError) as error:
            kept[key] = error
    found = kept[key]
    if isinstance(found, UserError | RunFailedError):
        raise found
    return found

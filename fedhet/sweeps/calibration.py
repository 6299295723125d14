"""What kinds of cells cost on this machine: measured once, kept beside the cache of data sets.

One JSON file per processor, number of cores, GPUs and torch, for any sweep. A file of another
format, of another machine, or a damaged one counts as none, and is replaced when something is
measured again. What was counted holds for our source as it is.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock

from fedhet.data.cache import default_cache_dir
from fedhet.errors import UserError, VerifyError
from fedhet.files import private_files, write_json
from fedhet.reading.structured import read_json
from fedhet.records.environment import processor, source_digest
from fedhet.sweeps.cost import Cost

T = TypeVar("T")
FORMAT = 2  # another one also where `fedhet.sweeps.flop_estimate` counts otherwise
COUNTED = 5  # numbers that are counted of a kind of cell


def machine() -> dict[str, Any]:
    """What decides how fast this machine computes."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "torch": torch.__version__,
    }


@dataclass
class Calibration:
    """Costs by kind of cell, and speeds (FLOP/s) of a matrix product by kind of arithmetic."""

    path: Path
    costs: dict[str, Cost] = field(default_factory=dict)  # by digest of the kind
    products: dict[str, float] = field(default_factory=dict)
    counts: dict[str, list[float]] = field(default_factory=dict)  # by digest of the kind

    @classmethod
    def load(cls) -> "Calibration":
        """This machine's; empty if there is none that can be read."""
        name = _digest(json.dumps(machine(), sort_keys=True))
        made = cls(default_cache_dir().expanduser().absolute() / "calibration" / f"{name}.json")
        made._read()
        return made

    def cost(self, kind: str) -> Cost | None:
        """What a kind of cell was measured to cost, if it was."""
        return self.costs.get(_digest(kind))

    def renew(self) -> None:
        """Forget how fast a matrix product was. UserError if the cache cannot be written."""

        def forget() -> None:
            self.products = {}

        self._change(forget)

    def keep(self, kind: str, cost: Cost) -> None:
        """Remember a cost. UserError if the cache cannot be written."""
        self._change(lambda: self.costs.__setitem__(_digest(kind), cost))

    def product(self, what: str, measure: Callable[[], float]) -> float:
        """FLOP/s of a matrix product of this kind, measured if nobody did; kept if that can be."""
        return self._once(lambda: self.products, what, measure)

    def count(self, kind: str, count: Callable[[], list[float]]) -> list[float]:
        """What was counted of a kind of cell, or is now; kept if that can be."""
        return self._once(lambda: self.counts, _digest(kind), count)

    def _once(self, known: Callable[[], dict[str, T]], key: str, make: Callable[[], T]) -> T:
        if key not in known():
            made = make()
            try:
                self._change(lambda: known().__setitem__(key, made))
            except UserError:  # an estimate that cannot be kept is an estimate
                known()[key] = made
        return known()[key]

    def _change(self, change: Callable[[], None]) -> None:
        """Change what the file says now: another command may have measured meanwhile."""
        try:
            with private_files():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with FileLock(f"{self.path}.lock"):
                    self._read()
                    change()
                    write_json(self.path, self._content())
        except OSError as error:
            raise UserError(
                f"calibration '{self.path}' cannot be written: {error.strerror or error}; set "
                "FEDHET_CACHE to a folder with space"
            ) from error

    def _content(self) -> dict[str, Any]:
        costs = {kind: asdict(cost) for kind, cost in sorted(self.costs.items())}
        return {
            "format": FORMAT, "machine": machine(), "source": source_digest(),
            "products": dict(sorted(self.products.items())), "costs": costs,
            "counts": dict(sorted(self.counts.items())),
        }  # fmt: skip

    def _read(self) -> None:
        """Take what the file says; nothing of it if any part makes no sense."""
        try:
            content = read_json(self.path)
            if content["format"] != FORMAT or content["machine"] != machine():
                return
            costs = {
                kind: Cost(**{name: _number(value) for name, value in cost.items()})
                for kind, cost in content["costs"].items()
            }
            products = {kind: _number(speed) for kind, speed in content["products"].items()}
            counts = {
                kind: [_number(found) for found in numbers]
                for kind, numbers in content["counts"].items()
                if len(numbers) == COUNTED and content["source"] == source_digest()
            }
        except (OSError, VerifyError, ValueError, LookupError, TypeError, AttributeError):
            return
        self.costs, self.products, self.counts = costs, products, counts


def _number(value: Any) -> float:
    """A finite number from 0 on; ValueError otherwise."""
    if type(value) not in {int, float} or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no cost")
    return float(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

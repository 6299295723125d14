"""What kinds of cells cost on this machine: measured once, kept beside the cache of data sets.

One JSON file per processor, number of cores, GPUs and torch, for any sweep. A file of another
format, of another machine, or a damaged one counts as none, and is replaced when something is
measured again.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from fedhet.data.cache import default_cache_dir
from fedhet.errors import UserError, VerifyError
from fedhet.files import private_files, write_json
from fedhet.reading.structured import read_json
from fedhet.records.environment import processor
from fedhet.sweeps.cost import Cost

FORMAT = 1


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
        if what not in self.products:
            speed = measure()
            try:
                self._change(lambda: self.products.__setitem__(what, speed))
            except UserError:  # an estimate that cannot be kept is an estimate
                self.products[what] = speed
        return self.products[what]

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
        products = dict(sorted(self.products.items()))
        return {"format": FORMAT, "machine": machine(), "products": products, "costs": costs}

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
        except (OSError, VerifyError, ValueError, LookupError, TypeError, AttributeError):
            return
        self.costs, self.products = costs, products


def _number(value: Any) -> float:
    """A finite number from 0 on; ValueError otherwise."""
    if type(value) not in {int, float} or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no cost")
    return float(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

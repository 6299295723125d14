"""Tiny federations on invented images, which tell what a kind of cell costs here."""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedhet.config.schema import RunConfig
from fedhet.engines.inline import run
from fedhet.engines.launch import Launch
from fedhet.errors import RunFailedError
from fedhet.reading.structured import read_jsonl
from fedhet.records import register
from fedhet.records.formats import read_partition
from fedhet.records.run_folder import RunFolder
from fedhet.records.states import states_of
from fedhet.sweeps.cost import GENERATIONS, Cost


@dataclass(frozen=True)
class Probed:
    """Seconds of a round without evaluation and of one with it; images that each took.

    ``states`` are the bytes of all clients' states after the last.
    """

    plain: float
    evaluated: float
    trained: int
    held: int
    states: int = 0


def measure(probe: RunConfig) -> Cost:
    """Costs from the probe, from it with two epochs, and from it with twice the images."""
    name, size, *shape = probe.dataset.split(":")
    images, classes = size.split("x")
    larger = {"dataset": ":".join([name, f"{2 * int(images)}x{classes}", *shape])}
    once = _rounds(probe)
    twice = _rounds(probe.model_copy(update={"local_epochs": 2}))
    double = _rounds(probe.model_copy(update=larger))
    more = double.trained - once.trained
    both = max(0.0, double.plain - once.plain) / more  # of an image: its round and its one epoch
    epoch = min(both, max(0.0, twice.plain - once.plain) / once.trained)
    client = max(0.0, once.plain - both * once.trained) / probe.clients
    held = max(0.0, double.evaluated - double.plain) / double.held
    return Cost(client, both - epoch, epoch, held, once.states / probe.clients / GENERATIONS)


def _rounds(config: RunConfig) -> Probed:
    """A warm round that is not evaluated, and the last one, which is.

    Raises RunFailedError if any client of it fails. Nothing is shown, and nothing is left.
    """
    with tempfile.TemporaryDirectory() as folder, _cache_in(folder), ExitStack() as done:
        config = config.model_copy(update={"out": folder})
        made = RunFolder.create(config, "probe")
        done.callback(register.forget, made.experiment)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                run(Launch(config, made), lambda rounds: None)
        except RunFailedError as error:
            reason = made.read_summary().get("reason") or error
            raise RunFailedError(f"three rounds on invented images failed: {reason}") from None
        records = read_jsonl(made.rounds)
        failure = next((one for record in records for one in record["failures"]), None)
        if failure is not None:
            raise RunFailedError(f"a client failed on invented images: {failure['reason']}")
        _, plain, evaluated = (float(record["seconds"]) for record in records)
        trained = sum(map(sum, read_partition(made.partition).counts.values()))
        images = int(config.dataset.split(":")[1].split("x")[0])
        states = sum(p.stat().st_size for p in states_of(made, config).rglob("*") if p.is_file())
        return Probed(plain, evaluated, trained, images - trained, states)


@contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """The cache of data sets is there meanwhile: invented images are of no use to anybody."""
    before = os.environ.get("FEDHET_CACHE")
    os.environ["FEDHET_CACHE"] = str(Path(folder) / "cache")
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDHET_CACHE"]
        else:
            os.environ["FEDHET_CACHE"] = before

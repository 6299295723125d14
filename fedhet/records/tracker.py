"""One hook for experiment trackers: every round's numbers, sent where ``tracker`` says.

A tracker's package is imported only where it was asked for. A tracker that fails while the run
goes on (a service that is down) is named once and left out: the run folder has the same numbers.
"""

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from fedhet.config.schema import PATHS, RunConfig
from fedhet.errors import UserError, brief

PROJECT = "fedhet"
Log = Callable[[Mapping[str, float], int], object]  # takes a round's numbers, and the round
log = logging.getLogger("fedhet")


class Tracker:
    """Receives the records of a run's rounds; a context manager that ends the tracker's run."""

    def __init__(self, config: RunConfig, folder: Path, experiment: str) -> None:
        self._name, self._stack = config.tracker, contextlib.ExitStack()
        self._log: Log | None = None
        if config.tracker != "none":
            values = {key: v for key, v in config.flat().items() if key not in PATHS}
            package, service = tracker_package(config.tracker), _SERVICES[config.tracker]
            opened = service(package, folder, experiment, values)
            self._log = self._safely(lambda: self._stack.enter_context(opened))

    def write(self, record: Mapping[str, Any]) -> None:
        """Every number of a line of ``rounds.jsonl``, under its own name, at its round."""
        if (send := self._log) is not None:
            numbers = {name: v for name, v in record.items() if isinstance(v, int | float)}
            del numbers["round"]
            self._safely(lambda: send(numbers, record["round"]))

    def _safely(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001  (whatever another package raises)
            self._log = None
            self._stack.pop_all()
            log.warning("tracker %s is left out from here on: %s", self._name, brief(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._safely(self._stack.close)


def tracker_package(name: str) -> Any:
    """Return the tracker's package; UserError if the extra is not installed."""
    try:
        return importlib.import_module({"tensorboard": "torch.utils.tensorboard"}.get(name, name))
    except ImportError as error:
        raise UserError(
            f"tracker: '{name}' needs its package: pip install 'fedhet[{name}]'"
        ) from error


@contextlib.contextmanager
def _tensorboard(package: Any, folder: Path, _experiment: str, _config: Any) -> Iterator[Log]:
    writer = package.SummaryWriter(str(folder / "tensorboard"))

    def send(numbers: Mapping[str, float], round_: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, round_)
        writer.flush()

    yield send
    writer.close()


@contextlib.contextmanager
def _wandb(package: Any, folder: Path, experiment: str, config: Any) -> Iterator[Log]:
    """Use a run of wandb, in which a resumed run goes on."""
    package.init(
        project=PROJECT, name=folder.name, config=config, resume="allow", id=experiment,
        dir=str(folder),
    )  # fmt: skip
    yield lambda numbers, round_: package.log(dict(numbers), step=round_)
    package.finish()


@contextlib.contextmanager
def _mlflow(package: Any, folder: Path, experiment: str, config: Any) -> Iterator[Log]:
    """Use a run of the experiment ``fedhet``; resumed runs are found by their tag."""
    package.set_experiment(PROJECT)
    found = package.search_runs(filter_string=f"tags.fedhet = '{experiment}'", output_format="list")
    if found:
        package.start_run(run_id=found[0].info.run_id)
    else:
        package.start_run(run_name=folder.name, tags={"fedhet": experiment})
        package.log_params(config)
    yield lambda numbers, round_: package.log_metrics(dict(numbers), step=round_)
    package.end_run()


_SERVICES = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}

"""One hook for experiment trackers: every round's numbers, sent where ``tracker`` says.

A tracker's package is imported only where it was asked for. A tracker that fails while the run
goes on (a service that is down) is named once and left out: the run folder has the same numbers.
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from fedhet.config.schema import RunConfig
from fedhet.errors import UserError, brief

PACKAGES = {
    "tensorboard": "torch.utils.tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
}
PROJECT = "fedhet"
# A machine's business alone.
_PATHS = {"data-path", "partition-file", "public-path", "state-dir", "out"}
log = logging.getLogger("fedhet")


class _Service(Protocol):
    def log(self, numbers: Mapping[str, float], round_: int) -> None: ...

    def close(self) -> None: ...


class Tracker:
    """Receives the records of a run's rounds; a context manager that ends the tracker's run."""

    def __init__(self, config: RunConfig, folder: Path, experiment: str) -> None:
        self._name = config.tracker
        self._service: _Service | None = None
        if config.tracker != "none":
            package = tracker_package(config.tracker)
            values = {key: value for key, value in config.flat().items() if key not in _PATHS}
            self._safely(lambda: self._open(package, folder, experiment, values))

    def _open(self, package: Any, folder: Path, experiment: str, config: dict[str, Any]) -> None:
        kinds: dict[str, Callable[..., _Service]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}
        self._service = kinds.get(self._name, _Wandb)(package, folder, experiment, config)

    def write(self, record: Mapping[str, Any]) -> None:
        """Every number of a line of ``rounds.jsonl``, under its own name, at its round."""
        service = self._service
        if service is not None:
            numbers = {
                name: value
                for name, value in record.items()
                if isinstance(value, int | float) and name != "round"
            }
            self._safely(lambda: service.log(numbers, record["round"]))

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (whatever another package raises)
            self._service = None
            log.warning("tracker %s is left out from here on: %s", self._name, brief(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._service is not None:
            self._safely(self._service.close)


def tracker_package(name: str) -> Any:
    """Return the tracker's package; UserError if the extra is not installed."""
    try:
        return importlib.import_module(PACKAGES[name])
    except ImportError as error:
        raise UserError(
            f"tracker: '{name}' needs its package: pip install 'fedhet[{name}]'"
        ) from error


class _TensorBoard:
    """Scalars in ``RUN/tensorboard``."""

    def __init__(self, package: Any, folder: Path, _experiment: str, _config: Any) -> None:
        self._writer = package.SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """``init``, ``log`` and ``finish`` of wandb, and of what offers the same calls (trackio).

    The run folder's name and experiment make a resumed run go on in the same place.
    """

    def __init__(self, package: Any, folder: Path, experiment: str, config: Any) -> None:
        own = {"id": experiment, "dir": str(folder)} if package.__name__ == "wandb" else {}
        name = f"{folder.name}-{experiment}" if not own else folder.name
        self._package = package
        package.init(project=PROJECT, name=name, config=config, resume="allow", **own)

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        self._package.log(dict(numbers), step=round_)

    def close(self) -> None:
        self._package.finish()


class _MLflow:
    """A run of the experiment ``fedhet``; resumed runs are found by their tag."""

    def __init__(self, package: Any, folder: Path, experiment: str, config: Any) -> None:
        self._package = package
        package.set_experiment(PROJECT)
        found = package.search_runs(
            filter_string=f"tags.fedhet = '{experiment}'", output_format="list"
        )
        if found:
            package.start_run(run_id=found[0].info.run_id)
        else:
            package.start_run(run_name=folder.name, tags={"fedhet": experiment})
            package.log_params(config)

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        self._package.log_metrics(dict(numbers), step=round_)

    def close(self) -> None:
        self._package.end_run()

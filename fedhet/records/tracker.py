"""One hook for experiment trackers: every round's numbers, sent where ``tracker`` says.

A tracker's package is imported only where it was asked for. A tracker that fails while the run
goes on (a service that is down) is named once and left out: the run folder has the same numbers.
"""

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedhet.config.schema import PATHS, RunConfig
from fedhet.errors import UserError, brief

PROJECT = "fedhet"
Service = tuple[Callable[[Mapping[str, float], float], object], Callable[[], object]]  # log, end
log = logging.getLogger("fedhet")


@contextlib.contextmanager
def tracking(
    config: RunConfig, folder: Path, experiment: str
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield what sends a line of ``rounds.jsonl`` to the run's tracker, which is ended at last."""
    service: Service | None = None

    def safely(action: Callable[[], Any]) -> Any:
        nonlocal service
        try:
            return action()
        except Exception as error:  # noqa: BLE001  (whatever another package raises)
            service = None
            log.warning("tracker %s is left out from here on: %s", config.tracker, brief(error))

    def send(record: Mapping[str, Any]) -> None:
        """Send every number under its own name, at its round."""
        if service is not None:
            numbers = {name: v for name, v in record.items() if isinstance(v, int | float)}
            safely(partial(service[0], numbers, numbers.pop("round")))

    if config.tracker != "none":
        values = {key: v for key, v in config.flat().items() if key not in PATHS}
        package, begin = tracker_package(config.tracker), _SERVICES[config.tracker]
        service = safely(lambda: begin(package, folder, experiment, values))
    try:
        yield send
    finally:
        if service is not None:
            safely(service[1])


def tracker_package(name: str) -> Any:
    """Return the tracker's package; UserError if the extra is not installed."""
    try:
        return importlib.import_module({"tensorboard": "torch.utils.tensorboard"}.get(name, name))
    except ImportError as error:
        raise UserError(
            f"tracker: '{name}' needs its package: pip install 'fedhet[{name}]'"
        ) from error


def _tensorboard(package: Any, folder: Path, _experiment: str, _config: Any) -> Service:
    writer = package.SummaryWriter(str(folder / "tensorboard"))

    def send(numbers: Mapping[str, float], round_: float) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, round_)
        writer.flush()

    return send, writer.close


def _wandb(package: Any, folder: Path, experiment: str, config: Any) -> Service:
    """Use a run of wandb, in which a resumed run goes on."""
    package.init(
        project=PROJECT, name=folder.name, config=config, resume="allow", id=experiment,
        dir=str(folder),
    )  # fmt: skip
    return lambda numbers, round_: package.log(dict(numbers), step=round_), package.finish


def _mlflow(package: Any, folder: Path, experiment: str, config: Any) -> Service:
    """Use a run of the experiment ``fedhet``; resumed runs are found by their tag."""
    package.set_experiment(PROJECT)
    found = package.search_runs(filter_string=f"tags.fedhet = '{experiment}'", output_format="list")
    if found:
        package.start_run(run_id=found[0].info.run_id)
    else:
        package.start_run(run_name=folder.name, tags={"fedhet": experiment})
        package.log_params(config)
    return lambda numbers, round_: package.log_metrics(dict(numbers), step=round_), package.end_run


_SERVICES = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}

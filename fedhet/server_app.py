"""The ServerApp: configuration -> strategy -> round loop -> run folder."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedhet.config.load import from_run_config
from fedhet.config.registry import find_method, folder_name
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, TOKENS, Inputs, kind_of
from fedhet.engines.launch import Launch, OnRound
from fedhet.engines.system import Interrupted
from fedhet.errors import RunFailed, UserError, brief, place, shortened
from fedhet.files import client_order
from fedhet.models.names import small_name
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import left_out
from fedhet.records.tracker import tracking
from fedhet.rng import one_blas_thread

LOG_FORMAT = "fedhet %(levelname)s: %(message)s"
app = ServerApp()
log = logging.getLogger("fedhet")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``context.run_config``; of a plain ``flwr run`` make its folder."""
    log_to_stderr()
    with errors_in_a_line():
        config, run_ = from_run_config(context.run_config)
        exists = bool(run_) and Path(run_["folder"]).is_dir()
        if not run_:
            config = outside(config, context.run_config.get("out"))
        name = folder_name(config.method)
        folder = RunFolder(Path(run_["folder"])) if exists else RunFolder.create(config, name)
        launch = Launch(config, folder, exists and bool(run_["resume"]))
    with serving(launch) as roster:
        run(grid, launch, roster)


@contextlib.contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Let Flower, which prints the traceback, print the line of a UserError alone."""
    try:
        yield
    except UserError:
        sys.tracebacklimit = 0
        raise


@contextlib.contextmanager
def serving(launch: Launch) -> Iterator[Roster]:
    """Hold the run's folder within this block and log to it; write ``summary.json`` if it fails."""
    one_blas_thread()
    torch.set_num_threads(1)  # array operations of a server are memory-bound, and same bits always
    lock, roster = launch.folder.lock(), Roster()
    handler = logging.FileHandler(launch.folder.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    log.addHandler(handler)
    try:
        launch.write_config()
        yield roster
    except BaseException as error:
        plain = isinstance(error, RunFailed | UserError | Interrupted)
        removed = launch.folder.removed() if isinstance(error, OSError) else ""
        reason = removed or (str(error) if plain else brief(error))
        status = "stopped" if isinstance(error, SystemExit | Interrupted) else "failed"
        if isinstance(error, SystemExit):  # that is how Flower ends a ServerApp
            reason = "Flower was told to stop the run"
        log.error("run %s: %s", status, reason)
        with contextlib.suppress(OSError):  # on a full disk the log is all there is
            launch.folder.write_summary(launch.config, status, len(roster.ids), reason)
        if removed:
            raise RunFailed(removed) from error
        raise
    else:
        log.info("results in %s", launch.folder.path)
    finally:
        log.removeHandler(handler)
        handler.close()
        lock.release()


def outside(config: RunConfig, out: object) -> RunConfig:
    """Return the configuration with ``out`` outside the folder in which Flower runs a server."""
    if not out:
        return config.model_copy(update={"out": str(Path.home() / ".fedhet" / "runs")})
    if not Path(config.out).expanduser().is_absolute():
        raise UserError(
            f"out: '{config.out}' is not allowed: `flwr run` needs an absolute path, since the "
            "server runs in a folder of its own"
        )
    return config


def run(grid: Grid, launch: Launch, roster: Roster) -> None:
    """Make the handshake, run the rounds, write the summary."""
    config, folder, experiment = launch.config, launch.folder, launch.folder.experiment
    kept = load_checkpoint(folder.checkpoint) if launch.resume else None
    if kept is not None:
        roster.load(kept.meta["roster"])
    if roster.inputs is None:
        roster.inputs = declared_inputs(config)
    simulated = is_simulated(grid)
    if simulated:
        folder.states(config)  # Damaged before anything is sent
    state_dir = str(folder.state_dir(config))
    handshake = Handshake(grid, experiment, roster, config, state_dir)
    expected = len(roster.ids) or config.clients
    handshake.wait(expected, config.start_timeout, folder.wait_for)
    if not roster.classes:
        roster.fix_classes(config.classes, config.max_classes)
    folder.write_partition(roster.counts(), roster.classes)
    method = find_method(config.method).strategy
    if launch.models_elsewhere:  # the clients' own, and what they share, by name
        models = [roster.infos[client].model for client in sorted(roster.infos, key=client_order)]
        changes: dict[str, Any] = {"models": tuple(models)}
        if method.shares_small_model:
            assert roster.inputs is not None
            changes["small_model"] = small_name(config, roster.inputs.kind)
        folder.write_config(config.model_copy(update=changes), experiment, ["engine"])
    strategy = method(config, roster)
    strategy.prepare(handshake, folder, kept)
    with tracking(config, folder.path, experiment) as track:
        strategy.start(grid, on_round=lambda record: _tell(record, track, launch.on_round))
    rounds = folder.read_rounds()
    if not any(record["replied"] for record in rounds):
        first = next(map(left_out, rounds[0]["failures"]), "no reply")
        raise RunFailed(f"no round came about; the first failure: {first}")
    folder.write_summary(config, "completed", len(roster.ids))
    if simulated and not config.keep_state:
        folder.remove_states(config)


def _tell(
    record: Mapping[str, Any], track: Callable[[Mapping[str, Any]], None], on_round: OnRound | None
) -> object:
    """Hand a finished round to who wants it; return False if the run is to end with it."""
    track(record)
    if on_round is None:
        return None
    try:
        return on_round(dict(record))
    except Exception as error:
        print(shortened(error, f"on_round: round {record['round']}"), file=sys.stderr)
        raise RunFailed(f"on_round: {brief(error)}{place(error)}") from error


def declared_inputs(config: RunConfig) -> Inputs | None:
    """Return what examples must be, where the configuration says it; else the first client does."""
    kind = kind_of(config.dataset)
    if kind == IMAGE:
        return Inputs.image(config.image_size, grey=config.grey, standardised=config.standardise)
    if config.dataset == "texts" and config.text:  # else the first client has found it
        return Inputs(TOKENS, (config.length,), config.vocabulary, (config.text,))
    return None


def log_to_stderr() -> None:
    """Show this package's messages, unless this process has a handler for them."""
    if log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)  # Flower mirrors it to ``flwr run --stream``
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False

"""One run from a configuration to its end, and everything that is checked before it starts."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from fedhet.config import load
from fedhet.config.registry import find_method
from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset
from fedhet.data.partition import DEFAULT_CLIENTS, PREFIX, Partition
from fedhet.deploy.control import server_folder
from fedhet.deploy.submit import submit_remote
from fedhet.engines.grid import processes
from fedhet.engines.grid import run as simulate
from fedhet.engines.launch import Launch, OnRound, one_run
from fedhet.engines.system import Interrupted, check_ray_address, interruptible
from fedhet.errors import Damaged, UserError
from fedhet.files import check_entries, check_folder, plain_path
from fedhet.models.names import small_name
from fedhet.models.zoo import build_model
from fedhet.plugins import APPS_DATA, check_given, is_given, named
from fedhet.protocol.handshake import Roster
from fedhet.protocol.payload import Array
from fedhet.records import verification
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import OWNER, RunFolder
from fedhet.records.summary import DIVERGENCE, imbalance
from fedhet.records.tracker import tracker_package
from fedhet.records.verification import Verification
from fedhet.site import local_data


@dataclass(frozen=True)
class Console:
    """How a run shows itself: lines, and a display with ``note(text)`` and ``update(records)``."""

    say: Callable[[str], None]
    progress: Callable[[str, int, str], AbstractContextManager[Any]]  # of method, rounds, metric


@one_run()
def start(
    config: RunConfig,
    default_name: str,
    console: Console,
    connection: str | None = None,
    *,
    notes: Sequence[str] = (),
    on_round: OnRound | None = None,
) -> RunFolder:
    """Check, make the run folder and run to the end; one that could not start leaves no folder.

    ``notes`` are said once nothing is wrong. Raises UserError, or RunFailed if it did not complete.
    """
    config = load.absolute_paths(config)
    joins = connection is None and os.environ.get("RAY_ADDRESS")
    if joins and "engine" not in config.model_fields_set:
        config = config.model_copy(update={"engine": "ray"})
        notes = [*notes, "engine=ray, since RAY_ADDRESS is set"]
    check(config, console.say, connection)
    lines, data = [f"note: {one}" for one in notes], ""
    if connection is None:
        config = resolve_clients(config)
        dataset, partition = check_simulation(config)
        data = dataset.digest
        lines += remarks(dataset, partition)
        counts = partition.counts(dataset.labels, len(dataset.classes)).sum(axis=0).tolist()
        if line := imbalance(config, dict(zip(dataset.classes, counts, strict=True))):
            lines.append(f"warning: {line}")
    with interruptible():
        folder = RunFolder.create(config, default_name, data)
        with folder.log.open("a", encoding="utf-8") as log:
            for line in lines:
                console.say(line)
                print(f"fedhet {line}", file=log)
        try:
            _run(Launch(config, folder, on_round=on_round), console, connection)
        except UserError:
            folder.discard()
            raise
    return folder


@one_run()
def resume(
    path: Path,
    changes: Mapping[str, Any],
    console: Console,
    connection: str | None = None,
    *,
    accept_lost: bool = False,
    trust: bool = False,
    on_round: OnRound | None = None,
) -> RunFolder:
    """Go on after the last finished round; raises as :func:`start` does, and Damaged.

    ``accept_lost``: without clients whose states are damaged; ``trust``: with code of others.
    """
    folder, config = reopen(path, changes, trust=trust)
    if config.dataset == APPS_DATA:
        raise UserError(
            f"run '{folder.path}' is of a Flower app of your own: give its ServerApp resume='...'"
        )
    check_given(named(config.flat()))
    check(config, console.say, connection)
    if connection is None:
        kept = load_checkpoint(folder.checkpoint)
        if kept is not None and not kept.meta["simulated"]:
            raise UserError(
                f"run '{folder.path}' was made on nodes, which have its clients' states: give "
                "--superlink NAME, as when it was started"
            )
        config = resolve_clients(config)
        dataset, _ = check_simulation(config)
        folder.check_data(dataset.digest)
    for line in load.idle_notes([config], changes, deployed=connection is not None):
        console.say(f"note: {line}")
    launch = Launch(config, folder, resume=True, on_round=on_round)
    with interruptible():
        _run(launch, console, connection, accept_lost=accept_lost)
    return folder


def reopen(
    path: Path, changes: Mapping[str, Any], *, trust: bool = False
) -> tuple[RunFolder, RunConfig]:
    """Return a run folder to go on with, and its configuration; raises as :func:`resume` does."""
    folder = _existing(path)
    config = load.resumed_config(folder.opened(trust=trust), changes)
    if not trust:
        folder.check_reach(config)
    if "state-dir" in changes:
        config = load.absolute_paths(config)
        folder.states_named = True
    folder.states(config)
    _check_resumable(folder, config)
    return folder, config


def check_whole(folder: RunFolder, config: RunConfig, *, accept_lost: bool = False) -> None:
    """Raise Damaged if anything in a run folder does not fit the rest of it."""
    started = load.build_config(folder.started_config())
    started = started.model_copy(update={"state_dir": config.state_dir})
    verification.verify(folder, started, _check_arrays).raise_for(accept_lost=accept_lost)


def verify(path: Path, *, trust: bool = False) -> tuple[RunFolder, Verification]:
    """Check a run folder; UserError if it is none, in use, or needs ``trust`` for others' code."""
    folder = _existing(path)
    folder.started_config()  # before a lock is made in what is no run
    writable = os.access(folder.path, os.W_OK)  # an archive is not, and then nobody writes to it
    with folder.lock() if writable else contextlib.nullcontext():
        started = folder.opened(trust=trust)
        return folder, verification.verify(folder, load.build_config(started), _check_arrays)


def _check_arrays(config: RunConfig, roster: Roster, arrays: Mapping[str, Array]) -> None:
    strategy = find_method(config.method).strategy(config, roster)
    strategy.initialise()
    strategy.check_arrays(arrays)


def _existing(path: Path) -> RunFolder:
    """Return a run folder in which no link leads elsewhere."""
    folder = RunFolder(plain_path(path))
    if folder.path.is_dir():
        check_entries(folder.path)
    return folder


def check(config: RunConfig, say: Callable[[str], None], connection: str | None) -> None:
    """Check what is quick to check: the server, or what a simulation asks of this machine."""
    if connection is None:
        if config.engine == "ray":
            check_ray_address(os.environ.get("RAY_ADDRESS", ""))
        announce(config, say)
        return
    local_data.check_no_weights(config)  # the nodes bring their own data, models and devices
    bare = next((name for name, values in config.categories if not values), "")
    for holds, text in (
        (config.engine == "inline",
         "engine: 'inline' is not possible with --superlink: nodes are the clients"),
        (config.dataset in ("table", "texts") and not config.target,
         "target: '' is not allowed on a network: name the class column"),
        (bare, f"categories: '{bare}' needs its values on a network, such as categories={{{bare}: "
         "[a, b]}, since sites do not learn them from each other"),
    ):  # fmt: skip
        if holds:
            raise UserError(text)
    server_folder(connection).check_running()


def remarks(dataset: Dataset, partition: Partition) -> list[str]:
    """Return the notes and the warnings on data and how they are dealt."""
    repeats = dataset.about_repeats(partition.clients)
    warnings = (*dataset.warnings, *partition.warnings, *repeats)
    return [*(f"note: {n}" for n in dataset.notes), *(f"warning: {w}" for w in warnings)]


def announce(config: RunConfig, say: Callable[[str], None]) -> None:
    """Say why nothing happens for a while; in a pipe a mistake must stay the only line."""
    quick = config.dataset == "digits" or config.dataset.startswith("synthetic")
    if not quick and sys.stderr.isatty():
        say(f"reading {config.dataset} (decoded once, then cached) ...")


def _check_resumable(folder: RunFolder, config: RunConfig) -> None:
    started, records = folder.started_config(), folder.read_rounds()
    finished = records[-1]["round"] if records else 0
    if config.rounds < finished:
        raise UserError(f"rounds: {config.rounds} is not allowed: {finished} are finished already")
    if folder.read_summary().get("status") != "completed":
        return
    if config.rounds == (finished or started["rounds"]):
        more = f"to add rounds, give rounds=N with N > {config.rounds}"
        raise UserError(f"run '{folder.path}' is completed; {more}")
    if not started.get("keep-state", True):
        why = "keep-state=false deleted the clients' states at its end"
        raise UserError(f"run '{folder.path}' cannot be resumed: {why}")


def _run(
    launch: Launch, console: Console, connection: str | None, *, accept_lost: bool = False
) -> None:
    """Run to the end, with a progress display; the caller has made signals interrupt."""
    lock = launch.folder.lock(OWNER)
    launch.folder.lock().release()  # UserError if another process writes to it
    config = launch.config
    try:
        if launch.resume:
            check_whole(launch.folder, config, accept_lost=accept_lost)
        with console.progress(config.method, config.rounds, config.metric) as progress:
            if connection is not None:
                progress.note(f"sending the run to '{connection}' ...")
                submit_remote(launch, connection, progress.update, progress.note)
            else:
                where = f"{processes(config)[0]} training process(es)"
                where = "in this process" if config.engine == "inline" else where
                ray = "Ray: " * (config.engine == "ray")
                progress.note(f"starting {ray}{config.clients} clients, {where} ...")
                simulate(launch, progress.update)
    except (UserError, Damaged):  # the same command would end here again
        raise
    except BaseException as error:
        begun = isinstance(error, Interrupted | KeyboardInterrupt) or launch.folder.rounds.exists()
        if begun and not launch.folder.removed():
            with contextlib.suppress(OSError, Damaged):
                console.say(_how_to_go_on(launch, connection))
        raise
    finally:
        lock.release()


def _how_to_go_on(launch: Launch, connection: str | None) -> str:
    """Return what to do about a run that ended early: a diverged one would diverge again."""
    if DIVERGENCE.search(launch.status()[1]):
        lr = f"{launch.config.lr:g}"
        return f"it diverged, and would again: start another run with a smaller lr (it was {lr})"
    rounds, records = launch.config.rounds, launch.folder.read_rounds()
    lost = len(list(takewhile(lambda line: line["replied"] == 0, reversed(records))))
    more = f" rounds={rounds + lost}" if lost and records[-1]["round"] == rounds else ""
    where = "" if connection is None else f" --superlink {connection}"
    return f"continue it with: fedhet resume {launch.folder.path}{more}{where}"


# --- checks before anything is started ----------------------------------------------------------


def resolve_clients(config: RunConfig) -> RunConfig:
    """Return the configuration with a number for ``clients: 0``: of file or data, else 10."""
    clients, kind = config.clients or DEFAULT_CLIENTS, config.partition
    if not config.clients and (kind in {"file", "natural"} or kind.startswith(PREFIX)):
        local_data.load_partition.cache_clear()  # a new run wants the files as they are now
        clients = len(local_data.load_partition(config, 0)[1].ids)
    return config.model_copy(update={"clients": clients})


def check_simulation(config: RunConfig) -> tuple[Dataset, Partition]:
    """Check all that a simulation on this machine needs; ``clients`` is resolved."""
    if config.state_dir:
        check_folder(Path(config.state_dir).resolve(), "state-dir")
    if config.tracker != "none":
        tracker_package(config.tracker)
    local_data.choose_device(config, {})
    load.check_replies(config)
    local_data.load_partition.cache_clear()  # a new run wants the files as they are now
    dataset, partition = local_data.load_partition(config, config.clients)
    if is_given(config.dataset) and (few := set(dataset.site_names) - set(partition.ids)):
        raise UserError(f"data: client '{min(few)}' has too few examples to train and to test")
    inputs, strategy = dataset.inputs, find_method(config.method).strategy
    load.check_kind(config, inputs.kind)
    names = list(config.models)
    if strategy.shares_small_model:
        names.append(small_name(config, inputs.kind))
    with torch.random.fork_rng(devices=[]):
        for name in dict.fromkeys(names):
            build_model(name, classes=len(dataset.classes), d=config.representation, inputs=inputs)
    return dataset, partition

"""What the commands of ``fedhet`` do; :mod:`fedhet.cli.arguments` reads their arguments."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fedhet.cli import show
from fedhet.cli.show import RunProgress, percent, show_table
from fedhet.config import load_config, method_keys, nearest, resumed_config
from fedhet.data.cache import Dataset
from fedhet.data.listing import Indices
from fedhet.data.partition import Partition
from fedhet.errors import UserError
from fedhet.models import MODEL_NAMES, model_table
from fedhet.node.site import load_partition
from fedhet.records.run_folder import RunFolder
from fedhet.registry import METHODS
from fedhet.runtime import preflight
from fedhet.runtime.launch import Launch, OnRounds, simulate, submit_remote, take_over
from fedhet.runtime.signals import Interrupted, interruptible
from fedhet.runtime.superlink import app_root
from fedhet.schema import RunConfig

DEMO_METHODS = ("standalone", "lg_fedavg", "fedssa")
DEMO = (
    "dataset=digits", "clients=10", "classes-per-client=4", "rounds=14", "local-epochs=1",
    "batch-size=16",
)  # fmt: skip
WIDEST = 20  # classes that a table can show side by side


def find_preset(name: str) -> Path:
    """A YAML file, or the name of one that is shipped in ``configs``."""
    path = Path(name).expanduser()
    if path.exists() or path.suffix in {".yaml", ".yml"}:
        return path
    folder = app_root() / "configs"
    shipped = {
        str(preset.relative_to(folder).with_suffix("")): preset
        for preset in sorted(folder.rglob("*.yaml"))
    }
    if name not in shipped:
        raise UserError(
            f"config '{name}': no such file and no preset{nearest(name, list(shipped))}; "
            f"presets: {', '.join(shipped)}"
        )
    return shipped[name]


def run(
    config_name: str, overrides: Sequence[str], *, connection: str | None, as_json: bool
) -> None:
    """``fedhet run``."""
    path = find_preset(config_name)
    config = preflight.absolute_paths(load_config(path, overrides))
    folder = _run(config, path.stem, connection, quiet=as_json)
    _print_result(folder, as_json=as_json)


def _run(config: RunConfig, default_name: str, connection: str | None, *, quiet: bool) -> RunFolder:
    """Check, make the run folder, launch; a run that could not be started leaves no folder."""
    python_path = _check(config, connection)
    warnings: list[str] = []
    if connection is None:
        config = preflight.resolve_clients(config)
        warnings = _warnings(*preflight.check_simulation(config))
    with interruptible():
        folder = RunFolder.create(config, default_name)
        _warn(warnings)
        try:
            _launch(Launch(config, folder, python_path=python_path), connection, quiet=quiet)
        except UserError:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
    return folder


def _check(config: RunConfig, connection: str | None) -> tuple[str, ...]:
    """The quick checks; returns where a user's own models are looked for."""
    if config.engine == "inline" and connection is not None:
        raise UserError(
            "engine: 'inline' is not possible with --superlink: its nodes are the clients"
        )
    preflight.check_installation()
    preflight.check_out(config)
    if connection is not None:  # the nodes bring their own data, models and devices
        return ()
    _announce(config)
    return tuple(preflight.python_path(config))


def _announce(config: RunConfig) -> None:
    """Say why nothing happens for a while; in a pipe a mistake must stay the only line."""
    quick = config.dataset == "digits" or config.dataset.startswith("synthetic")
    if not quick and sys.stderr.isatty():
        _say(f"reading {config.dataset} (decoded once, then cached) ...")


def _warnings(dataset: Dataset, partition: Partition) -> list[str]:
    return [*dataset.warnings, *partition.warnings]


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        _say(f"warning: {line}")


def _say(line: str) -> None:
    """A line for people; what programs read goes to stdout."""
    print(f"fedhet: {line}", file=sys.stderr, flush=True)


def _launch(launch: Launch, connection: str | None, *, quiet: bool) -> None:
    """Run to the end, with a progress bar; the caller has made signals interrupt."""
    lock = take_over(launch.folder)
    config = launch.config
    try:
        if launch.resume and launch.folder.started_config() != config.flat():
            launch.folder.change_config(config)
        with RunProgress(config.method, config.rounds, quiet=quiet) as progress:
            if connection is None:
                engine(config)(launch, progress.update)
            else:
                submit_remote(launch, connection, progress.update)
    except BaseException as error:
        if isinstance(error, Interrupted) or launch.folder.rounds.exists():
            _say(f"continue it with: fedhet resume {launch.folder.path}")
        raise
    finally:
        lock.release()


def engine(config: RunConfig) -> Callable[[Launch, OnRounds], None]:
    """What runs a simulation: Flower's on Ray, or this process."""
    if config.engine == "inline":
        from fedhet.runtime import inline  # noqa: PLC0415  (both apps and every method)

        return inline.run
    return simulate


def _print_result(folder: RunFolder, *, as_json: bool) -> None:
    """The result; the run folder is the last line, or a key of the JSON."""
    summary = _summary(folder)
    if as_json:
        print(json.dumps(summary | {"folder": str(folder.path)}, indent=2))
        return
    if summary:
        print(
            f"{summary['method']}: test accuracy {percent(summary['test_accuracy_mean'])} "
            f"(10th percentile of clients {percent(summary['test_accuracy_p10'])}), "
            f"{summary['rounds']} rounds in {show.duration(summary['wall_seconds'])}, "
            f"{len(summary['failures'])} failures"
        )
    print(folder.path)


def _summary(folder: RunFolder) -> dict[str, Any]:
    """``summary.json``; empty where a remote server keeps it."""
    try:
        return dict(json.loads(folder.summary.read_text(encoding="utf-8")))
    except OSError:
        return {}


def resume(path: Path, overrides: Sequence[str], *, connection: str | None, as_json: bool) -> None:
    """``fedhet resume``: go on after the last finished round."""
    folder = RunFolder(path.expanduser().absolute())
    config = resumed_config(folder.started_config(), overrides)
    _check_resumable(folder, config)
    python_path = _check(config, connection)
    if connection is None:
        config = preflight.resolve_clients(config)
        preflight.check_simulation(config)
    with interruptible():
        launch = Launch(config, folder, resume=True, python_path=python_path)
        _launch(launch, connection, quiet=as_json)
    _print_result(folder, as_json=as_json)


def _check_resumable(folder: RunFolder, config: RunConfig) -> None:
    """UserError if there is nothing left to do, or nothing to go on from."""
    completed = _summary(folder).get("status") == "completed"
    finished = max((record["round"] for record in folder.read_rounds()), default=0)
    if config.rounds < finished:
        raise UserError(f"rounds: {config.rounds} is not allowed: {finished} are finished already")
    if completed and config.rounds == folder.started_config()["rounds"]:
        raise UserError(
            f"run '{folder.path}' is completed: there is nothing to resume; rounds=N with N > "
            f"{config.rounds} adds rounds"
        )
    if completed and not config.keep_state:
        raise UserError(
            f"run '{folder.path}' cannot go on: with keep-state=false the clients' states were "
            "deleted at its end"
        )
    if config.state_backend == "context":
        raise UserError(
            f"run '{folder.path}' cannot be resumed: with state-backend=context the clients' "
            "states ended with its processes"
        )


def demo(out: str) -> None:
    """``fedhet demo``: three methods on the digits, then a table."""
    base = Path(out).expanduser().absolute() / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    rows = []
    for method in DEMO_METHODS:
        words = (*DEMO, f"method={method}", f"out={base}", f"name={method}")
        folder = _run(load_config(None, words), method, None, quiet=False)
        rows.append(_demo_row(folder))
    show_table(
        "10 clients with 4 of 10 classes each, models CNN-1 to CNN-5",
        ("method", "accuracy", "10th percentile", "floats up", "floats down", "GFLOPs", "seconds"),
        rows,
    )
    print("accuracy: own test images, mean over clients; floats and GFLOPs: per client and round")
    print(base)


def _demo_row(folder: RunFolder) -> list[str]:
    summary = _summary(folder)
    replies = sum(record["replied"] for record in folder.read_rounds())
    return [
        summary["method"],
        percent(summary["test_accuracy_mean"]),
        percent(summary["test_accuracy_p10"]),
        f"{summary['uplink_floats_per_client_round']:,.0f}",
        f"{summary['downlink_floats_per_client_round']:,.0f}",
        f"{summary['train_flops_total'] / max(1, replies) / 1e9:.1f}",
        f"{summary['wall_seconds']:.0f}",
    ]


def methods(*, as_json: bool) -> None:
    """``fedhet methods``: names and their own keys."""
    table: list[dict[str, Any]] = []
    for name, method in METHODS.items():
        fields = {field.alias: field for field in method.params.model_fields.values()}
        keys = {
            key: {"default": fields[key].default, "meaning": fields[key].description}
            for key in sorted(method_keys(method), key=list(fields).index)
        }
        table.append({"name": name, "about": method.about, "keys": keys})
    if as_json:
        print(json.dumps(table, indent=2))
        return
    for row in table:
        print(f"{row['name']}: {row['about']}")
        for key, what in row["keys"].items():
            default = json.dumps(what["default"]).strip('"')
            print(f"    {key}={default}  {what['meaning']}")


def models(classes: int, *, as_json: bool) -> None:
    """``fedhet models``: sizes and costs."""
    table = model_table(MODEL_NAMES, classes)
    if as_json:
        print(json.dumps(table, indent=2))
        return
    rows = [
        (row["name"], row["parameters"], f"{row['mib']:.2f}", row["buffers"], row["forward_flops"])
        for row in table
    ]
    columns = ("model", "parameters", "MiB", "buffers (private)", "FLOPs per image, forward")
    show_table(f"{classes} classes, 32 x 32 pixels", columns, rows)
    print("buffers: BatchNorm statistics, which no method ever sends; or your own: module:factory")


def partition(config_name: str, overrides: Sequence[str], out: Path, *, as_json: bool) -> None:
    """``fedhet partition``: who holds what, as a table and as a bubble plot."""
    from fedhet.data.plot import bubble_plot  # noqa: PLC0415  (matplotlib: a second at import)

    config = preflight.absolute_paths(load_config(find_preset(config_name), overrides))
    _announce(config)
    config = preflight.resolve_clients(config)
    dataset, made = load_partition(config, config.clients)
    warnings = _warnings(dataset, made)
    _warn(warnings)
    counts = made.counts(dataset.labels, len(dataset.classes))
    picture = out.expanduser().absolute() / "partition.png"
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        bubble_plot(counts, dataset.classes, picture)
    except OSError as error:
        raise UserError(f"'{picture}' cannot be written: {error.strerror}") from error
    if as_json:
        rows = dict(zip(made.ids, counts.tolist(), strict=True))
        document = {"classes": dataset.classes, "clients": rows, "warnings": warnings}
        print(json.dumps(document | {"picture": str(picture)}))
        return
    _partition_table(counts, dataset.classes, made.ids)
    print(picture)


def _partition_table(counts: Indices, classes: Sequence[str], ids: Sequence[str]) -> None:
    """Client x class; with many classes only those that each client holds."""
    if len(classes) <= WIDEST:
        rows = [
            (client, *(int(n) or "" for n in row), int(row.sum()))
            for client, row in zip(ids, counts, strict=True)
        ]
        show_table("images per client and class", ("client", *classes, "all"), rows)
        return
    held = [[f"{name}: {n}" for name, n in zip(classes, row, strict=True) if n] for row in counts]
    rows = [
        (client, ", ".join(own), int(row.sum()))
        for client, own, row in zip(ids, held, counts, strict=True)
    ]
    show_table("images per client and class", ("client", "images of each class", "all"), rows)

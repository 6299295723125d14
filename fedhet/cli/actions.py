"""What the commands of ``fedhet`` do; :mod:`fedhet.cli.app` reads their arguments."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from fedhet.cli import execute
from fedhet.cli.display import RunProgress, show_table
from fedhet.cli.saying import tell
from fedhet.cli.sweep import Progress as SweepProgress
from fedhet.config.load import load_config, load_noted
from fedhet.data.images import Indices
from fedhet.data.inputs import noun
from fedhet.deploy.control import tls_of
from fedhet.engines import session
from fedhet.engines.fork_server import start_early
from fedhet.engines.session import find_preset
from fedhet.engines.system import interruptible
from fedhet.errors import RunFailed, UserError, one_line
from fedhet.files import plain_path
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import UNSUMMED, duration, headline, percent
from fedhet.records.verification import SHOWN
from fedhet.site.local_data import load_partition
from fedhet.sweeps.grid import Cell
from fedhet.sweeps.sweep import FINISHED, Job, Sweep

DEMO_METHODS = ("standalone", "lg_fedavg", "fedssa")
DEMO = (
    "dataset=digits", "clients=10", "classes-per-client=4", "rounds=14", "local-epochs=1",
    "batch-size=16", "engine=inline",
)  # fmt: skip
PICTURES = (".png", ".svg", ".pdf")
WIDEST = 20  # classes that a table can show side by side


def console(*, quiet: bool) -> session.Console:
    """A progress bar or lines for people; ``quiet``: nothing on stdout, which a program reads."""
    return session.Console(tell, partial(RunProgress, quiet=quiet))


def run(
    config_name: str,
    overrides: Sequence[str],
    *,
    connection: str | None,
    watching: bool = False,
    as_json: bool,
) -> None:
    """``fedhet run``; ``watching``: with a page of it meanwhile."""
    path = find_preset(config_name)
    config, notes = load_noted(path, overrides, deployed=connection is not None)
    if connection is None and config.engine == "processes":
        start_early()
    shown = console(quiet=as_json)
    if watching:
        from fedhet.cli.watch import beside  # noqa: PLC0415  (a web server)

        shown = replace(shown, beside=beside(tell, tls_of(connection)))
    folder = session.start(config, path.stem, shown, connection, notes=notes)
    _print_result(folder, as_json=as_json)


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        tell(f"warning: {line}")


def _print_result(folder: RunFolder, *, as_json: bool) -> None:
    """The result; the run folder is the last line, or a key of the JSON."""
    summary = folder.read_summary()
    if as_json:
        print(json.dumps(summary | {"folder": str(folder.path)}, indent=2))
        return
    if summary:
        method = one_line(summary["method"])
        metric = summary.get("metric", "accuracy")
        own = f"test {headline(metric, summary)}, " if metric != "accuracy" else ""
        print(
            f"{method}: {own}test accuracy {percent(summary['test_accuracy_mean'])} "
            f"(10th percentile of clients {percent(summary['test_accuracy_p10'])}), "
            f"{summary['rounds']} rounds in {duration(summary['wall_seconds'])}, "
            f"{len(summary['failures'])} failures"
        )
        for first in summary["failures"][:1]:
            where = f"round {first['round']}, client {first['client']}: {first['reason']}"
            print(f"the first failure: {one_line(where)}")
        summed = summary.get("secure_sum", {})
        if few := summed.get(UNSUMMED):
            print(
                f"{few} classes had fewer than sum-owners={summed['sum_owners']} owners: their "
                "rows are in no sum (docs/how-to/private-sums.md)"
            )
        for lost in summary["clients_lost"]:
            about = f"is lost since round {lost['round']}: {lost['reason']}"
            print(one_line(f"client {lost['client']} {about}", None))
    print(folder.path)


def resume(
    path: Path,
    overrides: Sequence[str],
    *,
    connection: str | None,
    as_json: bool,
    accept_lost: bool,
    trust: bool = False,
) -> None:
    """``fedhet resume``: go on after the last finished round."""
    if connection is None:
        start_early()
    shown = console(quiet=as_json)
    folder = session.resume(
        path, overrides, shown, connection, accept_lost=accept_lost, trust=trust
    )
    _print_result(folder, as_json=as_json)


def verify(path: Path, *, as_json: bool, trust: bool = False) -> None:
    """``fedhet verify``: hold what a run left behind against itself."""
    folder, found = session.verify(path, trust=trust)
    if as_json:
        damage = [{"what": one.text, "client": one.client} for one in found.findings]
        document = {"folder": str(folder.path), "rounds": found.rounds, "states": found.states}
        print(json.dumps(document | {"damage": damage}, indent=2))
    elif len(found.findings) > SHOWN:  # an error names no more
        for one in found.findings:
            print(one_line(one.text, None))
        found.raise_counted()
    found.raise_for()
    if not as_json:
        print(f"{found.rounds} rounds and {found.states} states fit together")
        print(folder.path)


def demo(out: str, *, as_json: bool) -> None:
    """``fedhet demo``: three methods on the digits side by side, then a table."""
    base = plain_path(out) / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    cells = [
        Cell({"method": method}, load_config(None, [*DEMO, f"method={method}", f"name={method}"]))
        for method in DEMO_METHODS
    ]
    found = Sweep("demo", base, [Job(cell, base / cell.config.name) for cell in cells], execute)
    tell(f"starting {len(cells)} runs side by side, one process each; logs: {found.folder}")
    with interruptible(), SweepProgress(found, quiet=as_json) as progress:
        found.run(len(cells), progress.update)
    for job in found.jobs:
        if job.state != FINISHED:
            raise RunFailed(f"{job.cell.config.method} {job.state}: {job.reason} ({base})")
    folders = [RunFolder(job.folder) for job in found.jobs]
    if as_json:
        rows = [folder.read_summary() | {"folder": str(folder.path)} for folder in folders]
        print(json.dumps(rows, indent=2))
        return
    show_table(
        "10 clients with 4 of 10 classes each, models CNN-1 to CNN-5",
        ("method", "accuracy", "10th percentile", "floats up", "floats down", "GFLOPs", "seconds"),
        [_demo_row(folder) for folder in folders],
    )
    print("accuracy: own test images, mean over clients; floats and GFLOPs: per client and round")
    print(base)


def _demo_row(folder: RunFolder) -> list[str]:
    summary = folder.read_summary()
    replies = sum(record["replied"] for record in folder.read_rounds())
    return [
        summary["method"],
        percent(summary["test_accuracy_mean"]),
        percent(summary["test_accuracy_p10"]),
        f"{summary['uplink_floats_per_client_round']:,.0f}",
        f"{summary['downlink_floats_per_client_round']:,.0f}",
        f"{(summary['train_flops_total'] or 0) / max(1, replies) / 1e9:.1f}",
        f"{summary['wall_seconds']:.0f}",
    ]


def partition(
    config_name: str, overrides: Sequence[str], plot: Path | None, *, as_json: bool
) -> None:
    """``fedhet partition``: who holds what, as a table and, if asked for, as a bubble plot."""
    picture = plain_path(plot) if plot else None
    if picture and picture.suffix not in PICTURES:
        raise UserError(
            f"--plot: '{plot}' is not allowed: its name ends in {' or '.join(PICTURES)}"
        )
    config = session.absolute_paths(load_config(find_preset(config_name), overrides))
    session.announce(config, console(quiet=as_json))
    config = session.resolve_clients(config)
    dataset, made = load_partition(config, config.clients)
    warnings = [*dataset.warnings, *made.warnings]
    for line in dataset.notes:
        tell(f"note: {line}")
    _warn(warnings)
    counts = made.counts(dataset.labels, len(dataset.classes))
    what = noun(config.dataset)
    if picture:
        _draw(counts, dataset.classes, picture, what)
    if as_json:
        rows = dict(zip(made.ids, counts.tolist(), strict=True))
        document = {"classes": dataset.classes, "clients": rows, "warnings": warnings}
        print(json.dumps(document | {"picture": str(picture) if picture else None}))
        return
    _partition_table(counts, dataset.classes, made.ids, what)
    if picture:
        print(picture)


def _draw(counts: Indices, classes: Sequence[str], picture: Path, what: str) -> None:
    from fedhet.data.plot import bubble_plot  # noqa: PLC0415  (matplotlib: a second at import)

    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        bubble_plot(counts, classes, picture, what)
    except OSError as error:
        raise UserError(f"--plot: '{picture}' cannot be written: {error.strerror}") from error


def _partition_table(
    counts: Indices, classes: Sequence[str], ids: Sequence[str], what: str
) -> None:
    """Client x class; with many classes only those that each client holds."""
    if len(classes) <= WIDEST:
        rows = [
            (client, *(int(n) or "" for n in row), int(row.sum()))
            for client, row in zip(ids, counts, strict=True)
        ]
        show_table(f"{what} per client and class", ("client", *classes, "all"), rows)
        return
    held = [[f"{name}: {n}" for name, n in zip(classes, row, strict=True) if n] for row in counts]
    rows = [
        (client, ", ".join(own), int(row.sum()))
        for client, own, row in zip(ids, held, counts, strict=True)
    ]
    show_table(f"{what} per client and class", ("client", f"{what} of each class", "all"), rows)

"""Commands about one run: run, resume, verify, partition, watch, export and predict."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from fedhet.cli import common
from fedhet.cli.common import Best, ConfigName, Connection, Json, Overrides, Trust, tell
from fedhet.engines.system import Interrupted, interruptible
from fedhet.errors import UserError, one_line
from fedhet.files import plain_path

if TYPE_CHECKING:
    from fedhet.records.run_folder import RunFolder

WIDEST = 20  # classes that a table can show side by side


def run(  # noqa: PLR0913, PLR0917  (one argument per option)
    config: ConfigName,
    overrides: Overrides = None,
    out: Annotated[str, Option(help="folder of run folders")] = "",
    name: Annotated[str, Option(help="name of the run folder")] = "",
    superlink: Connection = None,
    as_json: Json = False,
) -> None:
    """Run a configuration; the last line printed is the run folder."""
    from fedhet.config.load import find_preset, load_noted

    words = list(overrides or [])
    words += [f"{key}={value}" for key, value in (("out", out), ("name", name)) if value]
    path = find_preset(config)
    loaded, notes = load_noted(path, words, deployed=superlink is not None)
    from fedhet.engines import session  # torch: a mistake above is told without it
    from fedhet.engines.fork_server import start_early

    if superlink is None and loaded.engine == "processes":
        start_early()
    console = session.Console(tell, partial(common.RunProgress, mode="json" * as_json))
    folder = session.start(loaded, path.stem, console, superlink, notes=notes)
    _print_result(folder, as_json=as_json)


def _print_result(folder: "RunFolder", *, as_json: bool) -> None:
    """Print the result; the run folder is the last line, or a key of the JSON."""
    from fedhet.records.summary import UNSUMMED, duration, headline, left_out, percent

    summary = folder.read_summary()
    if as_json:
        print(json.dumps(summary | {"folder": str(folder.path)}, indent=2))
        return
    if summary:
        metric, failures = summary.get("metric", "accuracy"), summary["failures"]
        main = f"test {headline(metric, summary)}, " if metric != "accuracy" else ""
        p10 = summary["test_accuracy_p10"]  # none where only sums are known
        low = "" if p10 is None else f" (10th percentile of clients {percent(p10)})"
        few, all_ = summary["clients"], summary.get("clients_expected", 0)
        fewer = f"{few} of {all_} clients took part; " if few < all_ else ""
        summed = summary.get("secure_sum", {})
        unsummed = [summed[UNSUMMED]] if summed.get(UNSUMMED) else []
        for line in (
            f"{summary['method']}: {fewer}{main}test accuracy "
            f"{percent(summary['test_accuracy_mean'])}{low}, {summary['rounds']} rounds in "
            f"{duration(summary['wall_seconds'])}, {len(failures)} failures",
            *(f"the first failure: round {f['round']}, {left_out(f)}" for f in failures[:1]),
            *(f"{few} classes had fewer than sum-owners={summed['sum_owners']} owners, so their "
              "rows were not shared (docs/how-to/private-sums.md)" for few in unsummed),
            *(f"client {lost['client']} is lost since round {lost['round']}: {lost['reason']}"
              for lost in summary["clients_lost"]),
        ):  # fmt: skip
            print(one_line(line, None))
    print(folder.path)


def resume(  # noqa: PLR0913, PLR0917
    run_folder: common.RunFolderPath,
    overrides: Overrides = None,
    superlink: Connection = None,
    accept_lost: Annotated[bool, Option(help="leave out clients without a state")] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Continue a run after its last finished round; rounds=N extends a finished one."""
    from fedhet.config.load import read_overrides
    from fedhet.engines import session
    from fedhet.engines.fork_server import start_early

    if superlink is None:
        start_early()
    console = session.Console(tell, partial(common.RunProgress, mode="json" * as_json))
    folder = session.resume(
        run_folder, read_overrides(overrides or []), console, superlink,
        accept_lost=accept_lost, trust=trust,
    )  # fmt: skip
    _print_result(folder, as_json=as_json)


def verify(run_folder: common.RunFolderPath, trust: Trust = False) -> None:
    """Check a run folder: lines, checkpoint, summary and states against each other."""
    from fedhet.engines import session
    from fedhet.records.verification import SHOWN

    folder, result = session.verify(run_folder, trust=trust)
    if len(result.findings) > SHOWN:  # an error names no more
        for one in result.findings:
            print(one_line(one, None))
    result.raise_for()
    print(f"{result.rounds} rounds and {result.states} states fit together")
    print(folder.path)


def partition(config: ConfigName, overrides: Overrides = None) -> None:
    """Show how many examples of each class each client gets."""
    from fedhet.config.load import absolute_paths, find_preset, load_config
    from fedhet.data.inputs import noun
    from fedhet.engines import session
    from fedhet.site.local_data import load_partition

    loaded = absolute_paths(load_config(find_preset(config), overrides or []))
    session.announce(loaded, tell)
    loaded = session.resolve_clients(loaded)
    dataset, dealt = load_partition(loaded, loaded.clients)
    for line in session.remarks(dataset, dealt):
        tell(line)
    counts, what = dealt.counts(dataset.labels, len(dataset.classes)), noun(loaded.dataset)
    columns: Sequence[str] = dataset.classes
    cells: list[list[Any]] = [[int(n) or "" for n in row] for row in counts]
    if len(columns) > WIDEST:  # those that a client has
        named = [zip(columns, row, strict=True) for row in counts]
        cells = [[", ".join(f"{name}: {n}" for name, n in row if n)] for row in named]
        columns = (f"{what} of each class",)
    sums = counts.sum(axis=1).tolist()
    rows = [(one, *cell, total) for one, cell, total in zip(dealt.ids, cells, sums, strict=True)]
    common.show_table(f"{what} per client and class", ("client", *columns, "all"), rows)


def watch(
    place: Annotated[Path, Argument(metavar="RUN_OR_SWEEP", help="one, or a folder of runs")],
    port: Annotated[int, Option(min=0, max=65535, help="0: any free port")] = 0,
    plain: Annotated[bool, Option("--plain", help="lines of text instead of a page")] = False,
) -> None:
    """Show a run or sweep, running or finished, as a page on 127.0.0.1 or as text."""
    if port and plain:
        raise UserError("--port cannot be used with --plain: give one of them")
    from fedhet.watch.server import listen, page_server
    from fedhet.watch.view import follow, open_view

    view = open_view(place)
    try:
        with interruptible():
            if plain:
                for line in follow(view):
                    print(line, flush=True)
                return
            with listen(port) as listening:
                server, address = page_server(view, listening)
                tell("Ctrl-C ends it; the run goes on")
                print(address, flush=True)
                server.run([listening])
    except Interrupted:
        return


def export(  # noqa: PLR0913, PLR0917  (options of a command)
    state: Annotated[Path, Argument(metavar="STATE|RUN", help="RUN/state/*/CLIENT, or a run")],
    out: Annotated[Path, Option(help="new folder for the model")],
    best: Best = False,
    predictions: Annotated[bool, Option("--predictions", help="RUN's, to OUT.csv")] = False,
    onnx: Annotated[bool, Option("--onnx", help="write model.onnx as well")] = False,
    trust: Trust = False,
) -> None:
    """Export a client's personalised model; the last line is the folder."""
    from fedhet.export import model

    if predictions:
        print(f"{model.export_predictions(state, out, trust=trust)} examples: {plain_path(out)}")
        return
    print(model.export(state, out, best=best, onnx=onnx, trust=trust))


def predict(
    model: Annotated[Path, Argument(metavar="MODEL", help="exported, or a client's states")],
    examples: Annotated[list[Path], Argument(metavar="FILES...", help="images, CSV, NPZ, texts")],
    out: Annotated[Path, Option(help="CSV to write")] = Path("predictions.csv"),
    best: Best = False,
    trust: Trust = False,
) -> None:
    """Classify examples with an exported model: a CSV with a probability per class."""
    from fedhet.config.schema import METRICS
    from fedhet.export.model import predict as classify

    answers = classify(model, examples, out, best=best, trust=trust)
    if answers.warning:
        tell(f"warning: {answers.warning}")
    if answers.metrics:
        each = [f"{METRICS[n].title} {METRICS[n].text(v)}" for n, v in answers.metrics.items()]
        print(f"{', '.join(each)} of {answers.labelled} {answers.what} with a class")
    print(f"{len(answers.frame)} {answers.what}: {out}")

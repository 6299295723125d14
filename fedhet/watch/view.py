"""Read a run folder or a folder of runs as one value, a look, for the page and the terminal.

Only files are read, and a server's Control API with ``--superlink``. A look has columns and tables;
a column is a title and a kind: text, count, percent, number, bytes.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fedhet.config.schema import METRICS
from fedhet.errors import Damaged, RunFailed, UserError, one_line
from fedhet.files import NOBODY, client_order, read_json, read_yaml, shaped
from fedhet.records.formats import Started, read_evaluations, read_partition
from fedhet.records.run_folder import LOCK, RunFolder, held
from fedhet.records.summary import duration, percent, seconds_left

WAITING, RUNNING, IDLE, GONE = "waiting", "running", "not running", "gone"
PENDING, FINISHED, DIVERGED = "pending", "finished", "diverged"
FAILED, BROKEN = "failed", "broken off"
ASK = 5.0  # seconds between questions to a lock or a server
CLIENTS, FAILURES, ROUNDS, CELLS = 500, 100, 2_000, 2_000  # that are shown at most
BLOCKS = ("partition-seed", "seed")  # keys that make a grid's columns
Look = dict[str, Any]
Columns = Sequence[tuple[str, str]]
Line = Mapping[str, Any]  # of rounds.jsonl


def open_view(path: Path | None, superlink: str = "") -> "RunView | SweepView":
    """Open a run folder or a folder of runs; raise UserError if it is neither.

    With ``superlink``, the folder that `fedhet server` was given, the sites of that server are
    shown with it; without ``path`` it is the server's last run.
    """
    sites = ServerSites(Path(superlink).expanduser().absolute()) if superlink else None
    if path is None:
        if sites is None:
            raise UserError("watch: give a run folder or a sweep's, --superlink TLS, or both")
        path = sites.last_run()
    path = path.expanduser().absolute()
    if (path / "config.yaml").is_file():
        return RunView(path, sites)
    if not path.exists():
        raise UserError(f"'{path}' does not exist; `fedhet runs DIR` lists the run folders in DIR")
    if not any([*path.glob("sweeps/*/sweep.json"), *path.glob("*/config.yaml")]):
        raise UserError(
            f"'{path}' is not a run folder (it has no config.yaml) nor a sweep's: give one of them"
        )
    if sites is not None:
        raise UserError("--superlink is only used with a single run: name one, or leave it out")
    return SweepView(path)


class _Files:
    """Reads files when they have changed; names those that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: dict[Path, str] = {}
        self._read: dict[Path, tuple[object, Any]] = {}

    def get(self, path: Path, read: Callable[[], Any], default: Any) -> Any:
        """Return a file's content; ``default`` while it is not there, or is damaged."""
        try:
            found = path.stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._read.get(path, (None,))[0] != seen:
                self._read[path] = seen, default
                self._read[path] = seen, read()
                self.problems.pop(path, None)
            return self._read[path][1]
        except FileNotFoundError:
            self._read.pop(path, None)
        except (OSError, UserError, Damaged) as error:
            self.problems[path] = one_line(str(error).replace(f"{self.folder}/", ""), 300)
        return default


class _Recent:
    """An answer that is requested again after :data:`ASK` seconds."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.at, self.answer = ask, -ASK, None

    def __call__(self) -> Any:
        if time.monotonic() - self.at >= ASK:
            self.at = time.monotonic()
            with contextlib.suppress(Damaged):  # not a lock of a run, such as a link
                self.answer = self.ask()
        return self.answer


def _read_config(path: Path) -> dict[str, Any]:
    """Return a configuration, with the types checked of the keys that a look uses."""
    config = read_yaml(path)
    shaped(Started, config, f"'{path}'")
    return config


class RunView:
    """A run folder; its texts are shown, and nothing else is done with them."""

    def __init__(self, path: Path, sites: "ServerSites | None" = None) -> None:
        self.folder, self.sites = RunFolder(path), sites
        self.files = _Files(path)
        self.runs: Mapping[str, RunView] = {}  # inside this one there is none
        self._written = _Recent(self.folder.being_written)

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        """Return summary, lines of the rounds and configuration, each empty while there is none."""
        folder, get = self.folder, self.files.get
        summary = get(folder.summary, folder.read_summary, {})  # first: a run writes it last
        rounds = get(folder.rounds, folder.read_rounds, [])
        return summary, rounds, get(folder.config, partial(_read_config, folder.config), {})

    def status(self, summary: Mapping[str, Any], begun: object) -> tuple[str, str]:
        """Return the state of the run, and a sentence about it."""
        if summary:
            return one_line(summary["status"], 40), one_line(summary["reason"], 500)
        if not self.folder.path.is_dir():
            return GONE, "the folder does not exist"
        if not self._written():
            said = "it was interrupted; `fedhet resume` continues it"
            return IDLE, said if begun else "it has not begun, or was interrupted"
        waits = self.folder.waits_for()
        if waits or not begun:
            return WAITING, waits or "it is starting: no round is finished yet"
        return RUNNING, ""

    def look(self) -> Look:
        """Read what is new; never raise for the content of files."""
        folder, get = self.folder, self.files.get
        summary, rounds, config = self.read()
        status, says = self.status(summary, rounds)
        lines = get(folder.clients, lambda: read_evaluations(folder.clients), ())
        scores = {line.client: line for line in lines}
        dealt = get(folder.partition, lambda: read_partition(folder.partition), None)
        examples = {client: sum(row) for client, row in dealt.counts.items()} if dealt else {}
        metrics = _metrics(config, rounds)
        failed = [
            (line["round"], one_line(one["client"], 80), one_line(one["reason"], 300))
            for line in rounds for one in line["failures"]
        ]  # fmt: skip
        tables = [_clients(rounds, scores, examples, failed, metrics)]
        if failed:
            heads = [("round", "count"), ("client", "text"), ("why", "text")]
            newest = [
                (at, "", f"the round is lost: {why}") if client == NOBODY else (at, client, why)
                for at, client, why in failed[: -FAILURES - 1 : -1]
            ]
            more = len(failed) - len(newest)
            tables.append(_table("failures", "Failures", heads, newest, more))
        if self.sites is not None:
            times = Counter(client for _, client, _ in failed)
            tables.insert(0, self.sites.table(scores, times))
            self.files.problems |= {Path("sites"): self.sites.problem}
        columns, rows = _rounds(rounds, *metrics)
        wanted = config.get("rounds", 0)
        facts = {"round": f"{len(rows)} of {wanted or '?'}"}
        left = seconds_left([line["seconds"] for line in rounds], wanted)
        if status == RUNNING and wanted and left is not None:
            facts["time left"] = f"about {duration(left)}"
        facts |= _facts(columns, rows)
        if examples:
            facts["clients"] = f"{len(examples):,}"
        step = 1 + len(rows) // ROUNDS
        return {
            "name": one_line(folder.path.name, 200),
            "title": one_line(f"{config.get('method', '?')} on {config.get('dataset', '?')}", 160),
            "status": status, "over": status not in {RUNNING, WAITING}, "says": says,
            "facts": list(facts.items()),
            "tables": tables, "grids": [], "columns": columns, "of": len(rows),
            "rounds": rows[(len(rows) - 1) % step :: step],
            "curves": [
                {"title": _figure(metrics[0])[0], "lines": [["test", 1], ["validation", 2]]
                 + [["10th percentile", 4]] * (metrics[0] == "accuracy")},
                {"title": "Training loss", "lines": [["loss", 5]]},
                {"title": "Traffic", "lines": [["up", 11], ["down", 12]]},
            ],
            "damage": [problem for problem in self.files.problems.values() if problem],
        }  # fmt: skip


def _metrics(config: Mapping[str, Any], rounds: Sequence[Line]) -> tuple[str, str]:
    """Return the run's headline and a second metric; empty where accuracy alone was recorded."""
    last = rounds[-1] if rounds else {}
    known = [name for name in METRICS if f"test_{name}_mean" in last] or ["accuracy"]
    asked = config.get("metric", "accuracy")
    metric = asked if asked in known else "accuracy"
    beside = [n for n in ("balanced_accuracy", "accuracy") if n in known and n != metric]
    return metric, beside[0] if beside else ""


def _figure(metric: str) -> tuple[str, str]:
    """Return the title and the kind of a metric's column."""
    about = METRICS.get(metric)
    return (about.title, "percent" if about.percent else "number") if about else ("", "percent")


def _rounds(rounds: Sequence[Line], metric: str, second: str) -> tuple[Columns, list[list[Any]]]:
    """Return columns and a row a round; a column without a title is not shown."""

    def of(key: str) -> list[Any]:
        return [line.get(key) for line in rounds]

    up, down = of("uplink_bytes"), of("downlink_bytes")
    of_accuracy = "" if metric == "accuracy" else " of accuracy"
    table = [
        ("round", "count", of("round")),
        (*_figure(metric), of(f"test_{metric}_mean")),
        ("validation", _figure(metric)[1], of(f"val_{metric}_mean")),
        (*_figure(second), of(f"test_{second}_mean")),
        (f"10th percentile{of_accuracy}", "percent", of("test_accuracy_p10")),
        ("training loss", "number", of("train_loss")),
        ("asked", "count", of("sampled")),
        ("replied", "count", of("replied")),
        ("failed", "count", [len(line["failures"]) for line in rounds]),
        ("sent up", "bytes", up),
        ("sent down", "bytes", down),
        ("up so far", "bytes", list(accumulate(up))),
        ("down so far", "bytes", list(accumulate(down))),
        ("seconds", "number", of("seconds")),
    ]
    columns = [(title, kind) for title, kind, _ in table]
    return columns, [list(row) for row in zip(*(values for *_, values in table), strict=True)]


def _facts(columns: Columns, rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    """Return the main numbers of the run; none before the first round."""
    if not rows:
        return {}
    last = dict(zip(columns, rows[-1], strict=True))
    shown = {title: word(value, kind) for (title, kind), value in last.items() if title}
    facts = {title: shown[title] for title in list(shown)[1:5] if title != "training loss"}
    return facts | {
        "replied": f"{shown['replied']} of {shown['asked']}",
        "failures": f"{sum(row[8] for row in rows):,}",
        "sent up": shown["up so far"], "sent down": shown["down so far"],
        "time so far": duration(sum(row[13] for row in rows)),
    }  # fmt: skip


def _clients(
    rounds: Sequence[Line], scores: Mapping[str, Any], examples: Mapping[str, int],
    failed: Sequence[tuple[int, str, str]], metrics: tuple[str, str],
) -> Look:  # fmt: skip
    """Return a table of the known clients; of too many those with failures first."""
    last = rounds[-1] if rounds else {}
    now = last.get("round", 0)
    trouble = {client: (at, why) for at, client, why in failed if client != NOBODY}
    times = Counter(client for _, client, _ in failed)
    lost = {one["client"]: f"lost: {one['reason']}" for one in last.get("lost", ())}
    known = {*scores, *examples, *lost, *trouble}
    chosen = sorted(known, key=lambda c: (c not in trouble, client_order(c)))[:CLIENTS]
    shown = [name for name in metrics if name]
    rows = []
    for client in sorted(chosen, key=client_order):
        score, (at, why) = scores.get(client), trouble.get(client, (0, ""))
        done = score.generation if score else None
        figures = vars(score) | dict(score.other) if score else {}
        rows.append(
            [client, one_line(score.model, 80) if score else "", examples.get(client), done,
             *(figures.get(f"test_{name}") for name in shown), times[client],
             "failed" if at == now > 0 else "replied" if done == now and now > 0 else "",
             one_line(lost.get(client, ""), 300) or (f"round {at}: {why}" if at else "")]
        )  # fmt: skip
    columns = [
        ("client", "text"), ("model", "text"), ("examples", "count"), ("last round", "count"),
        *map(_figure, shown),
        ("failures", "count"), ("in the last round", "text"), ("why", "text"),
    ]  # fmt: skip
    return _table("clients", "Clients", columns, rows, len(known) - len(rows))


def _table(
    name: str, title: str, columns: Columns, rows: Sequence[Any], more: int = 0, note: str = ""
) -> Look:
    table = {"name": name, "title": title, "columns": columns, "rows": rows}
    return table | {"more": more, "note": note}


class ServerSites:
    """The sites of a server of ours, asked through its Control API on this machine."""

    def __init__(self, tls: Path) -> None:
        """``tls``: the folder that `fedhet server` was given; UserError if it never was."""
        from fedhet.deploy.control import ServerFolder  # noqa: PLC0415  (Flower)

        folder = ServerFolder(tls)
        self.control = folder.connect()
        self.problem = ""
        self._nodes = _Recent(self._ask)

    def _ask(self) -> Sequence[Any]:
        try:
            self.problem = ""
            return sorted(self.control.nodes(), key=lambda node: node.name)
        except RunFailed as error:
            self.problem = one_line(error, 300)
            return self._nodes.answer or ()

    def last_run(self) -> Path:
        """Return the folder of the run that was submitted last and is on this machine."""
        for run in self.control.runs():
            if run.folder and Path(run.folder).is_dir():
                return Path(run.folder)
        raise UserError("watch: the folders of this server's runs are not here: name a run folder")

    def table(self, scores: Mapping[str, Any], failed: Mapping[str, int]) -> Look:
        """Return every site with the last round that it took part in, and its failures."""
        columns = [("site", "text"), ("now", "text"), ("since (UTC)", "text"),
                   ("last round", "count"), ("failures", "count")]  # fmt: skip
        rows = [
            [one_line(node.name or str(node.id), 80), node.status,
             node.since[:19].replace("T", " "),
             getattr(scores.get(node.name), "generation", None), failed.get(node.name, 0)]
            for node in self._nodes()
        ]  # fmt: skip
        return _table("sites", "Sites", columns, rows, note="offline: silent since then")


class SweepView:
    """All runs in a folder, such as a sweep's: its cells by what distinguishes them."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, _Files(path)
        self.runs: dict[str, RunView] = {}
        indexes = "sweeps/*/sweep.json"
        self._busy = _Recent(lambda: any(held(one.parent / LOCK) for one in path.glob(indexes)))

    def look(self) -> Look:
        """Read what is new; never raises for what the files say."""
        cells = [self._cell(*one) for one in self._listed()]
        counts = Counter(cell["state"] for cell in cells)
        over = not (counts[RUNNING] or self._busy())
        done = counts[FINISHED] + counts[DIVERGED] == len(cells) > 0
        facts = [(state, f"{number:,}") for state, number in sorted(counts.items())]
        facts.append(
            ("rounds", f"{sum(c['done'] for c in cells):,} of {sum(c['of'] for c in cells):,}")
        )
        paces = [cell["pace"] for cell in cells if cell["state"] == RUNNING and cell["pace"]]
        if paces:
            open_ = [cell for cell in cells if cell["state"] in {RUNNING, PENDING}]
            todo = sum(max(0, cell["of"] - cell["done"]) for cell in open_)
            facts.append(("time left", f"about {duration(todo * sum(paces) / len(paces) ** 2)}"))
        columns = [("cell", "text"), ("state", "text"), ("round", "text"), ("metric", "number"),
                   ("what", "text"), ("why", "text")]  # fmt: skip
        names = ("name", "state", "round", "figure", "what", "why")
        rows = [[cell[name] for name in names] for cell in cells]
        sweeps = dict.fromkeys(cell["sweep"] for cell in cells if cell["sweep"])
        return {
            "name": one_line(self.path.name, 200), "title": f"{len(cells):,} runs", "says": "",
            "status": ("completed" if done else IDLE) if over else RUNNING, "over": over,
            "facts": facts, "tables": [_table("cells", "Cells", columns, rows)],
            "grids": [_grid(name, [c for c in cells if c["sweep"] == name]) for name in sweeps],
            "columns": [], "rounds": [], "of": 0, "curves": [],
            "damage": list(self.files.problems.values()),
        }  # fmt: skip

    def _listed(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Return name, sweep and entry of every cell: those of an index first, then other runs."""
        found: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        for path in sorted(self.path.glob("sweeps/*/sweep.json")):
            cells = self.files.get(path, partial(read_json, path), {}).get("cells")
            for one in cells if isinstance(cells, list) else []:
                name = one.get("name") if isinstance(one, dict) else None
                if isinstance(name, str) and Path(name).name == name and "\0" not in name:
                    found.setdefault(name, (name, path.parent.name, one))
        for path in sorted(self.path.glob("*/config.yaml")):
            found.setdefault(path.parent.name, (path.parent.name, "", {}))
        return list(found.values())[:CELLS]

    def _cell(self, name: str, sweep: str, entry: Mapping[str, Any]) -> Look:
        run = self.runs.setdefault(name, RunView(self.path / name))
        summary, rounds, config = run.read()
        preset = self.path / "sweeps" / sweep / f"{name}.yaml"
        if not config and sweep:
            config = self.files.get(preset, partial(_read_config, preset), {})
        state, why = run.status(summary, rounds)
        told, problems = entry.get("state"), list(run.files.problems.values())
        idle = BROKEN if rounds else PENDING
        state = {"completed": FINISHED, WAITING: RUNNING, IDLE: idle, GONE: idle}.get(state, state)
        if told == DIVERGED and summary:
            state = DIVERGED
        elif problems and not summary:
            state, why = FAILED, problems[0]
        elif told == FAILED and state == idle:
            state, why = FAILED, str(entry.get("reason") or "")
        why = "" if state in {FINISHED, RUNNING, PENDING, BROKEN} else why
        metric, _ = _metrics(config, rounds)
        seconds = [line["seconds"] for line in rounds][-10:]
        values = entry.get("values")
        values = values if isinstance(values, dict) else {}
        done, of = summary.get("rounds", len(rounds)), config.get("rounds", 0)
        return {
            "name": name, "sweep": sweep, "state": state, "why": one_line(why, 200),
            "what": _label(values), "row": _label(values, without=BLOCKS) or "all",
            "column": _label({key: values[key] for key in BLOCKS if key in values}) or "run",
            "begun": run.folder.config.is_file(),
            "done": done, "of": of, "round": f"{done}/{of or '?'}",
            "figure": rounds[-1].get(f"test_{metric}_mean") if rounds else None,
            "pace": sum(seconds) / len(seconds) if seconds else None,
        }  # fmt: skip


def _grid(sweep: str, cells: Sequence[Look]) -> Look:
    """Return a row for every choice and a column for every block, in the order of the index."""
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    rows = {cell["row"]: dict.fromkeys(columns) for cell in cells}
    for cell in cells:
        text = "" if cell["figure"] is None else f"{cell['figure']:.2f}"
        if cell["state"] not in {FINISHED, PENDING}:
            text = " ".join(filter(None, [cell["state"], text, cell["round"]]))
        run = cell["name"] if cell["begun"] else ""
        shown = {"text": text or cell["state"], "state": cell["state"], "run": run}
        rows[cell["row"]][cell["column"]] = shown
    made = [(row, list(own.values())) for row, own in rows.items()]
    return {"title": one_line(sweep, 100), "columns": columns, "rows": made}


def _label(values: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """Return the values that distinguish a cell; a method without its key."""
    shown = [
        f"{value}" if key == "method" else f"{key}={value}"
        for key, value in values.items()
        if key not in without
    ]
    return one_line(" ".join(shown), 120)


def word(value: Any, kind: str) -> str:
    """Return a value as text; a dash for what is absent."""
    if value is None or value == "":
        return "-"
    if kind == "number":
        return f"{value:.4g}"
    texts: dict[str, Callable[[Any], str]] = {"percent": percent, "bytes": decimal}
    return texts.get(kind, str)(value)

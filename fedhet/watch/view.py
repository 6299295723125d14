"""What a run folder or a folder of runs says now, as one value for the page and the terminal.

Nothing is asked of the processes that train, except of a server's Control API with ``--superlink``.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedhet.config.schema import METRICS
from fedhet.errors import Damaged, RunFailed, UserError, one_line
from fedhet.files import NOBODY, client_order, read_json, read_yaml
from fedhet.records.formats import read_evaluations, read_partition
from fedhet.records.run_folder import LOCK, RunFolder, held
from fedhet.records.summary import duration, percent, seconds_left, size

WAITING, RUNNING, IDLE, GONE = "waiting", "running", "not running", "gone"
PENDING, FINISHED, DIVERGED, FAILED, BROKEN = (
    "pending",
    "finished",
    "diverged",
    "failed",
    "broken off",
)
ASK = 5.0  # seconds between questions to a lock or a server
CLIENTS, FAILURES, ROUNDS, CELLS = 500, 100, 2_000, 2_000  # that are shown at most
BLOCKS = ("partition-seed", "seed")  # keys that make a grid's columns
Look = dict[str, Any]


def open_view(path: Path | None, superlink: str = "") -> "RunView | SweepView":
    """Open a run folder or a folder of runs; raise UserError if it is neither.

    With ``superlink``, the folder that `fedhet server` was given, the sites of that server are
    shown with it; without ``path`` it is the server's last run.
    """
    sites = Sites(Path(superlink).expanduser().absolute()) if superlink else None
    if path is None:
        if sites is None:
            raise UserError("watch: give a run folder or a sweep's, --superlink TLS, or both")
        path = sites.last_run()
    path = path.expanduser().absolute()
    try:
        if (path / "config.yaml").is_file():
            return RunView(path, sites)
        if not path.exists():
            raise UserError(f"'{path}': no such run: `fedhet runs DIR` lists those of a folder")
        runs = path.is_dir() and any(
            [*path.glob("sweeps/*/sweep.json"), *path.glob("*/config.yaml")]
        )
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from error
    if not runs:
        raise UserError(
            f"'{path}': no run is there: give a run folder (it has config.yaml) or a sweep's"
        )
    if sites is not None:
        raise UserError("--superlink: only used with one run")
    return SweepView(path)


class _Files:
    """Reads files when they have changed; names those that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: dict[Path, str] = {}
        self._read: dict[Path, tuple[object, Any]] = {}

    def get(self, path: Path, read: Callable[[], Any], default: Any) -> Any:
        """The content of a file; ``default`` while it is not there, or is damaged."""
        try:
            found = path.stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._read.get(path, (None,))[0] != seen:
                self.problems.pop(path, None)
                self._read[path] = seen, default
                self._read[path] = seen, read()
        except FileNotFoundError:
            self.problems.pop(path, None)
            self._read.pop(path, None)
        except (OSError, UserError, Damaged) as error:
            self.problems[path] = one_line(str(error).replace(f"{self.folder}/", ""), 300)
        return self._read.get(path, (None, default))[1]


class _Asked:
    """An answer that is asked for again after :data:`ASK` seconds."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.at, self.answer = ask, -ASK, None

    def __call__(self) -> Any:
        if time.monotonic() - self.at >= ASK:
            self.at, self.answer = time.monotonic(), self.ask()
        return self.answer


class RunView:
    """A run folder; what it says is shown and believed no further."""

    def __init__(self, path: Path, sites: "Sites | None" = None) -> None:
        self.folder, self.sites = RunFolder(path), sites
        self.files = _Files(path)
        self._written = _Asked(self._being_written)

    def _being_written(self) -> bool:
        self.files.problems.pop(self.folder.path, None)
        try:
            return self.folder.being_written()
        except Damaged as error:
            self.files.problems[self.folder.path] = one_line(error, 300)
            return False

    def inside(self, _name: str) -> None:
        """A run has no other in it."""

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        """Summary, lines of the rounds and configuration, each empty while there is none."""
        folder, get = self.folder, self.files.get
        summary = get(folder.summary, folder.read_summary, {})  # first: a run writes it last
        rounds = get(folder.rounds, folder.read_rounds, [])
        return summary, rounds, get(folder.config, lambda: read_yaml(folder.config), {})

    def status(self, summary: Mapping[str, Any], begun: object) -> tuple[str, str]:
        """What the run is at, and a sentence about it."""
        if summary:
            return one_line(summary["status"], 40), one_line(summary["reason"], 500)
        if not self.folder.path.is_dir():
            return GONE, "the folder is not there any more"
        if not self._written():
            said = "it was broken off; `fedhet resume` goes on with it"
            return IDLE, said if begun else "it has not begun, or was broken off"
        waits = self.folder.waits_for()
        if waits or not begun:
            return WAITING, waits or "it is being started: no round is finished yet"
        return RUNNING, ""

    def look(self) -> Look:
        """Read what is new; never raises for what the files say."""
        folder, get = self.folder, self.files.get
        summary, rounds, config = self.read()
        status, says = self.status(summary, rounds)
        scores = {
            row.client: row
            for row in get(folder.clients, lambda: read_evaluations(folder.clients), ())
        }
        dealt = get(folder.partition, lambda: read_partition(folder.partition), None)
        examples = {client: sum(row) for client, row in dealt.counts.items()} if dealt else {}
        metric, second = _metrics(config, rounds)
        failed = [
            (line["round"], one_line(one["client"], 80), one_line(one["reason"], 300))
            for line in rounds for one in line["failures"]
        ]  # fmt: skip
        tables = [_clients(rounds, scores, examples, failed, (metric, second))]
        if failed:
            newest = failed[: -FAILURES - 1 : -1]
            titles = [("round", "count"), ("client", "text"), ("why", "text")]
            tables.append(_table("failures", "Failures", titles, newest, len(failed) - len(newest)))
        if self.sites is not None:
            times = Counter(client for _, client, _ in failed)
            tables.insert(0, self.sites.table(scores, times))
            self.files.problems |= {Path("sites"): self.sites.problem}
        clients = len(examples) or _count(config.get("clients"))
        columns, rows = _rounds(rounds, metric, second)
        return {
            "name": one_line(folder.path.name, 200),
            "title": f"{_text(config, 'method')} on {_text(config, 'dataset')}",
            "status": status, "over": status not in {RUNNING, WAITING}, "says": says,
            "facts": _facts(columns, rows, rounds, _count(config.get("rounds")), clients,
                            status == RUNNING),
            "tables": tables, "grids": [], "columns": columns, "of": len(rows),
            "rounds": rows[(len(rows) - 1) % (step := 1 + len(rows) // ROUNDS) :: step],
            "curves": [
                {"title": _said(metric), "lines": [["test", 1], ["validation", 2]]
                 + [["10th percentile", 4]] * (metric == "accuracy")},
                {"title": "Training loss", "lines": [["loss", 5]]},
                {"title": "Traffic", "lines": [["up", 11], ["down", 12]]},
            ],
            "damage": [problem for problem in self.files.problems.values() if problem],
        }  # fmt: skip


def _metrics(config: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The run's headline and a second metric beside it; accuracy alone where there is no other."""
    last = rounds[-1] if rounds else {}
    known = [name for name in METRICS if f"test_{name}_mean" in last] or ["accuracy"]
    asked = config.get("metric", "accuracy")
    metric = asked if asked in known else "accuracy"
    beside = [
        name for name in ("balanced_accuracy", "accuracy") if name in known and name != metric
    ]
    return metric, beside[0] if beside else ""


def _said(metric: str) -> str:
    words = {"auroc": "AUROC", "ece": "ECE", "macro_f1": "macro F1"}
    return words.get(metric, metric.replace("_", " "))


def _rounds(
    rounds: Sequence[Mapping[str, Any]], metric: str, second: str
) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    """Columns (title and kind) and a row a round."""
    kind = "number" if metric == "log_loss" else "percent"
    columns = [
        ("round", "count"), (_said(metric), kind), ("validation", kind),
        (_said(second) if second else "", "percent"), ("10th percentile", "percent"),
        ("training loss", "number"), ("asked", "count"), ("replied", "count"), ("failed", "count"),
        ("sent up", "bytes"), ("sent down", "bytes"), ("up so far", "bytes"),
        ("down so far", "bytes"), ("seconds", "number"),
    ]  # fmt: skip
    up = down = 0
    rows = []
    for line in rounds:
        up, down = up + line["uplink_bytes"], down + line["downlink_bytes"]
        means = [line.get(f"{part}_{name}_mean") for part, name in
                 (("test", metric), ("val", metric), ("test", second))]  # fmt: skip
        rows.append(
            [line["round"], *means, line["test_accuracy_p10"], line["train_loss"], line["sampled"],
             line["replied"], len(line["failures"]), line["uplink_bytes"], line["downlink_bytes"],
             up, down, line["seconds"]]
        )  # fmt: skip
    return columns, rows


def _facts(
    columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]],
    rounds: Sequence[Mapping[str, Any]], wanted: int, clients: int, running: bool,
) -> list[tuple[str, str]]:  # fmt: skip
    """The figures that matter at first sight; what is not known is left out."""
    facts = [("round", f"{len(rows)} of {wanted or '?'}")]
    if rows:
        facts += [
            (columns[i][0], word(rows[-1][i], columns[i][1])) for i in (1, 3, 4, 2) if columns[i][0]
        ]
        facts.append(("replied", f"{rows[-1][7]} of {rows[-1][6]}"))
    seconds = [line["seconds"] for line in rounds]
    left = seconds_left(seconds, wanted) if running and wanted else None
    if left is not None:
        facts.append(("time left", f"about {duration(left)}"))
    if rows:
        failures = sum(row[8] for row in rows)
        facts += [("time so far", duration(sum(seconds))), ("failures", f"{failures:,}"),
                  ("sent up", size(rows[-1][11])), ("sent down", size(rows[-1][12]))]  # fmt: skip
    return [*facts, ("clients", f"{clients:,}")] if clients else facts


def _clients(
    rounds: Sequence[Mapping[str, Any]], scores: Mapping[str, Any], examples: Mapping[str, int],
    failed: Sequence[tuple[int, str, str]], metrics: tuple[str, str],
) -> Look:  # fmt: skip
    """Every client that is known of; of too many those with failures first."""
    last = rounds[-1] if rounds else {}
    trouble = {client: (at, why) for at, client, why in failed if client != NOBODY}
    times = Counter(client for _, client, _ in failed)
    lost = {one["client"]: f"lost: {one['reason']}" for one in last.get("lost", ())}
    known = sorted(
        {*scores, *examples, *lost, *trouble}, key=lambda c: (c not in trouble, client_order(c))
    )
    shown = [name for name in metrics if name]
    rows = []
    for client in sorted(known[:CLIENTS], key=client_order):
        score, (at, why) = scores.get(client), trouble.get(client, (0, ""))
        done, now = score.generation if score else None, last.get("round", 0)
        figures = vars(score) | dict(score.other) if score else {}
        rows.append(
            [client, one_line(score.model, 80) if score else "", examples.get(client), done,
             *(figures.get(f"test_{name}") for name in shown), times[client],
             "failed" if at == now > 0 else "replied" if done == now and now > 0 else "",
             one_line(lost.get(client, ""), 300) or (f"round {at}: {why}" if at else "")]
        )  # fmt: skip
    columns = [
        ("client", "text"), ("model", "text"), ("examples", "count"), ("last round", "count"),
        *((_said(name), "number" if name == "log_loss" else "percent") for name in shown),
        ("failures", "count"), ("in the last round", "text"), ("why", "text"),
    ]  # fmt: skip
    return _table("clients", "Clients", columns, rows, len(known) - len(rows))


def _table(
    name: str, title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Any], more: int = 0,
    note: str = "",
) -> Look:  # fmt: skip
    return {
        "name": name,
        "title": title,
        "columns": columns,
        "rows": rows,
        "more": more,
        "note": note,
    }


class Sites:
    """The sites of a server of ours, asked through its Control API on this machine."""

    def __init__(self, tls: Path) -> None:
        """``tls``: the folder that `fedhet server` was given; UserError if it never was."""
        from fedhet.deploy.control import Control, ServerFolder  # noqa: PLC0415  (Flower)

        folder = ServerFolder(tls)
        self.control = Control(folder.control(), folder.credentials.ca)
        self.problem = ""
        self._nodes = _Asked(self._ask)

    def _ask(self) -> Sequence[Any]:
        try:
            self.problem = ""
            return sorted(self.control.nodes(), key=lambda node: node.name)
        except RunFailed as error:
            self.problem = one_line(error, 300)
            return self._nodes.answer or ()

    def last_run(self) -> Path:
        """The folder of the run that was submitted last and is on this machine."""
        for run in self.control.runs():
            if run.folder and Path(run.folder).is_dir():
                return Path(run.folder)
        raise UserError("watch: this server has had no run whose folder is here: name one")

    def table(self, scores: Mapping[str, Any], failed: Mapping[str, int]) -> Look:
        """Every site with the last round that it took part in, and how often it failed."""
        columns = [("site", "text"), ("now", "text"), ("since", "text"),
                   ("last round", "count"), ("failures", "count")]  # fmt: skip
        rows = [
            [one_line(node.name or str(node.id), 80), node.status, _local(node.since),
             getattr(scores.get(node.name), "generation", None), failed.get(node.name, 0)]
            for node in self._nodes()
        ]  # fmt: skip
        note = "offline: silent since then"
        return _table("sites", "Sites", columns, rows, note=note)


class SweepView:
    """All runs in a folder, such as a sweep's: its cells by what distinguishes them."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, _Files(path)
        self.runs: dict[str, RunView] = {}
        self._busy = _Asked(self._is_run)

    def _is_run(self) -> bool:
        try:
            return any(held(one.parent / LOCK) for one in self.path.glob("sweeps/*/sweep.json"))
        except Damaged:
            return False

    def inside(self, name: str) -> RunView | None:
        """The run of a cell that has begun."""
        known = name in self.runs and (self.path / name / "config.yaml").is_file()
        return RunView(self.path / name) if known else None

    def look(self) -> Look:
        """Read what is new; never raises for what the files say."""
        cells = [self._cell(*one) for one in self._listed()]
        counts = Counter(cell["state"] for cell in cells)
        over = not (counts[RUNNING] or self._busy())
        done = counts[FINISHED] + counts[DIVERGED] == len(cells) > 0
        order = (FINISHED, RUNNING, PENDING, BROKEN, DIVERGED, FAILED)
        facts = [(state, f"{counts[state]:,}") for state in order if counts[state]]
        facts += [(state, f"{n:,}") for state, n in sorted(counts.items()) if state not in order]
        facts.append(
            ("rounds", f"{sum(c['done'] for c in cells):,} of {sum(c['of'] for c in cells):,}")
        )
        paces = [cell["pace"] for cell in cells if cell["state"] == RUNNING and cell["pace"]]
        if paces:
            open_ = [cell for cell in cells if cell["state"] in {RUNNING, PENDING}]
            todo = sum(max(0, cell["of"] - cell["done"]) for cell in open_)
            facts.append(("time left", f"about {duration(todo * sum(paces) / len(paces) ** 2)}"))
        columns = [("cell", "text"), ("what", "text"), ("state", "text"), ("round", "count"),
                   ("of", "count"), ("metric", "number"), ("why", "text")]  # fmt: skip
        rows = [
            [cell["name"], _label(cell["values"]), cell["state"], cell["done"], cell["of"] or None,
             cell["figure"], cell["why"]]
            for cell in cells
        ]  # fmt: skip
        sweeps = dict.fromkeys(cell["sweep"] for cell in cells if cell["sweep"])
        return {
            "name": one_line(self.path.name, 200), "title": f"{len(cells):,} runs",
            "status": ("completed" if done else IDLE) if over else RUNNING, "over": over,
            "says": "",
            "facts": facts, "tables": [_table("cells", "Cells", columns, rows)],
            "grids": [_grid(name, [c for c in cells if c["sweep"] == name]) for name in sweeps],
            "columns": [], "rounds": [], "of": 0, "curves": [],
            "damage": list(self.files.problems.values()),
        }  # fmt: skip

    def _listed(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Name, sweep and entry of every cell: those of an index first, then other runs."""
        found: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        try:
            for path in sorted(self.path.glob("sweeps/*/sweep.json")):
                cells = self.files.get(path, partial(read_json, path), {}).get("cells")
                for one in cells if isinstance(cells, list) else []:
                    name = one.get("name") if isinstance(one, dict) else None
                    if isinstance(name, str) and Path(name).name == name and "\0" not in name:
                        found.setdefault(name, (name, path.parent.name, one))
            for path in sorted(self.path.iterdir()):
                if (path / "config.yaml").is_file():
                    found.setdefault(path.name, (path.name, "", {}))
        except OSError:  # the folder is gone, or was renamed just now
            pass
        return list(found.values())[:CELLS]

    def _cell(self, name: str, sweep: str, entry: Mapping[str, Any]) -> Look:
        run = self.runs.setdefault(name, RunView(self.path / name))
        summary, rounds, config = run.read()
        preset = self.path / "sweeps" / sweep / f"{name}.yaml"
        if not config and sweep:
            config = self.files.get(preset, lambda: read_yaml(preset), {})
        state, why = run.status(summary, rounds)
        told = entry.get("state")
        if summary:
            state = FINISHED if state == "completed" else state
            state = DIVERGED if told == DIVERGED else state
            why = "" if state == FINISHED else why
        elif problems := run.files.problems:
            state, why = FAILED, next(iter(problems.values()))
        elif state in {WAITING, RUNNING}:
            state, why = RUNNING, ""
        elif told == FAILED:
            state, why = FAILED, one_line(entry.get("reason") or "", 200)
        else:
            state, why = (BROKEN if rounds else PENDING), ""
        metric, _ = _metrics(config, rounds)
        seconds = [line["seconds"] for line in rounds][-10:]
        values = entry.get("values")
        return {
            "name": name, "sweep": sweep, "state": state, "why": one_line(why, 200),
            "values": values if isinstance(values, dict) else {},
            "begun": run.folder.config.is_file(),
            "done": summary.get("rounds", len(rounds)), "of": _count(config.get("rounds")),
            "figure": rounds[-1].get(f"test_{metric}_mean") if rounds else None,
            "pace": sum(seconds) / len(seconds) if seconds else None,
        }  # fmt: skip


def _grid(sweep: str, cells: Sequence[Look]) -> Look:
    """A row for every choice and a column for every block, in the order of the index."""
    rows: dict[str, dict[str, Any]] = {}
    columns: dict[str, None] = {}
    for cell in cells:
        block = (
            _label({key: cell["values"][key] for key in BLOCKS if key in cell["values"]}) or "run"
        )
        columns.setdefault(block)
        text = "" if cell["figure"] is None else f"{cell['figure']:.2f}"
        if cell["state"] not in {FINISHED, PENDING}:
            text = " ".join(
                filter(None, [cell["state"], text, f"{cell['done']}/{cell['of'] or '?'}"])
            )
        shown = {
            "text": text or cell["state"],
            "state": cell["state"],
            "run": cell["name"] * cell["begun"],
        }
        rest = {key: value for key, value in cell["values"].items() if key not in BLOCKS}
        rows.setdefault(_label(rest) or "all", {})[block] = shown
    made = [(row, [own.get(column) for column in columns]) for row, own in rows.items()]
    return {"title": one_line(sweep, 100), "columns": list(columns), "rows": made}


def _label(values: Mapping[str, Any]) -> str:
    """What distinguishes a cell, in short; a method needs no word before it."""
    shown = (f"{value}" if key == "method" else f"{key}={value}" for key, value in values.items())
    return one_line(" ".join(shown), 120)


def word(value: Any, kind: str) -> str:
    """A value as text; a dash for what is absent."""
    if value is None or value == "":
        return "-"
    if kind == "number":
        return f"{value:.4g}"
    return {"percent": percent, "bytes": size}.get(kind, str)(value)


def _local(moment: str) -> str:
    """A moment as this machine's clock shows it."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return ""


def _text(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key)
    return one_line(value, 80) if isinstance(value, str) else "?"


def _count(value: Any) -> int:
    """A whole number of somebody's configuration; 0 for anything else."""
    return value if type(value) is int and 0 <= value < 2**53 else 0

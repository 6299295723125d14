"""Read a run folder or a folder of runs as one value, a look, for the page and the terminal.

Only files are read. A look has facts, curves and tables by name. A column of a table is a title and
a kind: text, count, percent, number, bytes or run (a name that links to the run's page).
"""

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fedhet.config.schema import METRICS, second_metric
from fedhet.errors import Damaged, UserError, one_line
from fedhet.files import NOBODY, client_order, read_json, read_yaml, shaped
from fedhet.records.formats import Started, read_evaluations
from fedhet.records.run_folder import LOCK, RunFolder, held
from fedhet.records.summary import duration, percent, seconds_left

ASK = 5.0  # seconds between looks at a lock
POLL = 1.0  # seconds between looks of the terminal
PATIENCE = 3  # looks after which a run that nobody writes counts as interrupted
CLIENTS, FAILURES, POINTS, CELLS = 500, 100, 500, 2_000  # that are shown at most
INDEXES = "sweeps/*/sweep.json"
Look = dict[str, Any]
Columns = Sequence[tuple[str, str]]
Line = Mapping[str, Any]  # of rounds.jsonl


def open_view(path: Path) -> "RunView | SweepView":
    """Open a run folder or a folder of runs; raise UserError if it is neither."""
    path = path.expanduser().absolute()
    if (path / "config.yaml").is_file():
        return RunView(path)
    if not path.exists():
        raise UserError(f"'{path}' does not exist; `fedhet runs DIR` lists the run folders in DIR")
    if not any([*path.glob(INDEXES), *path.glob("*/config.yaml")]):
        raise UserError(
            f"'{path}' is not a run folder (it has no config.yaml) nor a sweep's: give one of them"
        )
    return SweepView(path)


class _Files:
    """Reads files when they have changed; names those that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: dict[Path, str] = {}
        self._read: dict[Path, tuple[object, Any]] = {}
        self._asked, self._busy = -ASK, False

    def get(self, path: Path, read: Callable[[Path], Any], default: Any) -> Any:
        """Return a file's content; ``default`` while it is not there, or is damaged."""
        try:
            stat = path.stat()
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._read.get(path, (None,))[0] != seen:
                self._read[path] = seen, default
                self._read[path] = seen, read(path)
                self.problems.pop(path, None)
            return self._read[path][1]
        except FileNotFoundError:
            self._read.pop(path, None)
        except (OSError, UserError, Damaged) as error:
            self.problems[path] = one_line(str(error).replace(f"{self.folder}/", ""), 300)
        return default

    def busy(self, ask: Callable[[], bool]) -> bool:
        """Return whether somebody holds a lock, asked for every :data:`ASK` seconds."""
        if time.monotonic() - self._asked >= ASK:
            self._asked, self._busy = time.monotonic(), False
            with contextlib.suppress(Damaged):  # not a lock of a run, such as a link
                self._busy = ask()
        return self._busy


def _config(path: Path) -> dict[str, Any]:
    shaped(Started, config := read_yaml(path), f"'{path}'")
    return config


class RunView:
    """A run folder; its texts are shown, and nothing else is done with them."""

    def __init__(self, path: Path) -> None:
        self.folder, self.files = RunFolder(path), _Files(path)
        self.runs: Mapping[str, RunView] = {}  # inside this one there is none

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], tuple[str, str]]:
        """Return summary, rounds and configuration, each empty while there is none, and status."""
        folder, get = self.folder, self.files.get
        summary = get(folder.summary, lambda _: folder.read_summary(), {})  # a run writes it last
        rounds = get(folder.rounds, lambda _: folder.read_rounds(), [])
        status = folder.status(summary, rounds, lambda: self.files.busy(folder.being_written))
        return summary, rounds, get(folder.config, _config, {}), status

    def look(self) -> Look:
        """Read what is new; never raise for the content of files."""
        _, rounds, config, (status, says) = self.read()
        evaluations = self.files.get(self.folder.clients, read_evaluations, ())
        metrics, wanted = _metrics(config, rounds), config.get("rounds", 0)
        failed = [
            (line["round"], one_line(one["client"], 80), one_line(one["reason"], 300))
            for line in rounds for one in line["failures"]
        ]  # fmt: skip
        columns, rows = _rounds(rounds, metrics)
        facts = {"round": f"{len(rows)} of {wanted or '?'}"}
        left = seconds_left([line["seconds"] for line in rounds], wanted)
        if status == "running" and left:
            facts["time left"] = f"about {duration(left)}"
        if rows:
            last = list(zip(columns, rows[-1], strict=True))
            facts |= {title: word(value, kind) for (title, kind), value in last[1:-7]}
            facts |= {
                "replied": f"{rounds[-1]['replied']} of {rounds[-1]['sampled']}",
                "failures": f"{len(failed):,}",
                "sent up": decimal(sum(line["uplink_bytes"] for line in rounds)),
                "sent down": decimal(sum(line["downlink_bytes"] for line in rounds)),
                "time so far": duration(sum(line["seconds"] for line in rounds)),
            }
        newest = [
            (at, "", f"the round is lost: {why}") if client == NOBODY else (at, client, why)
            for at, client, why in failed[: -FAILURES - 1 : -1]
        ]
        heads = [("round", "count"), ("client", "text"), ("why", "text")]
        scores = {line["client"]: line for line in evaluations}
        tables = {
            "clients so far": _clients(rounds, scores, failed, metrics),
            "failures": _table(heads, newest, len(failed)),
        }
        return {
            "name": one_line(self.folder.path.name, 200), "status": status, "says": says,
            "title": one_line(f"{config.get('method', '?')} on {config.get('dataset', '?')}", 160),
            "facts": facts, "tables": {name: one for name, one in tables.items() if one["rows"]},
            "columns": columns, "rounds": rows,
            "curves": _curves(rounds, metrics[0]) if rounds else [],
            "damage": list(self.files.problems.values()),
        }  # fmt: skip


def _metrics(config: Mapping[str, Any], rounds: Sequence[Line]) -> list[str]:
    """Return the run's headline and, where it was recorded, a second metric."""
    known = [name for name in METRICS if rounds and f"test_{name}_mean" in rounds[-1]]
    headline = config["metric"] if config.get("metric") in known else "accuracy"
    return [name for name in (headline, second_metric(headline, known)) if name]


def _column(metric: str) -> tuple[str, str]:
    return METRICS[metric].title, "percent" if METRICS[metric].percent else "number"


def _rounds(rounds: Sequence[Line], metrics: Sequence[str]) -> tuple[Columns, list[list[Any]]]:
    headline, *second = metrics
    _, kind = _column(headline)
    of_accuracy = "" if headline == "accuracy" else " of accuracy"
    table = [
        ("round", "count", "round"), (*_column(headline), f"test_{headline}_mean"),
        ("validation", kind, f"val_{headline}_mean"),
        *((*_column(name), f"test_{name}_mean") for name in second),
        (f"10th percentile{of_accuracy}", "percent", "test_accuracy_p10"),
        ("training loss", "number", "train_loss"), ("asked", "count", "sampled"),
        ("replied", "count", "replied"), ("failed", "count", "failed"),
        ("sent up", "bytes", "uplink_bytes"), ("sent down", "bytes", "downlink_bytes"),
        ("seconds", "number", "seconds"),
    ]  # fmt: skip
    lines = [{**line, "failed": len(line["failures"])} for line in rounds]
    columns = [(title, kind) for title, kind, _ in table]
    return columns, [[line.get(key) for *_, key in table] for line in lines]


def _curves(rounds: Sequence[Line], metric: str) -> list[Look]:
    """Return curves over the rounds, each line as points of a box of 100 by 100."""
    shown = rounds[(len(rounds) - 1) % (step := 1 + len(rounds) // POINTS) :: step]
    first, last = shown[0]["round"], shown[-1]["round"]
    title, kind = _column(metric)
    keys = {"test": f"test_{metric}_mean", "validation": f"val_{metric}_mean"}
    keys |= {"10th percentile": "test_accuracy_p10"} if metric == "accuracy" else {}
    curves = []
    for name, unit, lines in (
        (title, kind, keys), ("training loss", "number", {"loss": "train_loss"}),
    ):  # fmt: skip
        known = {
            label: [(line["round"], line[key]) for line in shown if line.get(key) is not None]
            for label, key in lines.items()
        }
        values = [value for points in known.values() for _, value in points] or [0]
        low, high = min(values), max(values)
        drawn = []
        for label, points in known.items():
            places = " ".join(
                f"{100 * (at - first) / max(1, last - first):.4g},"
                f"{100 - 100 * (value - low) / (high - low or 1):.4g}"
                for at, value in points[:1] + points  # one point is a dot
            )
            drawn.append((label, places, word(points[-1][1] if points else None, unit)))
        ends = {"low": word(low, unit), "high": word(high, unit), "first": first, "last": last}
        curves.append({"title": name, "lines": drawn} | ends)
    return curves


def _clients(
    rounds: Sequence[Line], scores: Mapping[str, Any], failed: Sequence[tuple[int, str, str]],
    metrics: Sequence[str],
) -> Look:  # fmt: skip
    """Return a table of the clients that were heard of; of too many those with failures first."""
    times = Counter(client for _, client, _ in failed)
    why = {client: f"round {at}: {why}" for at, client, why in failed if client != NOBODY}
    for one in rounds[-1]["lost"] if rounds else ():
        why[one["client"]] = one_line(f"lost: {one['reason']}", 300)
    known = sorted({*scores, *why}, key=lambda client: (client not in why, client_order(client)))
    rows = []
    for client in sorted(known[:CLIENTS], key=client_order):
        score = scores.get(client, {})
        figures = [score.get(f"test_{name}") for name in metrics]
        rows.append([client, one_line(score.get("model", ""), 80), score.get("generation"),
                     *figures, times[client], why.get(client, "")])  # fmt: skip
    columns = [
        ("client", "text"), ("model", "text"), ("last round", "count"), *map(_column, metrics),
        ("failures", "count"), ("why", "text"),
    ]  # fmt: skip
    return _table(columns, rows, len(known))


def _table(columns: Columns, rows: Sequence[Any], count: int) -> Look:
    """Return the rows that are shown, of so many."""
    return {"columns": columns, "rows": rows, "count": count}


class SweepView:
    """All runs in a folder, such as a sweep's: its cells by what distinguishes them."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, _Files(path)
        self.runs: dict[str, RunView] = {}

    def look(self) -> Look:
        """Read what is new; never raise for what the files say."""
        cells = [self._cell(*one) for one in self._listed()]
        counts = Counter(cell["state"] for cell in cells)
        locks = [one.parent / LOCK for one in self.path.glob(INDEXES)]
        over = not (counts["running"] or self.files.busy(lambda: any(map(held, locks))))
        done = counts["completed"] + counts["diverged"] == len(cells) > 0
        facts = {state: f"{number:,}" for state, number in sorted(counts.items())}
        facts["rounds"] = f"{sum(c['done'] for c in cells):,} of {sum(c['of'] for c in cells):,}"
        paces = [cell["pace"] for cell in cells if cell["state"] == "running" and cell["pace"]]
        if paces:
            open_ = [cell for cell in cells if cell["state"] in {"running", "pending"}]
            todo = sum(max(0, cell["of"] - cell["done"]) for cell in open_)
            facts["time left"] = f"about {duration(todo * sum(paces) / len(paces) ** 2)}"
        columns = [("cell", "run"), ("state", "text"), ("round", "text"), ("metric", "number"),
                   ("what", "text"), ("why", "text")]  # fmt: skip
        rows = [[cell[name] for name, _ in columns] for cell in cells]
        return {
            "name": one_line(self.path.name, 200), "title": f"{len(cells):,} runs", "says": "",
            "status": ("completed" if done else "interrupted") if over else "running",
            "facts": facts, "tables": {"cells": _table(columns, rows, len(rows))}, "columns": [],
            "rounds": [], "curves": [], "damage": list(self.files.problems.values()),
        }  # fmt: skip

    def _listed(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Return name, sweep and entry of every cell: those of an index first, then other runs."""
        listed: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        for path in sorted(self.path.glob(INDEXES)):
            cells = self.files.get(path, read_json, {}).get("cells")
            for one in cells if isinstance(cells, list) else []:
                name = one.get("name") if isinstance(one, dict) else None
                if isinstance(name, str) and Path(name).name == name and "\0" not in name:
                    listed.setdefault(name, (name, path.parent.name, one))
        for path in sorted(self.path.glob("*/config.yaml")):
            listed.setdefault(path.parent.name, (path.parent.name, "", {}))
        return list(listed.values())[:CELLS]

    def _cell(self, name: str, sweep: str, entry: Mapping[str, Any]) -> Look:
        run = self.runs.setdefault(name, RunView(self.path / name))
        summary, rounds, config, (state, why) = run.read()
        if not config and sweep:
            config = self.files.get(self.path / "sweeps" / sweep / f"{name}.yaml", _config, {})
        if not summary and (problems := list(run.files.problems.values())):
            state, why = "failed", problems[0]
        elif state == "waiting":
            state = "running"
        elif state in {"gone", "interrupted"}:
            state, why = "interrupted" if rounds else "pending", ""
            if entry.get("state") == "failed":  # before it had a summary
                state, why = "failed", str(entry.get("reason") or "")
        seconds = [line["seconds"] for line in rounds][-10:]
        values = entry["values"] if isinstance(entry.get("values"), dict) else {}
        what = " ".join(f"{v}" if key == "method" else f"{key}={v}" for key, v in values.items())
        done, of = summary.get("rounds", len(rounds)), config.get("rounds", 0)
        headline = _metrics(config, rounds)[0]
        return {
            "cell": name, "state": state, "done": done, "of": of,
            "round": f"{done}/{of or '?'}", "what": one_line(what, 120), "why": one_line(why, 200),
            "metric": rounds[-1].get(f"test_{headline}_mean") if rounds else None,
            "pace": sum(seconds) / len(seconds) if seconds else None,
        }  # fmt: skip


def word(value: Any, kind: str) -> str:
    """Return a value as text; a dash for what is absent."""
    texts: dict[str, Callable[[Any], str]] = {
        "number": "{:.4g}".format, "percent": percent, "bytes": decimal,
    }  # fmt: skip
    return "-" if value in {None, ""} else texts.get(kind, str)(value)


# --- as lines, for a pipe, a screen reader, a terminal without colours ---------------------------


def follow(view: RunView | SweepView) -> Iterator[str]:
    """Yield lines as they come, until the run or all runs are over."""
    look, known, idle, last_state, states = view.look(), 0, 0, "", dict[str, str]()
    yield f"{look['name']}: {look['title']}"
    while True:
        if len(look["rounds"]) < known:
            known = 0
            yield "it started again"
        new, known = look["rounds"][known:], len(look["rounds"])
        wanted = look["facts"].get("round", "").partition(" of ")[2]
        tables = defaultdict(lambda: _table((), (), 0), look["tables"])
        for number, *row in new:
            yield f"round {number} of {wanted}: {_line(look['columns'][1:], row)}"
            for at, client, why in tables["failures"]["rows"]:
                if at == number:
                    yield f"  {client and f'client {client} failed: '}{why}"
        if new and (left := look["facts"].get("time left")):
            yield f"time left: {left}"
        for row in tables["cells"]["rows"]:
            if states.get(row[0]) != row[1]:
                states[row[0]] = row[1]
                yield _line(tables["cells"]["columns"], row)
        idle = idle + 1 if look["status"] == "interrupted" else 0
        going = look["status"] in {"running", "waiting"}
        over = not going and not 0 < idle < PATIENCE
        damage = [f"cannot be read: {problem}" for problem in look["damage"]]
        state = "\n".join([": ".join(filter(None, (look["status"], look["says"]))), *damage])
        if over or (state != last_state and going):
            yield from state.split("\n")
        last_state = state
        if over:
            break
        time.sleep(POLL)
        look = view.look()
    yield ", ".join(f"{name}: {text}" for name, text in look["facts"].items())
    if count := (clients := tables["clients so far"])["count"]:
        yield f"clients so far: {count:,}"
        yield from (f"  {_line(clients['columns'], row)}" for row in clients["rows"])
        if more := count - len(clients["rows"]):
            yield f"  and {more:,} more"


def _line(columns: Columns, row: Sequence[Any]) -> str:
    pairs = zip(columns, row, strict=True)
    return ", ".join(f"{t} {word(v, kind)}" for (t, kind), v in pairs if v not in {None, ""})

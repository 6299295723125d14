"""Read finished runs: run folders, sweeps, and packed records of either.

A packed record is one JSON file with everything of a run folder that a report uses and, of the
machine, its processor. It is small enough to be committed, and gives the same report.

A *setting* is everything in a configuration except the method, its own keys and the seeds: the
conditions under which methods are compared. A *variant* is a method with those of its own keys that
are not at their defaults. A *block* is a pair of partition seed and seed, which all variants of a
setting share. Runs in several precisions belong to one setting. No code that a record names is
imported: a method ``module:NAME`` is known by that name alone.
"""

import hashlib
import json
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedhet import files
from fedhet.config.registry import METHODS, SPELT, find_method
from fedhet.config.registry import method_name as known_as
from fedhet.config.schema import METRICS, TUNABLE, RunConfig
from fedhet.data.inputs import DATASETS, noun
from fedhet.errors import Damaged, RunFailed, UserError, one_line
from fedhet.plugins import is_given
from fedhet.records import formats
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import diverged, participants_mean

FORMAT = "fedhet run record 1"
SUFFIX = ".run"  # JSON inside; Flower sends every .json of a repository to all clients
FILES = ("data-path", "partition-file", "public-path")  # keys of which the last part is kept
_MACHINE = {"out", "name", "state-dir"}  # keys of the configuration that a record leaves out
_CLOSE = 1e-6  # points; some packed records keep ten digits
_ROUND = {
    "round", "replied", "train_flops", "uplink_floats", "downlink_floats", "train_loss", "sampled",
    "failed", "evaluated_clients", "uplink_bytes", "downlink_bytes",
}  # fmt: skip
_FIGURES = ("test_", "val_", "participants_test_")
_OLDER = {"test": "test_accuracy", "val": "val_accuracy"}  # columns of clients in older records
# What reading a file that fedhet did not write can raise.
_DAMAGE = (OSError, ValueError, TypeError, LookupError, AttributeError, UserError)
SEARCHED = "tuned"  # value of a key that was searched for each method
_DATA = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fashion-mnist": "Fashion-MNIST",
    "office_caltech": "Office-Caltech", "ag_news": "AG News", "har": "HAR",
}  # fmt: skip
DEFAULTS = RunConfig().flat()  # of the keys of every run, as a record has them
# Seeds, and keys that say where and how a run was carried out or told of, not what it computed.
IN_NO_SETTING = {
    "seed", "partition-seed",
    "out", "name", "state-dir", "keep-state", "keep-best", "keep-predictions",
    "state-backend", "hide-classes",  # of older records
    "metric", "metrics", "tensorboard", "tracker", "device", "actors", "threads", "engine",
    "round-timeout", "start-timeout", "evaluate-every",
}  # fmt: skip
# Methods' keys of older versions, with the value that is all there is today.
_GONE: dict[str, Any] = {"projector": "linear", "prototype-weighting": "count", "header-bias": True}
_SYMBOLS = {  # the papers' symbols, and keys that a setting's conditions always name
    "N": "clients", "C": "fraction", "models": "models", "E": "local-epochs", "B": "batch-size",
    "lr": "lr", "T": "rounds",
}  # fmt: skip
_SAID = {*_SYMBOLS.values(), "dataset", "data-path", "classes-per-client", "alpha"}
LETTERS = 80  # of a title


class Setting:
    """The conditions of a comparison: all shared ``keys``, and those ``off_default``.

    ``data`` is the data set by its own name, a folder or file by its own; ``share`` the percentage
    of clients in a round, as text; ``title`` is short, and no other setting of the report has it.
    ``slug``, for anchors and files, depends on the setting alone: keys at their defaults are left
    out, so that a new key of fedhet changes none.
    """

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self.keys, self.title = keys, ""
        self.off_default = {k: value for k, value in keys.items() if value != DEFAULTS[k]}
        self.share = f"{100 * keys['fraction']:g}"
        self.data = name = str(keys["dataset"])
        if is_given(name):
            self.data = f"own {noun(name)} {name[-16:-12]}"
        elif name in ("image-folder", *DATASETS):
            self.data = Path(str(keys["data-path"])).stem.lower() or name
        else:
            self.data = name.partition(":")[0]
        off = {key: value for key, value in self.off_default.items() if key != "precision"}
        digest = hashlib.sha256(_json(off).encode()).hexdigest()
        slug = f"{self.data[:60]}-n{keys['clients']}-c{self.share}-{digest[:6]}"
        self.slug = re.sub(r"[^a-zA-Z0-9_-]+", "_", slug)

    def command(self, method: str, block: str) -> str:
        """Return the command that makes one run of the setting, without what was searched."""
        words = [
            shlex.quote(one_line(f"{key}={plain(value)}", None))
            for key, value in self.off_default.items()
            if value != SEARCHED and key != "tuned"
        ]
        name = method if method in METHODS else f"fedssa method={method}"
        partition, _, seed = block.partition("/")
        line = " ".join([f"fedhet run {name}", *words, f"partition-seed={partition} seed={seed}"])
        objects = any(map(is_given, re.findall(r"[^\s=,]+", line)))
        return line + "  # names with a digest are objects: give them to fedhet.run" * objects

    @property
    def conditions(self) -> str:
        """One line with all that the setting fixes and a reader must know."""
        keys, off = self.keys, self.off_default
        shown = {name: plain(keys[key]) for name, key in _SYMBOLS.items()}
        shown |= {"C": f"{self.share} %"} | {k: plain(off[k]) for k in off if k not in _SAID}
        if str(keys["partition"]).startswith(("dirichlet", "quantity")):
            shown["alpha"] = plain(keys["alpha"])
        elif keys["partition"] == "classes-per-client":
            shown["classes per client"] = plain(keys["classes-per-client"])
        return ", ".join([self.data, *(f"{name} = {value}" for name, value in shown.items())])

    @property
    def whole(self) -> str:
        """A text that is equal for settings that differ only in the number of rounds.

        The shorter of them is the beginning of the longer, unless a schedule of the learning rate
        or the noise of a privacy budget is spread over all rounds.
        """
        keys = {k: v for k, v in self.keys.items() if k != "precision"}
        if keys["lr-schedule"] == DEFAULTS["lr-schedule"] and not keys["dp-epsilon"]:
            del keys["rounds"]
        return _json(keys)


@dataclass
class RunRecord:
    """One completed run: what it left, and its place among others.

    ``rounds`` has a line a round and columns as in ``rounds.jsonl``, accuracies only where clients
    were evaluated. ``clients`` has a line a client, its last evaluation. ``counts`` has training
    examples by client (rows) and class; None without ``partition.csv``. ``method`` is the name that
    it is run by, ``keys`` are the method's own that are not at their defaults, ``block`` is
    partition seed and seed. The server of a run of ``means_alone`` learned no client's own figures.
    """

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    rounds: pd.DataFrame
    clients: pd.DataFrame
    counts: pd.DataFrame | None = None
    folder: Path | None = None  # None: a packed record
    setting: Setting = field(init=False)
    keys: dict[str, Any] = field(init=False)
    compared: bool = True  # False: another precision than the one that the comparison is in

    @property
    def variant(self) -> str:
        """The name in tables; no two variants of a setting share one."""
        own = ", ".join(f"{key}={plain(value)}" for key, value in sorted(self.keys.items()))
        return method_name(self.method) + (f" ({own})" if own else "")

    def place(self) -> None:
        """Split the configuration into the setting's keys and the method's own off their defaults.

        What is missing in a record of another version has its default; a key that this version
        lacks counts as absent if it is off (false, 0, empty). What was searched for each method
        belongs to neither; the setting says that it was searched.
        """
        config, self.compared = self.config, True
        self.means_alone = bool((self.summary.get("secure_sum") or {}).get("absent"))
        self.method = known_as(str(config.get("method", "fedssa")))
        self.precision = str(config.get("precision", DEFAULTS["precision"]))
        seed, partition = int(config.get("seed", 0)), int(config.get("partition-seed", -1))
        self.block = (seed if partition < 0 else partition), seed
        searched = set(config.get("tuned", ()))
        shared = {
            key: SEARCHED if key in TUNABLE & searched else config.get(key, usual)
            for key, usual in DEFAULTS.items()
            if key not in IN_NO_SETTING | {"method"}
        }
        self.setting = Setting(shared | {"tuned": sorted(TUNABLE & searched)})
        defaults = {**_GONE, **formats.GONE.get(self.method, {}), **own_defaults(self.method)}
        self.keys = {
            key: value
            for key, value in config.items()
            if key not in DEFAULTS.keys() | IN_NO_SETTING | searched
            and (value != defaults[key] if key in defaults else value or ":" in self.method)
        }


class LeftOut(NamedTuple):
    """A run that a report leaves out, and why."""

    name: str
    reason: str


def read_runs(places: Iterable[Path]) -> tuple[list[RunRecord], list[LeftOut]]:
    """Return all completed runs below ``places`` by name, and those that are left out.

    Raise UserError for a place that does not exist or holds no run at all.
    """
    runs: list[RunRecord] = []
    left_out: list[LeftOut] = []
    for place in places:
        if not (paths := _find(place)):
            what = "has no run folder (config.yaml and rounds.jsonl), sweep or packed record"
            why = what if place.exists() else f"does not exist{files.near(place)}"
            raise UserError(f"'{place}' {why}")
        for path in paths:
            name = path.stem if path.is_file() else path.name
            try:
                runs.append(read_run(path))
            except RunFailed as error:
                unread = "cannot be read: " * isinstance(error, Damaged)
                left_out.append(LeftOut(name, f"{unread}{error}"))
    return sorted(runs, key=lambda run: run.name), sorted(left_out)


def _find(place: Path) -> list[Path]:
    """Return a run folder, a packed record, or those in a folder of runs or of sweeps."""
    if (place / "config.yaml").is_file() or (place.is_file() and place.suffix == SUFFIX):
        return [place]
    folders = [path.parent for depth in ("*", "*/*") for path in place.glob(f"{depth}/config.yaml")]
    return sorted([*folders, *place.glob(f"*{SUFFIX}"), *place.glob(f"*/*{SUFFIX}")])


def read_run(path: Path) -> RunRecord:
    """Read a run folder or a packed record; raise Damaged if it is damaged.

    Raise RunFailed, with the reason, for a run that did not complete or that diverged.
    """
    try:
        return _checked(_unpacked(path) if path.is_file() else _read_folder(path))
    except _DAMAGE as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Damaged(one_line(text.replace(f"{path}/", ""), 200)) from error


def evaluations(path: Path, *, last: bool = False) -> pd.DataFrame:
    """Return ``clients.csv``, a row a client and evaluation; empty where there is none.

    ``last``: the last row of every client alone, in the clients' order.
    """
    lines = formats.read_evaluations(path, last=last) if path.exists() else []
    if last:
        lines.sort(key=lambda line: files.client_order(line["client"]))
    frame = pd.DataFrame(lines, columns=None if lines else list(formats.FIRST))
    return frame.astype(dict.fromkeys(formats.FIRST[-2:], float))


def _read_folder(path: Path) -> RunRecord:
    files.check_entries(path)
    folder, counts = RunFolder(path), None
    config, (summary, lines) = files.read_yaml(folder.config), folder.read_result()
    if not summary:
        raise RunFailed(f"not finished: round {len(lines)} of {config.get('rounds', '?')}")
    if summary["status"] != "completed":
        reason = summary["reason"] or "no reason recorded"
        raise RunFailed(one_line(f"{summary['status']}: {reason}"))
    if diverged(lines[-1]):
        raise RunFailed("failed: it diverged: no reply of the last round was accepted")
    kept = [n for n in lines[-1] if n in _ROUND or n.startswith(_FIGURES) or n.endswith("norm")]
    if folder.partition.exists():
        classes, held = formats.read_partition(folder.partition)
        if all(held.values()):
            counts = pd.DataFrame([*held.values()], [*held], classes)
    rounds = pd.DataFrame([[line.get(n) for n in kept] for line in lines], columns=kept)
    if participants_mean("accuracy") not in rounds and folder.clients.exists():
        rounds = _with_participants(rounds, evaluations(folder.clients))
    return RunRecord(
        path.name, {key: value for key, value in config.items() if key not in _MACHINE}, summary,
        files.read_json(folder.environment) if folder.environment.exists() else {}, rounds,
        evaluations(folder.clients, last=True), counts, path,
    )  # fmt: skip


def _with_participants(rounds: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add the participants' means to rounds that an older fedhet recorded without them."""
    own = rows[rows["generation"] == rows["round"]].groupby("round")
    means = own[[f"test_{name}" for name in METRICS if f"test_{name}" in rows]].mean()
    whole = own.size().reindex(rounds["round"], fill_value=0).to_numpy() == rounds["replied"]
    means = means.reindex(rounds["round"]).set_axis(rounds.index).where(whole)
    return rounds.join(means.add_prefix("participants_").add_suffix("_mean"))


def _unpacked(path: Path) -> RunRecord:
    """Inverse of :func:`pack`; the run is named after its file."""
    content = files.read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(f"not a packed record: no format '{FORMAT}'")
    counts = None
    if held := content["partition"]:
        classes = list(map(str, held["classes"]))
        table = np.zeros((len(held["clients"]), len(classes)), int)
        for row, text in zip(table, held["clients"].values(), strict=True):
            for k, n in (pair.split(":") for pair in text.split()):
                row[int(k)] = n
        counts = pd.DataFrame(table, list(held["clients"]), classes)
    clients = {_OLDER.get(name, name): entry for name, entry in content["clients"].items()}
    return RunRecord(
        path.stem, content["config"], content["summary"], content["environment"],
        pd.DataFrame(content["rounds"]), pd.DataFrame(clients), counts,
    )  # fmt: skip


def _checked(run: RunRecord) -> RunRecord:
    """Give a run its place, and numbers as floats; raise ValueError for what does not fit."""
    files.shaped(formats.Started, run.config, "its configuration")
    files.shaped(formats.Summary, run.summary, "its summary")
    files.shaped(formats.Environment, run.environment, "its environment")
    paths = {key: Path(str(run.config[key])).name for key in FILES if run.config.get(key)}
    run.config = {**run.config, **paths}
    rounds = run.rounds = run.rounds.astype(float)
    clients = run.clients = pd.DataFrame({
        name: column if name in {"client", "model"} else column.astype(float)
        for name, column in run.clients.items() if name != "round"
    })  # fmt: skip
    run.place()
    if rounds["round"].tolist() != list(range(1, run.summary.get("rounds", len(rounds)) + 1)):
        raise ValueError(f"rounds.jsonl has other rounds than 1 to {run.summary['rounds']}")
    if not clients["client"].is_unique:
        raise ValueError("clients: one is there twice")
    if (every := int(run.config.get("evaluate-every", 1))) > 1:
        repeated = (rounds["round"] % every != 0) & (rounds["round"] < len(rounds))
        rounds.loc[repeated, rounds.columns.str.startswith(_FIGURES)] = math.nan
    if rounds["test_accuracy_mean"].isna().all():
        raise ValueError("no round was evaluated")
    # Where everybody replied, the participants' mean is that over all.
    everybody = (rounds["replied"] == int(run.summary.get("clients") or 0)).all()
    for name in METRICS if everybody else ():
        if (column := f"test_{name}_mean") in rounds:
            mean = participants_mean(name)
            rounds[mean] = rounds.get(mean, rounds[column]).fillna(rounds[column])
    last = rounds.iloc[-1]
    ends = {"rounds.jsonl": last["test_accuracy_mean"]}
    if not run.means_alone:
        tests, evaluated = clients["test_accuracy"], last.get("evaluated_clients", 0)
        if 0 < evaluated != tests.count():
            raise ValueError(f"clients.csv has {tests.count()} of {evaluated:g} clients")
        ends["clients.csv"] = tests.mean()
    expected = run.summary.get("test_accuracy_mean")
    for name, end in ends.items():
        if expected is not None and not math.isclose(end, expected, rel_tol=0, abs_tol=_CLOSE):
            whole = f"and summary.json with {expected:.2f} %"
            raise ValueError(f"{name} ends with {end:.2f} %, {whole}")
    return run


def pack(runs: Iterable[RunRecord], folder: Path) -> None:
    """Write each run as one small JSON file; further ones of a name are numbered."""
    times: Counter[str] = Counter()
    for run in runs:
        times[run.name] += 1
        name = run.name + f"-{times[run.name]}" * (times[run.name] > 1)
        held = None
        if run.counts is not None:
            shares = {
                client: " ".join(f"{k}:{n}" for k, n in enumerate(row) if n)
                for client, row in zip(run.counts.index, run.counts.to_numpy(), strict=True)
            }
            held = {"classes": list(run.counts.columns), "clients": shares}
        content = {
            "format": FORMAT, "name": name, "config": dict(run.config),
            "summary": dict(run.summary),
            "environment": {
                k: v for k, v in run.environment.items() if k not in {"started", "device"}
            },
            "rounds": _columns(run.rounds), "clients": _columns(run.clients), "partition": held,
        }  # fmt: skip
        text = json.dumps(files.finite(content), separators=(",", ":"))
        files.write_text(folder / f"{name}{SUFFIX}", text + "\n")


def _columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return columns as lists: whole numbers as such, None for what is missing."""
    short = frame.convert_dtypes()
    return dict(short.astype(object).where(short.notna(), None).to_dict("list"))


# --- which runs belong together ------------------------------------------------------------------


def arrange(runs: Sequence[RunRecord], left_out: list[LeftOut]) -> list[RunRecord]:
    """Return runs in order; a second one of its setting, variant and block goes to ``left_out``."""
    for run in runs:
        run.place()
    for method in {run.method for run in runs if not own_defaults(run.method)}:
        group = [run for run in runs if run.method == method]  # what differs is what is known
        differing = _differing([run.keys for run in group])
        for run in group:
            run.keys = {key: run.keys[key] for key in differing if key in run.keys}
    first: dict[tuple[Any, ...], RunRecord] = {}
    together: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        other = first.setdefault((run.setting.slug, run.variant, run.block, run.precision), run)
        if other is run:
            together[run.setting.slug].append(run)
        else:
            same = other.summary.get("run_sha256") == run.summary.get("run_sha256")
            what = f"{'the same result as' if same else 'ANOTHER result than'} '{other.name}'"
            left_out.append(LeftOut(run.name, f"a second run of one cell, with {what}"))
    left_out.sort()
    for group in together.values():
        _choose_precision(group)
    _name([group[0].setting for group in together.values()])
    papers = {name: place for place, name in enumerate(SPELT)}  # the order of their tables

    # By data and size, then the papers' order of methods, defaults before ablations.
    def order(run: RunRecord) -> tuple[Any, ...]:
        setting, at = run.setting, papers.get(run.method, len(papers))
        return (setting.data, setting.keys["clients"], setting.keys["fraction"], setting.conditions,
                at, run.method, len(run.keys), _json(run.keys), run.block)  # fmt: skip

    return sorted(first.values(), key=order)


def _differing(maps: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for one in maps for key in one)
    return [key for key in keys if len({plain(one.get(key)) for one in maps}) > 1]


def _choose_precision(group: Sequence[RunRecord]) -> None:
    """Compare a setting's runs in the precision that has most of them, fp32 at a tie."""
    runs = Counter(run.precision for run in group)
    ranked = sorted(runs, key=lambda p: (-runs[p], p != DEFAULTS["precision"], p))
    setting = next(run.setting for run in group if run.precision == ranked[0])
    made = {(run.variant, run.precision) for run in group}
    for run in group:
        run.setting = setting
        run.compared = run.precision == next(p for p in ranked if (run.variant, p) in made)


def _name(settings: Sequence[Setting]) -> None:
    """Call settings by data, N and C, and those of one name by the keys in which they differ."""
    symbols = {key: symbol for symbol, key in _SYMBOLS.items()}
    named: dict[str, list[Setting]] = defaultdict(list)
    for one in settings:
        data = _DATA.get(one.data, one.data[:1].upper() + one.data[1:])
        title = cut(one_line(f"{data}, N = {one.keys['clients']}, C = {one.share} %", None))
        named[title + f", {SEARCHED}" * bool(one.keys["tuned"])].append(one)
    for title, same in named.items():
        differing = [key for key in _differing([one.keys for one in same]) if key != "precision"]
        for one in same:
            shown = [f"{symbols.get(k, k)} = {cut(plain(one.keys[k]))}" for k in differing]
            one.title = ", ".join([title, *shown])


def method_name(method: str) -> str:
    """Return a method's spelling: its authors', or the name that it is run by."""
    if method in SPELT:
        return SPELT[method]
    module, _, name = method.partition(":")
    shown = module if name == "METHOD" and module not in SPELT else method
    return shown if re.fullmatch(r"[^\W_][\w.:-]*", shown) else repr(shown)


@lru_cache
def own_defaults(method: str) -> dict[str, Any]:
    """Return a method's own keys with their defaults; none of ``module:NAME`` and unknown ones."""
    try:
        return {} if ":" in method else find_method(method).params().flat()
    except UserError:
        return {}


def plain(value: Any) -> str:
    """Return a value as it is written on the command line; a mapping as JSON, which YAML reads."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def cut(text: str, letters: int = LETTERS) -> str:
    """Shorten a text that is too long for its place."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"

"""Read finished runs: run folders, sweeps, and packed records of either.

A packed record is one JSON file with everything of a run folder that a report uses and, of the
machine, its processor. It is small enough to be committed, and gives the same report.
"""

import contextlib
import hashlib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedhet.config.registry import METHODS, SPELT, find_method
from fedhet.config.registry import method_name as known_as
from fedhet.config.schema import METRICS, TUNABLE, RunConfig, as_yaml, kebab
from fedhet.data.inputs import DATASETS, noun
from fedhet.errors import Damaged, UserError, one_line
from fedhet.files import (
    check_entries,
    client_order,
    finite,
    near,
    read_json,
    read_yaml,
    shaped,
    write_text,
)
from fedhet.plugins import is_given
from fedhet.records.formats import (
    FIRST,
    Environment,
    Started,
    Summary,
    read_evaluations,
    read_partition,
)
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
_DAMAGE = (OSError, ValueError, TypeError, LookupError, AttributeError, UserError, Damaged)


@dataclass(frozen=True)
class RunRecord:
    """One completed run.

    ``rounds`` has a line a round and columns as in ``rounds.jsonl``, accuracies only where clients
    were evaluated. ``clients`` has a line a client, its last evaluation. ``counts`` has training
    examples by client (rows) and class; None without ``partition.csv``.
    """

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    rounds: pd.DataFrame
    clients: pd.DataFrame
    counts: pd.DataFrame | None = None
    folder: Path | None = None  # None: a packed record
    title: str = ""  # what the preset of its sweep calls its setting
    note: str = ""  # of its sweep, such as a profile

    @property
    def means_alone(self) -> bool:
        """Whether the server learned sums only, and no client's own figures."""
        return bool((self.summary.get("secure_sum") or {}).get("absent"))


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
        paths, indexed = _find(place), _indexes(place)
        if not paths:
            raise UserError(
                f"'{place}' has no run folder (config.yaml and rounds.jsonl), sweep or packed "
                "record"
                if place.exists()
                else f"'{place}' does not exist{near(place)}"
            )
        for path in paths:
            name = path.stem if path.is_file() else path.name
            try:
                one = read_run(path)
            except Damaged as error:
                one = LeftOut(name, f"cannot be read: {error}")
            if isinstance(one, LeftOut):
                left_out.append(one)
            else:
                title, note = indexed.get(name, ("", ""))
                runs.append(replace(one, title=one.title or title, note=note))
    return sorted(runs, key=lambda run: run.name), sorted(left_out)


def _find(place: Path) -> list[Path]:
    """Return a run folder, a packed record, or those in a folder of runs or of sweeps."""
    if (place / "config.yaml").is_file() or (place.is_file() and place.suffix == SUFFIX):
        return [place]
    folders = [path.parent for depth in ("*", "*/*") for path in place.glob(f"{depth}/config.yaml")]
    return sorted([*folders, *place.glob(f"*{SUFFIX}"), *place.glob(f"*/*{SUFFIX}")])


def _indexes(place: Path) -> dict[str, tuple[str, str]]:
    """Return title and note of the sweep of every cell below a folder."""
    titles: dict[str, tuple[str, str]] = {}
    for path in sorted([*place.glob("sweeps/*/sweep.json"), *place.glob("*/sweeps/*/sweep.json")]):
        with contextlib.suppress(*_DAMAGE):  # being written, or none of ours
            index = read_json(path)
            one = (
                index.get("title") or "",
                f"{index['sweep']}: {index['note']}" * bool(index["note"]),
            )
            titles |= {str(cell["name"]): one for cell in index["cells"]}
    return titles


def read_run(path: Path) -> RunRecord | LeftOut:
    """Read a run folder or a packed record; raise Damaged if it is damaged."""
    try:
        return _unpacked(path) if path.is_file() else _read_folder(path)
    except _DAMAGE as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Damaged(one_line(text.replace(f"{path}/", ""), 200)) from error


def evaluations(path: Path) -> pd.DataFrame:
    """Return ``clients.csv``, a row a client and evaluation; empty where there is none."""
    return _table(read_evaluations(path) if path.exists() else [])


def _table(lines: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(lines, columns=None if lines else list(FIRST)).astype(
        dict.fromkeys(FIRST[-2:], float)
    )


def _read_folder(path: Path) -> RunRecord | LeftOut:
    check_entries(path)
    folder, counts = RunFolder(path), None
    config, (summary, lines) = read_yaml(folder.config), folder.read_result()
    if not summary:
        reason = f"not finished: round {len(lines)} of {config.get('rounds', '?')}"
        return LeftOut(path.name, reason)
    if summary["status"] != "completed":
        reason = f"{summary['status']}: {summary['reason'] or 'no reason recorded'}"
        return LeftOut(path.name, one_line(reason))
    if diverged(lines[-1]):
        return LeftOut(path.name, "failed: it diverged: no reply of the last round was accepted")
    kept = [n for n in lines[-1] if n in _ROUND or n.startswith(_FIGURES) or n.endswith("norm")]
    rows = read_evaluations(folder.clients) if folder.clients.exists() else []
    last = {line["client"]: line for line in rows}
    rounds = pd.DataFrame([[line.get(n) for n in kept] for line in lines], columns=kept)
    if rows and participants_mean("accuracy") not in rounds:
        rounds = _with_participants(rounds, _table(rows))
    if folder.partition.exists():
        classes, held = read_partition(folder.partition)
        if all(held.values()):
            counts = pd.DataFrame([*held.values()], [*held], classes)
    return _checked(
        RunRecord(
            path.name, {key: value for key, value in config.items() if key not in _MACHINE},
            summary, read_json(folder.environment) if folder.environment.exists() else {},
            rounds,
            _table([last[name] for name in sorted(last, key=client_order)]).drop(columns="round"),
            counts, path,
        )
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
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(f"not a packed record: no format '{FORMAT}'")
    counts = None
    if held := content["partition"]:
        classes = list(map(str, held["classes"]))
        rows = [dict(pair.split(":") for pair in row.split()) for row in held["clients"].values()]
        table = [[int(row.get(str(k), 0)) for k in range(len(classes))] for row in rows]
        counts = pd.DataFrame(table, list(held["clients"]), classes)
    clients = {_OLDER.get(name, name): entry for name, entry in content["clients"].items()}
    return _checked(
        RunRecord(
            path.stem, content["config"], content["summary"], content["environment"],
            pd.DataFrame(content["rounds"]), pd.DataFrame(clients), counts,
            title=str(content.get("title", "")),
        )
    )  # fmt: skip


def _checked(run: RunRecord) -> RunRecord:
    """Return a run with numbers as floats; raise ValueError for what does not fit the rest."""
    shaped(Started, run.config, "its configuration")
    shaped(Summary, run.summary, "its summary")
    shaped(Environment, run.environment, "its environment")
    config = {
        key: Path(str(value)).name if key in FILES and value else value
        for key, value in run.config.items()
    }
    rounds, clients = run.rounds.astype(float), run.clients.reset_index(drop=True)
    clients = clients.astype({n: float for n in clients if n not in {"client", "model"}})
    if rounds["round"].tolist() != list(range(1, run.summary.get("rounds", len(rounds)) + 1)):
        raise ValueError(f"rounds.jsonl has other rounds than 1 to {run.summary['rounds']}")
    if not clients["client"].is_unique:
        raise ValueError("clients: one is there twice")
    if (every := int(config.get("evaluate-every", 1))) > 1:
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
    ends = {"rounds.jsonl": rounds["test_accuracy_mean"].iloc[-1]}
    if not run.means_alone:
        evaluated, tests = rounds.get("evaluated_clients"), clients["test_accuracy"]
        if evaluated is not None and 0 < evaluated.iloc[-1] != tests.count():
            raise ValueError(f"clients.csv has {tests.count()} of {evaluated.iloc[-1]:g} clients")
        ends["clients.csv"] = tests.mean()
    expected = run.summary.get("test_accuracy_mean")
    for name, end in ends.items():
        if expected is not None and not math.isclose(end, expected, rel_tol=0, abs_tol=_CLOSE):
            whole = f"and summary.json with {expected:.2f} %"
            raise ValueError(f"{name} ends with {end:.2f} %, {whole}")
    return replace(run, config=config, rounds=rounds, clients=clients)


def pack(runs: Iterable[RunRecord], folder: Path) -> None:
    """Write each run as one small JSON file; further ones of a name are numbered."""
    taken: set[str] = set()
    for run in runs:
        name, number = run.name, 1
        while name in taken:
            number += 1
            name = f"{run.name}-{number}"
        taken.add(name)
        held = None
        if run.counts is not None:
            shares = {
                client: " ".join(f"{k}:{n}" for k, n in enumerate(row) if n)
                for client, row in zip(run.counts.index, run.counts.to_numpy(), strict=True)
            }
            held = {"classes": list(run.counts.columns), "clients": shares}
        content = {
            "format": FORMAT, "name": name, **({"title": run.title} if run.title else {}),
            "config": dict(run.config), "summary": dict(run.summary),
            "environment": {
                k: v for k, v in run.environment.items() if k not in {"started", "device"}
            },
            "rounds": _columns(run.rounds), "clients": _columns(run.clients), "partition": held,
        }  # fmt: skip
        lines = [
            f'"{key}": {json.dumps(finite(value), separators=(",", ":"))}'
            for key, value in content.items()
        ]
        write_text(folder / f"{name}{SUFFIX}", "{" + ",\n".join(lines) + "}\n")


def _columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return columns as lists: whole numbers as such, None for what is missing."""
    short = frame.convert_dtypes()
    columns: dict[str, list[Any]] = short.astype(object).where(short.notna(), None).to_dict("list")
    return columns


# --- settings, variants, blocks ------------------------------------------------------------------
# A *setting* is everything in a configuration except the method, its own keys and the seeds: the
# conditions under which methods are compared. A *variant* is a method with those of its own keys
# that are not at their defaults. A *block* is a pair of partition seed and seed, which all variants
# of a setting share. Runs in several precisions belong to one setting.
# No code that a record names is imported: a method `module:NAME` is known by that name alone.

Block = tuple[int, int]  # partition seed, seed

SEARCHED = "tuned"  # value of a key that was searched for each method
_DATA = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fashion-mnist": "Fashion-MNIST",
    "office_caltech": "Office-Caltech", "ag_news": "AG News", "har": "HAR",
}  # fmt: skip
# Seeds, and keys that say where and how a run was carried out or told of, not what it computed.
IN_NO_SETTING = {
    "seed", "partition-seed",
    "out", "name", "state-dir", "keep-state", "keep-best", "keep-predictions",
    "state-backend", "hide-classes",  # of older records
    "metric", "tensorboard", "tracker", "device", "actors", "threads", "engine", "round-timeout",
    "start-timeout", "evaluate-every",
}  # fmt: skip
# Methods' keys of older versions, with the value that is all there is today.
_GONE = {"projector": "linear", "prototype-weighting": "count", "header-bias": True}
_COMMON = {
    kebab(name): field.default for name, field in RunConfig.model_fields.items() if name != "params"
}
_SYMBOLS = {  # the papers' symbols, and keys that a setting's conditions always name
    "N": "clients", "C": "fraction", "models": "models", "E": "local-epochs", "B": "batch-size",
    "lr": "lr", "T": "rounds",
}  # fmt: skip
_SAID = {*_SYMBOLS.values(), "dataset", "data-path", "classes-per-client", "alpha"}
_BRACES = re.compile(r"\{([a-z0-9-]+)\}")
_COUNTED = re.compile(r"\b(\d+) clients\b")
LETTERS = 80  # of a title


@dataclass
class Setting:
    """The conditions of a comparison; ``keys`` are all shared keys with their values."""

    keys: Mapping[str, Any]
    title: str = ""  # short; no other setting of the report has it

    @cached_property
    def data(self) -> str:
        """The data set by its own name, a folder or file by its own name."""
        name = str(self.keys["dataset"])
        if is_given(name):
            return f"own {noun(name)} {name[-16:-12]}"
        if name not in ("image-folder", *DATASETS):
            return name.partition(":")[0]
        return Path(str(self.keys["data-path"])).stem.lower() or name

    @cached_property
    def slug(self) -> str:
        """Return a name that depends on the setting alone, for anchors and files.

        Keys at their defaults are left out, so that a new key of fedhet changes no name.
        """
        off = {key: value for key, value in self.off_default().items() if key != "precision"}
        digest = hashlib.sha256(json.dumps(off, sort_keys=True, default=str).encode()).hexdigest()
        share = f"{100 * self.keys['fraction']:g}"
        name = f"{self.data[:60]}-n{self.keys['clients']}-c{share}-{digest[:6]}"
        return re.sub(r"[^a-zA-Z0-9_-]+", "_", name)

    def off_default(self) -> dict[str, Any]:
        """Return the keys that are not at their defaults."""
        return {key: value for key, value in self.keys.items() if value != at_default(key)}

    def command(self, method: str, block: str) -> str:
        """Return the command that makes one run of the setting, without what was searched."""
        given = [
            shlex.quote(one_line(f"{key}={plain(value)}", None))
            for key, value in self.off_default().items()
            if value != SEARCHED and key != "tuned"
        ]
        name = method if method in METHODS else f"fedssa method={method}"
        partition, _, seed = block.partition("/")
        line = " ".join([f"fedhet run {name}", *given, f"partition-seed={partition} seed={seed}"])
        objects = any(map(is_given, re.findall(r"[^\s=,]+", line)))
        return line + "  # names with a digest are objects: give them to fedhet.run" * objects

    @cached_property
    def conditions(self) -> str:
        """One line with all that the setting fixes and a reader must know."""
        keys, off = self.keys, self.off_default()
        said = {name: plain(keys[key]) for name, key in _SYMBOLS.items()}
        said["C"] = f"{100 * keys['fraction']:g} %"
        said |= {key: plain(off[key]) for key in off if key not in _SAID}
        if str(keys["partition"]).startswith(("dirichlet", "quantity")):
            said["alpha"] = plain(keys["alpha"])
        elif keys["partition"] == "classes-per-client":
            said["classes per client"] = plain(keys["classes-per-client"])
        return ", ".join([self.data, *(f"{name} = {value}" for name, value in said.items())])

    @cached_property
    def whole(self) -> str:
        """A text that is equal for settings that differ only in the number of rounds.

        The shorter of them is the beginning of the longer, unless a schedule of the learning rate
        or the noise of a privacy budget is spread over all rounds.
        """
        keys = {k: v for k, v in self.keys.items() if k != "precision"}
        if keys["lr-schedule"] == at_default("lr-schedule") and not keys["dp-epsilon"]:
            del keys["rounds"]
        return json.dumps(keys, sort_keys=True, default=str)


@dataclass
class Placed:
    """A run with its place: setting, method, own keys off default, block, precision."""

    run: RunRecord
    setting: Setting
    method: str
    keys: dict[str, Any]
    main: bool = True  # False: another precision than the one that the comparison is in

    @property
    def variant(self) -> str:
        """The name in tables; no two variants of a setting share one."""
        own = ", ".join(f"{key}={plain(value)}" for key, value in sorted(self.keys.items()))
        return method_name(self.method) + (f" ({own})" if own else "")

    @property
    def block(self) -> Block:
        """Partition seed and seed."""
        seed = int(self.run.config.get("seed", 0))
        partition = int(self.run.config.get("partition-seed", -1))
        return (seed if partition < 0 else partition), seed

    @property
    def precision(self) -> str:
        """The precision that the run was made in."""
        return str(self.run.config.get("precision", at_default("precision")))

    @property
    def order(self) -> tuple[Any, ...]:
        """Settings by data and size, the papers' order of methods, defaults before ablations."""
        keys = self.setting.keys
        place = list(SPELT).index(self.method) if self.method in SPELT else len(SPELT)
        own = len(self.keys), json.dumps(self.keys, sort_keys=True)
        return (self.setting.data, keys["clients"], keys["fraction"], self.setting.conditions,
                place, self.method, own, self.block)  # fmt: skip


def arrange(runs: Sequence[RunRecord], left_out: list[LeftOut]) -> list[Placed]:
    """Place every run; a second one of its setting, variant and block is added to ``left_out``."""
    every = [_place(run) for run in runs]
    _drop_constant(every)
    first: dict[tuple[Any, ...], Placed] = {}
    together: dict[str, list[Placed]] = {}
    for one in every:
        other = first.setdefault((one.setting.slug, one.variant, one.block, one.precision), one)
        if other is one:
            together.setdefault(one.setting.slug, []).append(one)
        else:
            same = other.run.summary.get("run_sha256") == one.run.summary.get("run_sha256")
            what = "the same result as" if same else "ANOTHER result than"
            reason = f"a second run of one cell, with {what} '{other.run.name}'"
            left_out.append(LeftOut(one.run.name, reason))
    left_out.sort()
    for group in together.values():
        _choose_precision(group)
        _name(group)
    _tell_titles_apart([group[0].setting for group in together.values()])
    return sorted(first.values(), key=lambda one: one.order)


def _place(run: RunRecord) -> Placed:
    """Split a flat configuration into the setting's keys and the method's own that are not default.

    What is missing in a record of another version has its default; a key that this version lacks
    counts as absent if it is off (false, 0, empty). What was searched for each
    method belongs to neither; the setting says that it was searched.
    """
    config = run.config
    tuned = config.get("tuned")
    searched = {k for k in tuned if isinstance(k, str)} if isinstance(tuned, list) else set()
    shared = {
        key: config.get(key, at_default(key))
        for key in _COMMON
        if key not in IN_NO_SETTING | {"method"}
    }
    shared |= {key: Path(str(shared[key])).name for key in FILES if key in shared}
    shared |= dict.fromkeys(TUNABLE & searched, SEARCHED)
    shared["tuned"] = sorted(TUNABLE & searched)
    method = known_as(str(config.get("method", "fedssa")))
    defaults = _GONE | own_defaults(method)
    own_keys = {
        key: value
        for key, value in config.items()
        if key not in _COMMON
        and key not in IN_NO_SETTING | searched
        and (value != defaults[key] if key in defaults else value or ":" in method)
    }
    return Placed(run, Setting(shared), method, own_keys)


def _drop_constant(every: Sequence[Placed]) -> None:
    """Of a method whose defaults are unknown, keep the keys in which its runs differ."""
    for method in {one.method for one in every if not own_defaults(one.method)}:
        group = [one for one in every if one.method == method]
        differing = _differing([one.keys for one in group])
        for one in group:
            one.keys = {key: one.keys[key] for key in differing if key in one.keys}


def _differing(maps: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for one in maps for key in one)
    return [key for key in keys if len({plain(one.get(key)) for one in maps}) > 1]


def _choose_precision(own: Sequence[Placed]) -> None:
    """Compare a setting's runs in the precision that has most of them, fp32 at a tie."""
    runs = Counter(one.precision for one in own)
    ranked = sorted(runs, key=lambda p: (-runs[p], p != at_default("precision"), p))
    main = next(one.setting for one in own if one.precision == ranked[0])
    for one in own:
        made = {other.precision for other in own if other.variant == one.variant}
        one.setting = main
        one.main = one.precision == next(p for p in ranked if p in made)


def _name(own: Sequence[Placed]) -> None:
    """Give a setting the title of its runs' preset, if that fits, or one made from its keys."""
    setting = own[0].setting
    count = str(setting.keys["clients"])
    titles = [
        one.run.title for one in own
        if one.run.title and ((told := _COUNTED.search(one.run.title)) is None or told[1] == count)
    ]  # fmt: skip
    setting.title = _filled(setting, [*titles, "{data}, N = {clients}, C = {fraction}"][0])
    if setting.keys["tuned"] and SEARCHED not in setting.title:
        setting.title += f", {SEARCHED}"


def _tell_titles_apart(settings: Sequence[Setting]) -> None:
    """Add to equal titles the keys in which their settings differ."""
    symbols = {key: symbol for symbol, key in _SYMBOLS.items()}
    for title, count in Counter(one.title for one in settings).items():
        same = [one for one in settings if one.title == title] if count > 1 else []
        differing = [key for key in _differing([one.keys for one in same]) if key != "precision"]
        for setting in same:
            said = [f"{symbols.get(k, k)} = {cut(plain(setting.keys[k]))}" for k in differing]
            setting.title = ", ".join([title, *said])


def _filled(setting: Setting, pattern: str) -> str:
    """Fill in keys in braces. No ``str.format``: a stranger's title could ask for any width."""
    keys = {key: plain(value) for key, value in setting.keys.items()}
    data = _DATA.get(setting.data, setting.data[:1].upper() + setting.data[1:])
    keys |= {"data": data, "fraction": f"{100 * setting.keys['fraction']:g} %"}
    shown = _BRACES.sub(lambda key: cut(keys.get(key[1], key[0])), pattern[:LETTERS])
    return cut(one_line(shown, None))


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
        fields = {} if ":" in method else find_method(method).params.model_fields
    except UserError:
        return {}
    return {kebab(name): as_yaml(one.default) for name, one in fields.items()}


def at_default(key: str) -> Any:
    """Return the default of a key of every run, as a record has it."""
    return as_yaml(_COMMON[key])


def plain(value: Any) -> str:
    """Return a value as it is written on the command line; a mapping as JSON, which YAML reads."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def cut(text: str, letters: int = LETTERS) -> str:
    """Shorten a text that is too long for its place."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"

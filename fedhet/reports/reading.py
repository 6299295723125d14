"""Read finished runs: run folders, sweeps, and packed records of either.

A packed record is one JSON file with everything of a run folder that a report uses and, of the
machine, its processor. It is small enough to be committed, and gives the same report.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel

from fedhet.config.schema import METRICS
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
from fedhet.records.formats import Environment, Started, Summary, read_partition, read_rows
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import diverged, participants_mean

FORMAT = "fedhet run record 1"
SUFFIX = ".run"  # JSON inside; Flower sends every .json of a repository to all clients
DEPTH = 2  # a sweep's folder holds run folders; a folder of sweeps may be given as well
FILES = ("data-path", "partition-file")  # keys of which the last part is kept
_MACHINE = {"out", "name", "state-dir"}  # keys of the configuration that a record leaves out
_CLOSE = 1e-6  # points; some packed records keep ten digits
_NEEDED = ["round", "replied", "train_flops", "uplink_floats", "downlink_floats"]
_ROUND = {*_NEEDED, "train_loss", "sampled", "failed", "evaluated_clients", "uplink_bytes",
          "downlink_bytes"}  # fmt: skip
_FIGURES = ("test_", "val_", "participants_test_")
_TEXTS = ["client", "model"]
_UNUSED = {"round", "other"}  # columns of clients
_SCORES = ["test_accuracy", "val_accuracy"]
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
        indexes = sweep_indexes(place)
        titles = {cell.get("name"): index.title for index in indexes for cell in index.cells}
        try:
            found = list(_find(place, DEPTH))
        except OSError as error:
            raise UserError(f"'{place}' cannot be read: {error.strerror or error}") from error
        if not found:
            raise UserError(
                f"'{place}' has no run folder (config.yaml and rounds.jsonl), sweep or packed "
                "record"
                if place.exists()
                else f"'{place}' does not exist{near(place)}"
            )
        for path in found:
            try:
                one = read_run(path)
            except Damaged as error:
                name = path.stem if path.is_file() else path.name
                one = LeftOut(name, f"cannot be read: {error}")
            if isinstance(one, LeftOut):
                left_out.append(one)
            else:
                runs.append(replace(one, title=one.title or titles.get(one.name, "")))
    return sorted(runs, key=lambda run: run.name), sorted(left_out)


def _find(place: Path, depth: int) -> Iterable[Path]:
    if place.is_file():
        if place.suffix == SUFFIX:
            yield place
    elif (place / "config.yaml").is_file():
        yield place
    elif place.is_dir() and depth:
        for child in sorted(place.iterdir()):
            yield from _find(child, depth - 1)


class SweepIndex(BaseModel):
    """The content of a sweep's ``sweep.json``."""

    title: str = ""
    note: str = ""
    sweep: str = ""
    cells: list[dict[str, Any]]


def sweep_indexes(place: Path) -> list[SweepIndex]:
    """Return the indexes of the sweeps below a folder; those that cannot be read are left out."""
    found = []
    for path in sorted([*place.glob("sweeps/*/sweep.json"), *place.glob("*/sweeps/*/sweep.json")]):
        try:
            found.append(SweepIndex.model_validate_json(path.read_bytes()))
        except (OSError, ValueError):  # being written, or none of ours
            continue
    return found


def read_run(path: Path) -> RunRecord | LeftOut:
    """Read a run folder or a packed record; raise Damaged if it is damaged."""
    try:
        return _unpacked(path) if path.is_file() else _read_folder(path)
    except KeyError as error:
        raise Damaged(f"{error} is missing") from error
    except _DAMAGE as error:
        raise Damaged(one_line(str(error).replace(f"{path}/", ""), 200)) from error


def _read_folder(path: Path) -> RunRecord | LeftOut:
    check_entries(path)
    config, (summary, lines) = read_yaml(path / "config.yaml"), RunFolder(path).read_result()
    if not summary:
        reason = f"not finished: round {len(lines)} of {config.get('rounds', '?')}"
        return LeftOut(path.name, reason)
    if summary["status"] != "completed":
        reason = f"{summary['status']}: {summary.get('reason') or 'no reason recorded'}"
        return LeftOut(path.name, one_line(reason))
    if diverged(lines[-1]):
        return LeftOut(path.name, "failed: it diverged: no reply of the last round was accepted")
    names = list(filter(_kept, dict.fromkeys(chain.from_iterable(lines))))
    rounds = pd.DataFrame([[line.get(name) for name in names] for line in lines], columns=names)
    evaluations = _evaluations(path / "clients.csv")
    clients = evaluations.drop_duplicates("client", keep="last").drop(columns="round")
    environment = path / "environment.json"
    return _checked(
        RunRecord(
            path.name, {key: value for key, value in config.items() if key not in _MACHINE},
            summary, read_json(environment) if environment.exists() else {},
            _with_participants(rounds.astype(float), evaluations),
            clients.sort_values("client", key=lambda ids: ids.map(client_order)),
            _counts(path / "partition.csv"), path,
        )
    )  # fmt: skip


def _kept(name: str) -> bool:
    """Return whether a report uses this figure of a line of ``rounds.jsonl``."""
    return name in _ROUND or name.startswith(_FIGURES) or name.endswith("norm")


def _evaluations(path: Path) -> pd.DataFrame:
    """Return ``clients.csv``."""
    (_, names), *rows = read_rows(path) or [(0, ["round", "client"])]
    for name in ("round", "client"):
        if name not in names:
            raise ValueError(f"{path.name}: column {name} is missing")
    lines = [row for _, row in rows]
    columns = zip(*lines, strict=True) if lines else [()] * len(names)
    columns_by_name = dict(zip(names, columns, strict=True))
    evaluations = _clients(columns_by_name)
    return evaluations.assign(round=np.array(columns_by_name["round"], dtype=float))


def _with_participants(rounds: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Add the participants' means to rounds that an older fedhet recorded without them.

    They are the means over the evaluations of a round's own generation, if everybody who replied
    has one.
    """
    own = evaluations[evaluations["generation"] == evaluations["round"]].groupby("round")
    whole = own.size().reindex(rounds["round"]).to_numpy() == rounds["replied"].to_numpy()
    for name in METRICS:
        if (column := f"test_{name}") in evaluations:
            means = own[column].mean().reindex(rounds["round"]).to_numpy()
            computed = pd.Series(np.where(whole, means, math.nan), rounds.index)
            recorded = rounds.get(participants_mean(name), computed)
            rounds[participants_mean(name)] = recorded.fillna(computed)
    return rounds


def _clients(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return texts, then numbers as floats, of which an empty one is missing."""
    texts = {name: list(columns[name]) for name in _TEXTS}
    names = [name for name in columns if name not in {*_TEXTS, *_UNUSED}]
    numbers = [[math.nan if one == "" else one for one in columns[name]] for name in names]
    values = np.array(numbers, dtype=float).reshape(len(names), -1)
    return pd.DataFrame(texts | dict(zip(names, values, strict=True)))


def _counts(path: Path) -> pd.DataFrame | None:
    """Return ``partition.csv``; None where there is none."""
    if not path.exists():
        return None
    dealt = read_partition(path)
    counts = list(dealt.counts.values())
    return pd.DataFrame(counts, list(dealt.counts), list(dealt.classes))


def _unpacked(path: Path) -> RunRecord:
    """Inverse of :func:`pack`; the run is named after its file."""
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(f"not a packed record: no format '{FORMAT}'")
    counts = None
    if held := content["partition"]:
        rows = [[0] * len(held["classes"]) for _ in held["clients"]]
        for row, text in zip(rows, held["clients"].values(), strict=True):
            for label, count in (pair.split(":") for pair in text.split()):
                row[int(label)] = int(count)
        counts = pd.DataFrame(rows, list(held["clients"]), list(map(str, held["classes"])))
    return _checked(
        RunRecord(
            path.stem, content["config"], content["summary"], content["environment"],
            pd.DataFrame(content["rounds"], dtype=float),
            _clients({_OLDER.get(name, name): own for name, own in content["clients"].items()}),
            counts, title=str(content.get("title", "")),
        )
    )  # fmt: skip


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
            own = {
                client: " ".join(f"{k}:{n}" for k, n in enumerate(row) if n)
                for client, row in zip(run.counts.index, run.counts.to_numpy(), strict=True)
            }
            held = {"classes": list(run.counts.columns), "clients": own}
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


# --- checks --------------------------------------------------------------------------------------


def _checked(run: RunRecord) -> RunRecord:
    """Return a run with numbers as floats; raise ValueError for what does not fit the rest."""
    shaped(Started, run.config, "its configuration")
    shaped(Summary, run.summary, "its summary")
    shaped(Environment, run.environment, "its environment")
    config = {
        key: Path(str(value)).name if key in FILES and value else value
        for key, value in run.config.items()
    }
    rounds, clients = run.rounds, run.clients.reset_index(drop=True)
    if not len(rounds) or rounds["round"].tolist() != list(range(1, len(rounds) + 1)):
        raise ValueError(f"rounds: {len(rounds)} lines are not the rounds from 1 on")
    needed = rounds[_NEEDED]
    if rounds["train_flops"].isna().all():  # sums do not tell it
        needed = needed.drop(columns="train_flops")
    if not (needed.to_numpy() >= 0).all():
        raise ValueError(f"rounds: one of {', '.join(_NEEDED)} is missing or negative")
    if not clients["client"].is_unique:
        raise ValueError("clients: a client is there twice")
    scores = clients[_SCORES].to_numpy()
    if ((scores < 0) | (scores > 100)).any():
        raise ValueError("clients: an accuracy is not from 0 to 100")
    if (every := int(config.get("evaluate-every", 1))) > 1:
        repeated = rounds["round"] % every != 0
        repeated.iloc[-1] = False
        rounds.loc[repeated, rounds.columns.str.startswith(_FIGURES)] = math.nan
    if rounds.get("test_accuracy_mean", pd.Series(dtype=float)).isna().all():
        raise ValueError("no round was evaluated")
    _fill_participants(rounds, int(run.summary.get("clients") or 0))
    made = replace(run, config=config, rounds=rounds, clients=clients)
    _check_whole(made)
    return made


def _fill_participants(rounds: pd.DataFrame, federation: int) -> None:
    """Where everybody replied, the participants' mean is that over all clients."""
    for name in METRICS:
        mean, column = participants_mean(name), f"test_{name}_mean"
        if column in rounds and (rounds["replied"] == federation).all():
            rounds[mean] = rounds.get(mean, rounds[column]).fillna(rounds[column])


def _check_whole(run: RunRecord) -> None:
    """Raise ValueError if rounds or clients do not fit the summary."""
    rounds, tests = run.rounds, run.clients["test_accuracy"]
    if run.summary.get("rounds", len(rounds)) != len(rounds):
        raise ValueError(f"rounds.jsonl has {len(rounds)} of {run.summary['rounds']} rounds")
    ends = {"rounds.jsonl": rounds["test_accuracy_mean"].iloc[-1]}
    if not run.means_alone:
        evaluated = rounds["evaluated_clients"].iloc[-1] if "evaluated_clients" in rounds else 0
        if evaluated > 0 and evaluated != tests.count():
            raise ValueError(f"clients.csv has {tests.count()} of {evaluated:g} clients")
        ends["clients.csv"] = tests.mean()
    said = run.summary.get("test_accuracy_mean")
    for name, found in ends.items():
        if said is not None and not math.isclose(found, said, rel_tol=0, abs_tol=_CLOSE):
            raise ValueError(f"{name} ends with {found:.2f} %, and summary.json with {said:.2f} %")

"""Finds finished runs: in run folders, in sweeps, and among packed records of either."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedhet import plugins
from fedhet.errors import UserError, VerifyError, one_line
from fedhet.files import client_order
from fedhet.reading.structured import read_json, read_jsonl, read_yaml
from fedhet.records.formats import read_evaluations, read_partition
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import diverged
from fedhet.reports.runs import (
    FORMAT,
    SUFFIX,
    ClientScore,
    Counts,
    LeftOut,
    Run,
    unpack,
    unrepeated,
)
from fedhet.reports.validity import LONGEST, check_types, check_whole

DEPTH = 2  # a sweep's folder holds run folders; a folder of sweeps may be given as well
_DIGITS = 10  # significant ones that are kept: far beyond what is shown, half the size
_MACHINE = ("out", "name", "state-dir")  # keys of the configuration that a record leaves out
_FILES = ("data-path", "partition-file", "public-path")  # of these it keeps the last part
# What a file can do to its reader that is not what fedhet wrote.
_DAMAGE = (
    OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
    UserError, VerifyError,
)  # fmt: skip
_ROUND = {
    "round", "test_accuracy_mean", "train_loss", "sampled", "replied", "failed",
    "evaluated_clients", "uplink_floats", "uplink_bytes", "downlink_floats", "downlink_bytes",
    "train_flops",
}  # fmt: skip


def read_runs(places: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """All finished runs below ``places`` (run folders, sweeps, packed records), by name.

    Raises UserError for a place that is not there or holds no run at all.
    """
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    places = list(places)
    titles = _titles(places)
    for place in places:
        try:
            found = list(_find(place, DEPTH))
        except OSError as error:
            raise UserError(f"'{place}' cannot be read: {error.strerror or error}") from error
        if not found:
            raise UserError(
                f"'{place}': no run folder, sweep or packed record is there: a run folder has "
                "config.yaml and rounds.jsonl"
                if place.exists()
                else f"'{place}': no such file or folder"
            )
        for path in found:
            one = _read(path)
            if isinstance(one, LeftOut):
                left_out.append(one)
            else:
                title = one.title or titles.get(one.name, "")
                runs.append(one if title == one.title else replace(one, title=title))
    runs.sort(key=lambda run: run.name)
    left_out.sort(key=lambda one: one.name)
    return runs, left_out


def own_names(places: Iterable[Path]) -> set[str]:
    """Methods, models and data sets of the runs below ``places`` that this user's fedhet made."""
    found: set[str] = set()
    for place in places:
        for path in _find(place, DEPTH):
            with contextlib.suppress(*_DAMAGE):
                if RunFolder(path).made_here():
                    found |= set(plugins.named(read_yaml(path / "config.yaml")))
    return found


def sweep_notes(places: Iterable[Path]) -> list[str]:
    """What the sweeps of these folders say of themselves, such as that they ran a short profile."""
    notes = (f"{one['sweep']}: {one['note']}" for one in _indexes(places) if one["note"])
    return list(dict.fromkeys(notes))


def _titles(places: Iterable[Path]) -> dict[str, str]:
    """What the sweeps of these folders call the settings of their runs, by the runs' names."""
    found: dict[str, str] = {}
    for one in _indexes(places):
        title = one.get("title", "")
        if isinstance(title, str) and len(title) <= LONGEST:
            found |= {cell["name"]: title for cell in one["cells"]}
    return found


def _indexes(places: Iterable[Path]) -> Iterable[dict[str, Any]]:
    for place in places:
        indexes = [*place.glob("sweeps/*/sweep.json"), *place.glob("*/sweeps/*/sweep.json")]
        for index in sorted(indexes):
            try:
                content = read_json(index)
                names = [cell["name"] for cell in content["cells"]]
                known = all(
                    isinstance(name, str) for name in [*names, content["note"], content["sweep"]]
                )
            except (OSError, VerifyError, KeyError, TypeError):
                continue  # an index that is being written, or none of ours
            if known:
                yield content


def _find(place: Path, depth: int) -> Iterable[Path]:
    if place.is_file():
        if place.suffix == SUFFIX and _is_packed(place):
            yield place
    elif (place / "config.yaml").is_file():
        yield place
    elif place.is_dir() and depth:
        for child in sorted(place.iterdir()):
            yield from _find(child, depth - 1)


def _is_packed(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(100)
    except OSError:
        return True  # :func:`_read` says why it cannot be read


def _read(path: Path) -> Run | LeftOut:
    try:
        return read_run(path)
    except VerifyError as error:
        name = path.stem if path.is_file() else path.name
        return LeftOut(name, f"cannot be read: {error}")


def read_run(path: Path) -> Run | LeftOut:
    """A run folder or a packed record; VerifyError for whatever makes it unreadable."""
    try:
        return unpack(path) if path.is_file() else _read_folder(path)
    except KeyError as error:
        raise VerifyError(f"no {error}") from error
    except _DAMAGE as error:
        what = one_line(str(error).replace(f"{path}/", ""), 200)  # no path of this machine
        raise VerifyError(what) from error


def _read_folder(path: Path) -> Run | LeftOut:
    """A run folder as it is today; of ``environment.json`` and ``partition.csv`` what is there."""
    config = read_yaml(path / "config.yaml")
    if not (path / "summary.json").exists():
        rounds = read_jsonl(path / "rounds.jsonl")
        done = rounds[-1]["round"] if rounds else 0
        reason = f"not finished: round {done} of {config.get('rounds', '?')}"
        return LeftOut(path.name, reason, config)
    summary = read_json(path / "summary.json")
    if summary["status"] != "completed":
        reason = f"{summary['status']}: {summary.get('reason') or 'no reason recorded'}"
        return LeftOut(path.name, one_line(reason), config)
    rounds = read_jsonl(path / "rounds.jsonl")  # after the summary, which a run writes last
    environment = {}
    if (path / "environment.json").exists():
        environment = read_json(path / "environment.json")
    config, summary, environment = _without_machine(config), _short(summary), _short(environment)
    kept = [_short({k: v for k, v in line.items() if _kept(k, v)}) for line in rounds]
    scores = _last_scores(path / "clients.csv")
    check_types(
        config=config, summary=summary, environment=environment, rounds=kept,
        clients=[asdict(score) for score in scores],
    )  # fmt: skip
    run = Run(
        path.name, config, summary, environment, unrepeated(kept, config), scores,
        _counts(path / "partition.csv"), path,
    )  # fmt: skip
    if diverged(rounds[-1]):
        return LeftOut(path.name, "failed: it diverged, in the last round no reply counted", config)
    check_whole(summary, rounds, [score.test for score in run.clients])
    return run if run.evaluated else LeftOut(path.name, "no round was evaluated", config)


def _kept(name: str, value: Any) -> bool:
    numeric = isinstance(value, int | float) or value is None
    return name in _ROUND or (numeric and ("accuracy" in name or "norm" in name))


def _without_machine(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _MACHINE}
    return kept | {key: Path(str(kept[key])).name for key in _FILES if kept.get(key)}


def _short(value: Any) -> Any:
    """Floats with ten significant digits, all through."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _last_scores(path: Path) -> list[ClientScore]:
    """The last line of every client in ``clients.csv``."""
    last = {row.client: row for row in read_evaluations(path)}
    return [
        ClientScore(
            client, row.model, row.generation, _short(row.test_accuracy), _short(row.val_accuracy)
        )
        for client, row in sorted(last.items(), key=lambda pair: client_order(pair[0]))
    ]


def _counts(path: Path) -> Counts | None:
    if not path.exists():
        return None
    dealt = read_partition(path)
    clients = {
        client: {i: n for i, n in enumerate(row) if n} for client, row in dealt.counts.items()
    }
    return Counts(dealt.classes, clients)

"""Runs as pandas DataFrames: a line a run, a line a round, a line a client.

``fedhet.load_sweep(DIR)`` reads runs as ``fedhet report`` does. The columns are described in
docs/how-to/report.md; everything else in a report is computed from these frames.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedhet.config.load import method_name as known_as
from fedhet.config.schema import MAJORITY, METRICS
from fedhet.errors import UserError
from fedhet.reports import figures
from fedhet.reports.comparison import Comparison, adjust, compare, sentences
from fedhet.reports.reading import LeftOut, Run, read_runs
from fedhet.reports.settings import Placed, arrange

COLUMNS = (  # of the frame of runs, before the keys of the configuration
    "run", "setting", "setting_id", "arm", "block", "compared", "accuracy", "balanced_accuracy",
    "macro_f1", "auroc", "log_loss", "ece", "majority_accuracy",
    "accuracy_best_validation", "best_validation",
    "accuracy_sampled", "accuracy_std", "accuracy_p10", "accuracy_worst", "difference",
    "never_sampled", "federation", "floats_up", "floats_down", "gflops", "epsilon", "noise_of",
    "wall_seconds", "failures", "run_sha256", "fedhet_version", "torch_version", "git_commit",
    "processor",
)  # fmt: skip
_PLACE = ["number", "run", "setting_id", "arm", "method", "block", "compared"]


class Runs:
    """Finished runs beside each other, as ``fedhet report`` compares them."""

    def __init__(self, runs: Sequence[Run], left_out: Iterable[LeftOut] = (), baseline: str = ""):
        """``baseline``: the method that others are compared with; raises UserError without it."""
        self.left_out = list(left_out)
        self.placed, failed = arrange(runs, self.left_out)
        if not self.placed:
            first = "; ".join(f"{one.name}: {one.reason}" for one in self.left_out[:3])
            raise UserError(f"there is no finished run to report: {first}")
        self._runs, self._rounds, self._clients = _frames(self.placed)
        settings = {one.setting.slug: one.setting for one in self.placed}
        self.comparisons: list[Comparison] = compare(
            settings, self._runs, self._rounds, self._clients, failed,
            known_as(baseline) if baseline else "",
        )  # fmt: skip
        for one in self.comparisons:
            held = (each.run for each in self.placed if each.setting is one.setting)
            one.counts = next((_counts(run) for run in held if run.counts), None)
        adjust(self.comparisons)
        blocks = [one.differences("accuracy") for one in self.comparisons]
        self._runs["difference"] = pd.concat(blocks).reindex(self._runs["number"]).to_numpy()

    @cached_property
    def verdict(self) -> list[str]:
        """The sentences that a report opens with."""
        return sentences(self.comparisons)

    @property
    def settings(self) -> list[str]:
        """Short names of the settings."""
        return [one.setting.title for one in self.comparisons]

    def frame(self, what: str = "runs") -> pd.DataFrame:
        """Return a frame with a line a run (``runs``), a round (``rounds``) or a client.

        That of runs has a column a figure and, in snake case, a column a key of the configuration.
        """
        frames = {"runs": self._runs, "rounds": self._rounds, "clients": self._clients}
        if what not in frames:
            raise UserError(f"frame: '{what}' is not allowed: runs, rounds, clients")
        return frames[what].drop(columns="number").reset_index(drop=True)

    def differences(self) -> "figures.Picture":
        """Draw paired differences to the baseline, a panel per setting."""
        return figures.differences(self.comparisons)

    def traffic(self) -> "figures.Picture":
        """Draw accuracy against traffic, a panel per setting."""
        return figures.traffic(self.comparisons)

    def figures(self, setting: str = "") -> "list[figures.Picture]":
        """Draw every figure of a setting's details, of the first if none is named."""
        for one in self.comparisons:
            if setting in {"", one.setting.title, one.setting.slug}:
                return figures.of_setting(one)
        raise UserError(f"setting: '{setting}' is none of: {'; '.join(self.settings)}")

    def __repr__(self) -> str:
        return f"<{len(self._runs)} runs in {len(self.settings)} settings>"


def load_sweep(*places: str | os.PathLike[str], baseline: str = "") -> Runs:
    """Read and compare finished runs of sweeps, run folders or packed records.

    ``places`` are their folders or files, ``baseline`` the method that others are compared with,
    Standalone where it was run. Raises UserError if nothing finished is there.
    """
    return Runs(*read_runs(map(Path, places)), baseline)


def _frames(placed: Sequence[Placed]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    rows = pd.DataFrame([_row(number, one) for number, one in enumerate(placed)])
    keys = pd.DataFrame([_config(one) for one in placed])
    rounds, clients = (
        rows[_PLACE].merge(_stacked([getattr(one.run, name) for one in placed]), on="number")
        for name in ("rounds", "clients")
    )
    sampled = clients[clients["generation"] > 0].groupby("number")["test_accuracy"]
    every = clients.groupby("number")["test_accuracy"]
    over = spread(sampled).combine_first(spread(every)).reindex(rows["number"])
    rows["accuracy_sampled"] = sampled.mean().reindex(rows["number"])
    for name in ("std", "p10", "worst"):
        rows[f"accuracy_{name}"] = over[name]
    rows["difference"] = np.nan
    order = [name for name in COLUMNS if name in rows]
    return pd.concat([rows[["number", "method", *order]], keys], axis=1), rounds, clients


def _stacked(tables: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One table below the other; ``number`` says which one a line is of."""
    lengths = [len(next(iter(table.values()))) for table in tables]
    columns = dict.fromkeys(name for table in tables for name in table)
    parts = {
        name: np.concatenate(
            [t.get(name, np.full(n, np.nan)) for t, n in zip(tables, lengths, strict=True)]
        )
        for name in columns
    }
    return pd.DataFrame({"number": np.repeat(np.arange(len(tables)), lengths)} | parts)


def _counts(run: Run) -> pd.DataFrame:
    """Training examples by client (rows) and class."""
    numbers = range(len(run.classes))
    rows = [[own.get(k, 0) for k in numbers] for own in run.counts.values()]
    return pd.DataFrame(rows, index=list(run.counts), columns=list(run.classes))


def spread(groups: Any) -> pd.DataFrame:
    """Standard deviation (of the population), 10th percentile and lowest of grouped values."""
    return pd.DataFrame(
        {"std": groups.std(ddof=0), "p10": groups.quantile(0.1), "worst": groups.min()}
    )


def _row(number: int, one: Placed) -> dict[str, Any]:
    run, rounds = one.run, one.run.rounds
    last = int(np.flatnonzero(~np.isnan(rounds["test_accuracy_mean"]))[-1])
    ends = {
        name: rounds[f"test_{name}_mean"][last] for name in METRICS if f"test_{name}_mean" in rounds
    }
    replies = max(1.0, rounds["replied"].sum())
    versions, privacy = run.environment.get("versions") or {}, run.summary.get("privacy") or {}
    listed, metric = len(run.clients["client"]), run.config.get("metric", "accuracy")
    known = int(run.summary.get("clients") or listed)
    never = int((run.clients["generation"] == 0).sum())
    if not run.config.get("evaluate-all", True):
        never += known - listed
    return {
        "number": number, "run": run.name, "setting": one.setting.title,
        "setting_id": one.setting.slug, "arm": one.arm, "method": one.method,
        "block": f"{one.block[0]}/{one.block[1]}", "compared": one.main,
        **{name: ends.get(name, np.nan) for name in (*METRICS, MAJORITY)},
        "accuracy_best_validation": run.summary.get("best_validation_test_accuracy_mean"),
        "best_validation": run.summary.get(f"best_validation_test_{metric}_mean"),
        "never_sampled": np.nan if run.means_alone else never, "federation": known,
        "floats_up": rounds["uplink_floats"].sum() / replies,
        "floats_down": rounds["downlink_floats"].sum() / replies,
        "gflops": rounds["train_flops"].sum() / replies / 1e9,
        "epsilon": privacy.get("epsilon_spent_max") or np.nan, "noise_of": privacy.get("noise_of"),
        "wall_seconds": run.summary.get("wall_seconds"),
        "failures": len(run.summary.get("failures") or []),
        "run_sha256": run.summary.get("run_sha256"), "fedhet_version": versions.get("fedhet"),
        "torch_version": versions.get("torch"), "git_commit": run.environment.get("git_commit"),
        "processor": run.environment.get("processor"),
    }  # fmt: skip


def _config(one: Placed) -> dict[str, Any]:
    """Keys of the configuration: lists with commas, maps as JSON; no key takes a figure's name."""
    taken = {*COLUMNS, "method", "number"}
    cells = {key.replace("-", "_"): _flat(value) for key, value in one.run.config.items()}
    return {key: value for key, value in cells.items() if key not in taken}


def _flat(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ",".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value

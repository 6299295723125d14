"""Runs as pandas DataFrames: a line a run, a line a round, a line a client.

``fedhet.load_sweep(DIR)`` reads runs as ``fedhet report`` does. The columns are described in
docs/reference/report.md; everything else in a report is computed from these frames.
"""

import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedhet.config.registry import method_name as known_as
from fedhet.config.schema import MAJORITY, METRICS
from fedhet.errors import UserError
from fedhet.records.summary import participants, participants_mean
from fedhet.reports import figures
from fedhet.reports.comparison import PARTICIPANTS, compare, sentences
from fedhet.reports.reading import LeftOut, RunRecord, read_runs
from fedhet.reports.settings import Placed, arrange

COLUMNS = (  # of the frame of runs, before the keys of the configuration
    "run", "setting", "setting_id", "variant", "block", "compared", *METRICS, MAJORITY,
    "accuracy_best_validation", "best_validation", *PARTICIPANTS,
    "accuracy_sampled", "accuracy_std", "accuracy_p10", "accuracy_worst", "difference",
    "never_sampled", "federation", "floats_up", "floats_down", "gflops", "epsilon", "noise_of",
    "wall_seconds", "failures", "run_sha256", "fedhet_version", "torch_version", "git_commit",
    "processor",
)  # fmt: skip
_PLACE = ["number", "run", "setting_id", "variant", "method", "block", "compared"]


class Runs:
    """Finished runs, compared as ``fedhet report`` does."""

    def __init__(
        self, runs: Sequence[RunRecord], left_out: Iterable[LeftOut] = (), baseline: str = ""
    ):
        """``baseline``: the method that others are compared with; raises UserError without it."""
        self.left_out = list(left_out)
        self.placed = arrange(runs, self.left_out)
        if not self.placed:
            first = "; ".join(f"{one.name}: {one.reason}" for one in self.left_out[:3])
            raise UserError(f"no run is finished, so there is nothing to report: {first}")
        frames = self._runs, self._rounds, self._clients = _frames(self.placed)
        self.comparisons = compare(self.placed, *frames, known_as(baseline) if baseline else "")
        blocks = [one.differences(one.metric) for one in self.comparisons]
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
        raise UserError(f"setting: '{setting}' is not allowed: {'; '.join(self.settings)}")

    def __repr__(self) -> str:
        return f"<{len(self._runs)} runs in {len(self.settings)} settings>"


def load_sweep(*places: str | os.PathLike[str], baseline: str = "") -> Runs:
    """Read and compare finished runs of sweeps, run folders or packed records.

    ``places`` are their folders or files, ``baseline`` the method that others are compared with,
    Standalone where it was run. Raises UserError if nothing finished is there.
    """
    return Runs(*read_runs(map(Path, places)), baseline)


def _frames(placed: Sequence[Placed]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return runs, rounds and clients; ``number`` is the place of a run in ``placed``."""
    rows = pd.DataFrame([_row(number, one) for number, one in enumerate(placed)])
    keys = pd.DataFrame([_config(one) for one in placed])
    rounds, clients = (
        rows[_PLACE].merge(
            pd.concat(
                {number: getattr(one.run, name) for number, one in enumerate(placed)},
                names=["number"],
            ).reset_index("number"),
            on="number",
        )
        for name in ("rounds", "clients")
    )
    sampled = clients[clients["generation"] > 0].groupby("number")["test_accuracy"]
    rows["accuracy_sampled"] = sampled.mean().reindex(rows["number"])
    rows["accuracy_std"] = sampled.std(ddof=0).reindex(rows["number"])
    rows["accuracy_p10"] = sampled.quantile(0.1).reindex(rows["number"])
    rows["accuracy_worst"] = sampled.min().reindex(rows["number"])
    order = [name for name in COLUMNS if name in rows]
    return pd.concat([rows[["number", "method", *order]], keys], axis=1), rounds, clients


def _row(number: int, one: Placed) -> dict[str, Any]:
    run, rounds = one.run, one.run.rounds
    last = rounds[rounds["test_accuracy_mean"].notna()].iloc[-1]
    replies = max(1.0, rounds["replied"].sum())
    versions, privacy = run.environment.get("versions") or {}, run.summary.get("privacy") or {}
    listed, metric = len(run.clients), run.config.get("metric", "accuracy")
    known = int(run.summary.get("clients") or listed)
    means = rounds.get(participants_mean(metric), rounds["round"] * np.nan)
    trained = participants(
        zip(rounds["round"], rounds["replied"], means, strict=True),
        METRICS.get(metric, METRICS["accuracy"]), int(run.config.get("evaluate-every", 1)),
    )  # fmt: skip
    never = int((run.clients["generation"] == 0).sum())
    if not run.config.get("evaluate-all", True):
        never += known - listed
    return {
        "number": number, "run": run.name, "setting": one.setting.title,
        "setting_id": one.setting.slug, "variant": one.variant, "method": one.method,
        "block": f"{one.block[0]}/{one.block[1]}", "compared": one.main,
        **{name: last.get(f"test_{name}_mean", np.nan) for name in (*METRICS, MAJORITY)},
        "accuracy_best_validation": run.summary.get("best_validation_test_accuracy_mean"),
        "best_validation": run.summary.get(f"best_validation_test_{metric}_mean"),
        **{name: trained.get(name.removeprefix("participants_"), np.nan) for name in PARTICIPANTS},
        "never_sampled": np.nan if run.means_alone else never, "federation": known,
        "floats_up": rounds["uplink_floats"].sum() / replies,
        "floats_down": rounds["downlink_floats"].sum() / replies,
        "gflops": rounds["train_flops"].sum(min_count=1) / replies / 1e9,
        "epsilon": privacy.get("epsilon_spent_max") or np.nan, "noise_of": privacy.get("noise_of"),
        "wall_seconds": run.summary.get("wall_seconds"),
        "difference": np.nan, "failures": len(run.summary.get("failures") or []),
        "run_sha256": run.summary.get("run_sha256"), "fedhet_version": versions.get("fedhet"),
        "torch_version": versions.get("torch"), "git_commit": run.environment.get("git_commit"),
        "processor": run.environment.get("processor"),
    }  # fmt: skip


def _config(one: Placed) -> dict[str, Any]:
    """Keys of the configuration: lists with commas, maps as JSON; no key takes a figure's name."""
    taken = {*COLUMNS, "method", "number"}
    config = {"metric": "accuracy", "precision": one.precision} | dict(one.run.config)
    cells = {key.replace("-", "_"): _flat(value) for key, value in config.items()}
    return {key: value for key, value in cells.items() if key not in taken}


def _flat(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ",".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value

"""The run table: a line a run, a column a key and a figure; for anybody's own analysis.

``fedhet.load_sweep(DIR)`` reads runs as ``fedhet report`` does; ``.frame()`` is the table as a
pandas DataFrame, and the report's pictures are methods beside it. The columns are described in
:data:`FIGURES` and docs/report.md; every key of a configuration is a column in snake case.
"""

import json
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhet import plugins
from fedhet.errors import UserError
from fedhet.files import csv_text
from fedhet.records.summary import spread
from fedhet.reports import curves, figures, overview, panels
from fedhet.reports.comparison import (
    Comparison,
    block_differences,
    final,
    never_sampled,
    per_reply,
    trained,
)
from fedhet.reports.drawing import Picture
from fedhet.reports.reading import own_names
from fedhet.reports.sections import compared
from fedhet.reports.settings import Arm
from fedhet.reports.validity import means_alone
from fedhet.reports.verdict import sentences

if TYPE_CHECKING:
    import pandas as pd

FIGURES = {
    "run": "name of the run folder or record",
    "setting": "short name of the setting",
    "setting_id": "its anchor in a report, which stays when runs are added",
    "arm": "method with those of its own keys that are not the default",
    "accuracy": "mean test accuracy over all clients after the last round, percent",
    "accuracy_best_validation": "the same in the round with the best validation accuracy, percent",
    "accuracy_sampled": "mean over the clients that were ever sampled, percent",
    "accuracy_std": "standard deviation over these, points",
    "accuracy_p10": "10th percentile of these, percent",
    "accuracy_worst": "lowest of these, percent",
    "difference": "points above the baseline on the same block and clients; empty without one",
    "never_sampled": "clients that never took part",
    "federation": "clients",
    "floats_up": "floats that a client sends in a round, mean over replies",
    "floats_down": "floats that it gets",
    "gflops": "training GFLOPs of a client in a round, mean over replies",
    "wall_seconds": "wall time of the rounds, on whatever machine it was",
    "failures": "replies that were left out",
    "run_sha256": "last link of the hash chain",
    "fedhet_version": "fedhet that made the run",
    "torch_version": "torch that made the run",
    "git_commit": "commit, where it was a checkout",
    "processor": "processor of the machine",
}


def run_table(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """A dict a run with the keys of :data:`FIGURES`, then those of its configuration."""
    made = []
    for one in comparisons:
        taken = {id(arm.runs) for arm in one.arms}  # also from variants, and told of here
        others = [
            arm for setting in one.setting.variants for arm in setting.arms
            if arm.runs and id(arm.runs) not in taken
        ]  # fmt: skip
        for arms, base in ((one.arms, one.baseline), (others, None)):
            made += [_row(one, arm, block, base) for arm in arms for block in arm.blocks]
    keys = dict.fromkeys(key for row in made for key in row)
    made.sort(key=lambda row: str(row["run"]))
    return [{key: row.get(key) for key in keys} for row in made]


def _row(one: Comparison, arm: Arm, block: tuple[int, int], base: Arm | None) -> dict[str, Any]:
    run = arm.runs[block]
    told = not means_alone(run.summary)
    over = spread(trained(run)) if told else {}
    beside: list[float] = []
    if base is not None and arm is not base:
        beside = block_differences(Arm(arm.method, arm.keys, {block: run}), base)
    known = [s.test for s in run.clients if s.generation > 0 and s.test is not None]
    versions = run.environment.get("versions") or {}
    row: dict[str, Any] = {
        "run": run.name, "setting": one.setting.title, "setting_id": one.setting.slug,
        "arm": arm.name, "accuracy": final(run),
        "accuracy_best_validation": run.summary.get("best_validation_test_accuracy_mean"),
        "accuracy_sampled": sum(known) / len(known) if known else None,
        "accuracy_std": over.get("std"), "accuracy_p10": over.get("p10"),
        "accuracy_worst": over.get("min"), "difference": beside[0] if beside else None,
        "never_sampled": never_sampled(run) if told else None,
        "federation": run.federation, "floats_up": per_reply(run, "uplink_floats"),
        "floats_down": per_reply(run, "downlink_floats"),
        "gflops": per_reply(run, "train_flops") / 1e9,
        "wall_seconds": run.summary.get("wall_seconds"),
        "failures": len(run.summary.get("failures") or []),
        "run_sha256": run.summary.get("run_sha256"), "fedhet_version": versions.get("fedhet"),
        "torch_version": versions.get("torch"), "git_commit": run.environment.get("git_commit"),
        "processor": run.environment.get("processor"),
    }  # fmt: skip
    return row | {key.replace("-", "_"): _flat(value) for key, value in run.config.items()}


def _flat(value: Any) -> Any:
    """A cell: lists with commas, maps as JSON."""
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ",".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The run table as CSV; what is missing is empty."""
    lines: list[list[object]] = [list(rows[0])]
    lines += [["" if value is None else value for value in row.values()] for row in rows]
    return csv_text(lines)


def to_frame(rows: Sequence[dict[str, Any]]) -> "pd.DataFrame":
    """The run table as a DataFrame; UserError if pandas is not installed."""
    try:
        import pandas as pd  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            "the run table as a frame needs pandas: pip install 'fedhet[pandas]'"
        ) from error
    return pd.DataFrame(list(rows))


def to_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    """The run table as Parquet; UserError if pandas or pyarrow is not installed."""
    frame = to_frame(rows)
    for name in frame.columns:  # Parquet has one kind of value a column
        if frame[name].dtype == object and len({type(v) for v in frame[name].dropna()}) > 1:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    file = BytesIO()
    try:
        frame.to_parquet(file, index=False)
    except ImportError as error:
        raise UserError("--format parquet needs pyarrow: pip install 'fedhet[pandas]'") from error
    return file.getvalue()


class Runs:
    """Finished runs beside each other, as ``fedhet report`` compares them."""

    def __init__(self, places: Sequence[Path], baseline: str = "", *, trust: bool = False) -> None:
        """UserError for a place without runs; ``trust`` imports code that the runs name."""
        self._allowed = lambda name: trust or name in own_names(places)
        with plugins.guarded(self._allowed):  # names of methods are found by importing them
            self._comparisons, self._used, left_out = compared(places, baseline)
        self.left_out = {one.name: one.reason for one in left_out}

    @property
    def verdict(self) -> list[str]:
        """The sentences that a report opens with."""
        with plugins.guarded(self._allowed):
            return sentences(self._comparisons, len(self._used))

    @property
    def settings(self) -> list[str]:
        """Short names of the settings."""
        return [one.setting.title for one in self._comparisons]

    def rows(self) -> list[dict[str, Any]]:
        """The run table without pandas: a dict a run."""
        with plugins.guarded(self._allowed):
            return run_table(self._comparisons)

    def frame(self) -> "pd.DataFrame":
        """The run table: a line a run, a column a figure (:data:`FIGURES`) and a key."""
        return to_frame(self.rows())

    def differences(self) -> Picture:
        """Paired differences to the baseline, a panel per setting; ``.svg`` is its text."""
        with plugins.guarded(self._allowed):
            return panels.differences(self._comparisons)

    def traffic(self) -> Picture:
        """Accuracy against traffic, a panel per setting."""
        with plugins.guarded(self._allowed):
            return panels.traffic(self._comparisons)

    def rounds(self, setting: str = "") -> Picture:
        """Accuracy over rounds of a setting, the first if none is named."""
        with plugins.guarded(self._allowed):
            return figures.rounds(self._one(setting), self._colours())

    def figures(self, setting: str = "") -> list[Picture]:
        """Every figure of a setting's details."""
        with plugins.guarded(self._allowed):
            one, colours = self._one(setting), self._colours()
            return [*figures.of_setting(one, colours), *curves.over_own_keys(one, colours)]

    def _colours(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(overview.arm_names(self._comparisons))}

    def _one(self, setting: str) -> Comparison:
        for one in self._comparisons:
            if setting in {"", one.setting.title, one.setting.slug}:
                return one
        raise UserError(f"setting: '{setting}' is none of: {'; '.join(self.settings)}")

    def __repr__(self) -> str:
        return f"<{len(self._used)} runs in {len(self.settings)} settings>"


def load_sweep(*places: str | os.PathLike[str], baseline: str = "", trust: bool = False) -> Runs:
    """Finished runs of sweeps, run folders or packed records, compared.

    ``places`` are their folders or files, ``baseline`` the method that others are compared with,
    Standalone where it was run; ``trust`` imports the code that they name, whoever made it.
    UserError if nothing finished is there.
    """
    plugins.look_here()
    return Runs([Path(place) for place in places], baseline, trust=trust)

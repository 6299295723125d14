"""A cell of a sweep as its folder shows it: what is to be run, continued or begun anew."""

import contextlib
import multiprocessing.process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet.config import RESUMABLE
from fedhet.errors import UserError, VerifyError, one_line
from fedhet.experiments.grid import Cell, deciding
from fedhet.experiments.reading import DIVERGENCE, diverged, read_run
from fedhet.files import read_json, read_jsonl, read_yaml
from fedhet.records.summary import nobody_replied

PENDING, RUNNING, FINISHED = "pending", "running", "finished"
DIVERGED, FAILED = "diverged", "failed"
ENDED = {FINISHED, DIVERGED, FAILED}


@dataclass
class Job:
    """A cell, its folder, and what is known of it."""

    cell: Cell
    folder: Path
    state: str = PENDING
    reason: str = ""
    started: float = 0.0
    begun_at: int = 0  # rounds that were there when it was started
    process: multiprocessing.process.BaseProcess | None = None
    rounds: int = 0
    accuracy: float | None = None
    anew: bool = False  # it was broken off, and there is nothing to go on from
    damaged: bool = False

    @property
    def due(self) -> bool:
        """Whether it is to be run, or continued; what is damaged waits for somebody's look."""
        return self.state in {PENDING, FAILED} and not self.damaged

    def look(self) -> None:
        """Read from the folder how far it is; whether its process has ended is not asked here."""
        with contextlib.suppress(VerifyError, OSError):  # :meth:`conclude` says so
            records = read_jsonl(self.folder / "rounds.jsonl")
            self.rounds = len(records)
            accuracy = records[-1].get("test_accuracy_mean") if records else None
            self.accuracy = accuracy if isinstance(accuracy, int | float) else None

    def conclude(self) -> None:
        """Its state by what its process left; a folder without a summary is yet to be run."""
        self.look()
        self.anew = self.damaged = False
        try:
            summary = read_summary(self.folder)  # first: a run writes it last
            records = read_jsonl(self.folder / "rounds.jsonl")
            over = bool(records) and diverged(records[-1])
            self._check_config()
            if summary.get("status") == "completed" and records:
                read_run(self.folder)  # as a report will
        except (VerifyError, UserError, OSError, KeyError, TypeError) as error:
            self.state, self.damaged = FAILED, True
            what = "rounds.jsonl: its last line is damaged"
            if isinstance(error, VerifyError | UserError | OSError):
                what = one_line(error)
            self.reason = f"{what}; remove '{self.folder}' to run the cell anew"
            return
        status, self.reason = str(summary.get("status", "")), str(summary.get("reason", ""))
        if status == "completed" and records:
            self.state = DIVERGED if over else FINISHED
        elif status == "completed":
            self.state, self.reason = FAILED, "rounds.jsonl has no line: `fedhet verify` says more"
        elif status == "failed" and DIVERGENCE.search(self.reason):
            self.state = DIVERGED
        else:
            self.state = FAILED if status == "failed" else PENDING
        if self.state == FAILED and records:
            spent = len(records) >= self.cell.config.rounds and nobody_replied(records[-1])
            self.anew = spent or all(map(nobody_replied, records))
            self.rounds = 0 if self.anew else self.rounds
        elif self.state == PENDING and self.folder.exists() and not records:
            self.anew = not (self.folder / "config.yaml").exists()  # a run's folder has it at once

    def _check_config(self) -> None:
        """VerifyError if the folder is another cell's, as one that was renamed is.

        What a resumption may change decides nothing, but for the number of rounds.
        """
        path = self.folder / "config.yaml"
        if not path.exists():
            return
        asked, found = deciding(self.cell.config.flat()), deciding(read_yaml(path))
        free = set(RESUMABLE) - {"rounds"}
        for key in sorted((asked.keys() | found.keys()) - free):
            there, here = found.get(key, "absent"), asked.get(key, "absent")
            if there != here:
                raise VerifyError(f"'{path}' is another cell's: {key} is {there}, not {here}")


def read_summary(folder: Path) -> Mapping[str, Any]:
    """``summary.json`` of a run folder; empty if there is none or it is not whole."""
    try:
        return read_json(folder / "summary.json")
    except (OSError, VerifyError):
        return {}

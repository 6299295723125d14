"""A cell of a sweep as its folder shows it: what is to be run, continued or begun anew."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from fedhet.config.load import RESUMABLE
from fedhet.errors import UserError, VerifyError, one_line
from fedhet.reading.structured import read_jsonl, read_yaml
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import DIVERGENCE, diverged, nobody_replied
from fedhet.reports.reading import read_run
from fedhet.sweeps.executor import CellProcess
from fedhet.sweeps.grid import Cell, deciding

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
    logged: int = 0  # bytes of its log that were
    process: CellProcess | None = None
    losses: int = 0  # times that its place, and not the cell, failed
    rounds: int = 0
    accuracy: float | None = None
    anew: bool = False  # it was broken off, and there is nothing to go on from
    damaged: bool = False
    waits: bool = False  # for another process, such as another sweep's, that is at it

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

    def taken(self) -> bool:
        """Whether another process writes its run at this moment."""
        return self.folder.is_dir() and RunFolder(self.folder).unfinished() == "running"

    def conclude(self) -> None:
        """Its state by what its process left; a folder without a summary is yet to be run."""
        self.look()
        self.anew = self.damaged = False
        try:
            self._read()
        except (VerifyError, UserError, OSError, KeyError, TypeError) as error:
            self.state, self.damaged = FAILED, True
            what = "rounds.jsonl: its last line is damaged"
            if isinstance(error, VerifyError | UserError | OSError):
                what = one_line(error)
            self.reason = f"{what}; remove '{self.folder}' to run the cell anew"

    def _read(self) -> None:
        """:meth:`conclude`, raising for what is damaged."""
        if self.folder.exists() and not self.folder.is_dir():
            raise VerifyError(f"'{self.folder}' is not a folder")
        folder = RunFolder(self.folder)
        summary = folder.read_summary()  # first: a run writes it last
        records = read_jsonl(folder.rounds)
        over = bool(records) and diverged(records[-1])
        begun = folder.config.exists()
        if begun:
            self._check_config(folder.config)
        status, self.reason = str(summary.get("status", "")), one_line(summary.get("reason", ""))
        if status == "completed" and records:
            read_run(self.folder)  # as a report will
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
            self.anew = not begun  # killed while the folder was made: config.yaml comes last
        if self.due and not self.anew and self.folder.exists() and not folder.identity.exists():
            raise VerifyError(f"'{folder.identity}' is missing, without which no run goes on")

    def _check_config(self, path: Path) -> None:
        """VerifyError if the folder is another cell's, as one that was renamed is.

        What a resumption may change decides nothing, but for the number of rounds; nor does a
        number of clients that was left to the data, and that the folder knows.
        """
        asked, found = deciding(self.cell.config.flat()), deciding(read_yaml(path))
        free = set(RESUMABLE) - {"rounds"} | ({"clients"} if not asked["clients"] else set())
        for key in sorted((asked.keys() | found.keys()) - free):
            there, here = found.get(key, "absent"), asked.get(key, "absent")
            if there != here:
                raise VerifyError(f"'{path}' is another cell's: {key} is {there}, not {here}")

"""A run among many: how far it is, at little cost."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhet.errors import UserError, VerifyError, one_line
from fedhet.reading.structured import MOST_LINES, read_json, read_yaml
from fedhet.records.run_folder import RunFolder
from fedhet.watch.files import Document, Tail
from fedhet.watch.run import ASK, count, run_lines
from fedhet.watch.view import RUNNING

PENDING, FINISHED, DIVERGED, FAILED = "pending", "finished", "diverged", "failed"
BROKEN = "broken off"
_RECENT = 10  # rounds that the pace is taken from


class CellView:
    """Looks at a run folder that may not be there yet; ``preset`` is its configuration before."""

    def __init__(self, path: Path, preset: Path) -> None:
        self.folder = RunFolder(path)
        self.state, self.why = PENDING, ""
        self.done, self.wanted = 0, 0
        self.accuracy: float | None = None
        self.begun = False
        self._preset, self._knows_preset = preset, False
        self._index: Mapping[str, Any] = {}
        self._asked, self._written = 0.0, False
        self._seconds: list[float] = []
        self._summary = Document(self.folder.summary, lambda _: self.folder.read_summary())
        self._identity = Document(self.folder.identity, read_json)
        self._rounds = Tail(self.folder.rounds, MOST_LINES, run_lines)

    def told(self, index: Mapping[str, Any]) -> None:
        """What the sweep's index says of it, which is as old as the last end of a cell."""
        self._index = index

    @property
    def pace(self) -> float | None:
        """Seconds a round now."""
        recent = self._seconds[-_RECENT:]
        return sum(recent) / len(recent) if recent else None

    def look(self, *, ask_preset: bool) -> bool:
        """Read what is new; True if the configuration of before was read, which takes longer."""
        summary = self._summary.look()
        read = self._wanted(ask_preset=ask_preset)
        self.begun = self.folder.config.is_file()
        if summary:
            self.done, self.accuracy = summary["rounds"], summary.get("test_accuracy_mean")
            self.state = _ended(summary["status"], self._index.get("state"))
            self.why = one_line(summary["reason"], 200) if self.state != FINISHED else ""
            return read
        anew, lines = self._rounds.look()
        self._seconds = ([] if anew else self._seconds) + [line["seconds"] for line in lines]
        if lines or anew:
            self.done = lines[-1]["round"] if lines else 0
            self.accuracy = lines[-1]["test_accuracy_mean"] if lines else None
        self.state, self.why = self._unfinished()
        return read

    def _wanted(self, *, ask_preset: bool) -> bool:
        """How many rounds it is to have, as its folder says, or the sweep's preset before."""
        identity = self._identity.look()
        if identity:
            config = identity.get("config")
            self.wanted = count(config.get("rounds")) if isinstance(config, dict) else 0
            return False
        if self._knows_preset or not ask_preset:
            return False
        self._knows_preset = True
        try:
            self.wanted = count(read_yaml(self._preset).get("rounds"))
        except (UserError, VerifyError):
            self.wanted = 0
        return True

    def _unfinished(self) -> tuple[str, str]:
        """State and reason of a run without a summary."""
        problem = self._summary.problem or self._rounds.problem
        if problem:
            return FAILED, problem
        if self.begun and (time.monotonic() - self._asked > ASK or not self._asked):
            self._asked = time.monotonic()
            try:
                self._written = self.folder.being_written()
            except VerifyError as error:
                return FAILED, one_line(error, 200)
        if self.begun and self._written:
            return RUNNING, ""
        if self._index.get("state") == FAILED:
            return FAILED, one_line(self._index.get("reason") or "", 200)
        return (BROKEN if self.done else PENDING), ""


def _ended(status: str, index: Any) -> str:
    """A cell's state by the status of its summary; only the index knows of divergence."""
    if index == DIVERGED:
        return DIVERGED
    return FINISHED if status == "completed" else one_line(status, 40)

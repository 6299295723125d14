"""One run folder as it is now: not begun, waiting, running, broken off or ended."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedhet.errors import VerifyError, one_line
from fedhet.reading.structured import MOST_LINES, each_jsonl, read_yaml
from fedhet.reading.tables import MOST_CSV
from fedhet.records.formats import Evaluation, parse_evaluations, read_partition
from fedhet.records.run_folder import RunFolder, each_checked
from fedhet.records.summary import duration, percent, seconds_left, size
from fedhet.watch.books import COLUMNS, CURVES, Books
from fedhet.watch.files import Document, Tail, told
from fedhet.watch.sites import Sites
from fedhet.watch.view import GONE, IDLE, RUNNING, WAITING, Look, State

ASK = 5.0  # seconds between questions whether somebody writes the run


def run_lines(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    """Lines of ``rounds.jsonl``, each what it must be."""
    return each_checked(path, each_jsonl(path, data))


class RunView:
    """Looks at a run folder; nothing that it says is believed beyond being shown."""

    def __init__(self, path: Path, sites: Sites | None = None) -> None:
        self.folder = RunFolder(path)
        self.sites = sites
        self.books = Books()
        self.era = 0
        self._scores: dict[str, Evaluation] = {}
        self._config = Document(self.folder.config, read_yaml)
        self._summary = Document(self.folder.summary, lambda _: self.folder.read_summary())
        self._partition = Document(self.folder.partition, read_partition)
        self._rounds = Tail(self.folder.rounds, MOST_LINES, run_lines)
        self._clients = Tail(self.folder.clients, MOST_CSV, parse_evaluations, headed=True)
        self._lock = ""
        self._written, self._asked = False, 0.0

    def look(self) -> Look:
        """Read what is new."""
        summary = self._summary.look() or {}  # first: a run writes it last
        anew, lines = self._rounds.look()
        if anew:
            self.era += bool(self.books.rows)
            self.books = Books()
        for line in lines:
            self.books.add(line)
        anew, scores = self._clients.look()
        if anew:
            self._scores.clear()
        self._scores |= {row.client: row for row in scores}
        state = self._state(summary, self._config.look() or {})
        return Look(state, tuple(self.books.rows), self.era)

    def inside(self, name: str) -> None:
        """A run has no other in it."""

    def _state(self, summary: Mapping[str, Any], config: Mapping[str, Any]) -> State:
        status, says = self._status(summary)
        dealt = self._partition.look()
        examples = {client: sum(row) for client, row in dealt.counts.items()} if dealt else {}
        tables = [self.books.clients(self._scores, examples)]
        if self.books.failed:
            tables.append(self.books.failures_table())
        if self.sites is not None:
            done = {client: row.generation for client, row in self._scores.items()}
            tables.insert(0, self.sites.table(done, self.books.times))
        asked = self.sites.problem if self.sites else ""
        files = (self._config, self._summary, self._partition, self._rounds, self._clients)
        return State(
            name=one_line(self.folder.path.name, 200),
            title=f"{_text(config.get('method'))} on {_text(config.get('dataset'))}",
            status=status,
            over=status not in {RUNNING, WAITING},
            says=says,
            facts=self._facts(config, len(examples), running=status == RUNNING),
            tables=tables,
            columns=COLUMNS,
            curves=CURVES,
            damage=[*filter(None, (asked, self._lock, *(file.problem for file in files)))],
            changed=_changed(self.folder.rounds),
        )

    def _status(self, summary: Mapping[str, Any]) -> tuple[str, str]:
        """What it is at, and a sentence about it."""
        if summary:
            return one_line(summary["status"], 40), one_line(summary["reason"], 500)
        if not self.folder.path.is_dir():
            return GONE, "the folder is not there any more"
        if time.monotonic() - self._asked > ASK or not self._asked:
            self._asked = time.monotonic()
            try:
                self._lock, self._written = "", self.folder.being_written()
            except VerifyError as error:
                self._lock, self._written = told(error, self.folder.path), False
        if not self._written:
            begun = "it was broken off; `fedhet resume` goes on with it"
            return IDLE, begun if self.books.rows else "it has not begun, or was broken off"
        waits = self.folder.waits_for()
        if waits or not self.books.rows:
            return WAITING, waits or "it is being started: no round is finished yet"
        return RUNNING, ""

    def _facts(
        self, config: Mapping[str, Any], clients: int, *, running: bool
    ) -> list[tuple[str, str]]:
        """The figures that matter at first sight; what is not known is left out."""
        books, last, wanted = self.books, self.books.last, count(config.get("rounds"))
        facts = [("round", f"{last.get('round', 0)} of {wanted or '?'}")]
        if last:
            facts += [
                ("accuracy", percent(last["test_accuracy_mean"])),
                ("10th percentile", percent(last["test_accuracy_p10"])),
                ("validation", percent(last["val_accuracy_mean"])),
                ("replied", f"{last['replied']} of {last['sampled']}"),
            ]
        left = seconds_left(books.seconds, wanted) if running and wanted else None
        if left is not None:
            facts.append(("time left", f"about {duration(left)}"))
        if last:
            facts += [
                ("time so far", duration(sum(books.seconds))), ("failures", f"{books.failed:,}"),
                ("sent up", size(books.up)), ("sent down", size(books.down)),
            ]  # fmt: skip
        clients = clients or count(config.get("clients"))
        return [*facts, ("clients", f"{clients:,}")] if clients else facts


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _text(value: Any) -> str:
    """A value of somebody's configuration, short."""
    return one_line(str(value)[:200], 80) if isinstance(value, str) else "?"


def count(value: Any) -> int:
    """A whole number of somebody's configuration; 0 for anything else."""
    return value if type(value) is int and 0 <= value < 2**53 else 0

"""The sites of a deployment: which are there, and which are silent since when."""

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from fedhet.deploy.control_api import Control, Node
from fedhet.deploy.server_folder import ServerFolder
from fedhet.errors import RunFailedError, UserError, one_line
from fedhet.watch.view import Column, Table, Value

NOTE = "offline: silent since then"
ASK = 5.0  # seconds between questions to the server
_COLUMNS = (
    Column("site", "text"), Column("now", "text"), Column("since", "text"),
    Column("last round"), Column("failures"),
)  # fmt: skip


class Sites:
    """Asks a server of ours, through its Control API on this machine, who is there."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.problem = ""
        self._nodes: list[Node] = []
        self._asked = 0.0

    @classmethod
    def connect(cls, tls: Path) -> "Sites":
        """The server that was started from this folder; UserError if there was none."""
        folder = ServerFolder(tls)
        return cls(Control(folder.control(), folder.credentials.ca))

    def last_run(self) -> Path:
        """The folder of the run that was submitted last and is on this machine.

        Raises UserError if there is none, RunFailedError if the server does not answer.
        """
        for run in self.control.runs():
            if run.folder and Path(run.folder).is_dir():
                return Path(run.folder)
        raise UserError("watch: this server has had no run whose folder is here: name one")

    def table(self, done: Mapping[str, int], failed: Mapping[str, int]) -> Table:
        """Return every site with the last round that it took part in, and how often it failed."""
        if time.monotonic() - self._asked > ASK or not self._asked:
            self._asked = time.monotonic()
            try:
                self._nodes, self.problem = self.control.nodes(), ""
            except RunFailedError as error:
                self.problem = one_line(error, 300)
        rows: list[list[Value]] = [
            [one_line(node.name or str(node.id), 80), node.status, _local(node.since),
             done.get(node.name), failed.get(node.name, 0)]
            for node in sorted(self._nodes, key=lambda node: node.name)
        ]  # fmt: skip
        return Table("sites", "Sites", _COLUMNS, rows, note=NOTE)


def _local(moment: str) -> str:
    """A moment as this machine's clock shows it."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return ""

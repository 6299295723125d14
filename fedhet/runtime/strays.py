"""Ends clients of a SuperNode that wait for a message which will never come.

Flower's SuperNode hands a message to a ClientApp before it has fetched it. If the run ends in
between (its ServerApp or the SuperLink was killed), the SuperNode says "Ignoring message" and goes
on, but does not tell the ClientApp, which asks for the message for another 80 minutes. What shows
it: a SuperNode works on one message at a time and says when it begins and ends.
"""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

CLIENT = "flwr-clientapp"
BEGINS = "Receiving: "
ENDS = (
    "Ignoring message", "Ignoring reply message", "Failed to receive message", "Sent successfully",
    "Failed to send message",
)  # fmt: skip
GRACE = 20.0  # seconds; a client that has answered needs up to 5 to go


@dataclass
class Strays:
    """Which clients of the SuperNode with this process id have nothing to do any more."""

    supernode: int
    _busy: bool = False
    _heard: float = field(default_factory=time.monotonic)
    _settled: bool = False  # nothing to look for until something is heard
    _idle: dict[psutil.Process, float] = field(default_factory=dict)  # since when
    _asked: set[psutil.Process] = field(default_factory=set)  # to end

    def hear(self, line: str) -> None:
        """Take note of what the SuperNode says."""
        begins = BEGINS in line
        if begins or any(sign in line for sign in ENDS):
            self._busy, self._heard, self._settled = begins, time.monotonic(), False

    def end(self) -> int:
        """End those that have had nothing to do for GRACE seconds; how many were asked to go.

        To be called every few seconds: SIGTERM lets Flower close the task, SIGKILL is the next.
        """
        if self._settled:
            return 0
        now, ended = time.monotonic(), 0
        clients = self._clients()
        spare = clients[:-1] if self._busy else clients
        self._idle = {client: self._idle.get(client, now) for client in spare}
        for client, since in self._idle.items():
            if now - since >= GRACE:
                with contextlib.suppress(psutil.NoSuchProcess):
                    (client.kill if client in self._asked else client.terminate)()
                ended += client not in self._asked
                self._asked.add(client)
        self._settled = not spare and now - self._heard >= GRACE
        return ended

    def _clients(self) -> list[psutil.Process]:
        """The ClientApps below the SuperNode, or the shims that stand for them; newest last."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.supernode).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = process.cmdline()[:5]  # interpreter and script, or the shim's
                    if any(Path(word).name == CLIENT for word in words):
                        found.append((process.create_time(), process))
        return [process for _, process in sorted(found, key=lambda one: one[0])]

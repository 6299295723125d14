"""Sends messages and collects replies as they come, within a time limit.

Flower's own ``send_and_receive`` sleeps 3 s between polls on a network; here the poll is short.
Its simulator scans all outstanding messages at every sweep (quadratic), so only a window of them
is in flight.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

SIMULATION_POLL = 0.01
NETWORK_POLL = 0.25
WINDOW = 64
PULL_PATIENCE = 0.5  # seconds to wait for pulls that are under way
NO_REPLY = 1000  # error codes of our own, above Flower's
NOT_SENT = 1001


def poll_interval(grid: Grid) -> float:
    """Seconds between polls: the in-memory grid of a simulation has a pull interval of its own."""
    return SIMULATION_POLL if hasattr(grid, "pull_interval") else NETWORK_POLL


class _Pull(threading.Thread):
    """Asks for one reply; a daemon, so that one that hangs keeps no process alive."""

    def __init__(self, grid: Grid, identity: str) -> None:
        super().__init__(daemon=True)
        self.grid, self.identity = grid, identity
        self.replies: list[Message] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Work of the thread."""
        try:
            self.replies = list(self.grid.pull_messages([self.identity]))
        except Exception as error:  # raised again where the result is wanted
            self.error = error

    def result(self) -> list[Message]:
        """What came; raises what the pull raised."""
        if self.error is not None:
            raise self.error
        return self.replies


class Mail:
    """Messages on their way: not yet sent, and sent but not yet answered."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.waiting: deque[Message] = deque()
        self.pending: dict[str, Message] = {}
        self._pulls: dict[str, _Pull] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting or self.pending)

    def add(self, messages: Iterable[Message]) -> None:
        """Queue messages; :meth:`poll` sends them."""
        self.waiting.extend(messages)

    def poll(self) -> list[tuple[Message, Message]]:
        """Send what the window allows; returns each message that is done, with its reply.

        Replies to anything else (another round's, a stranger's) are never pulled. An error reply
        may carry the server's own node id: match replies by ``reply_to_message_id``.
        """
        done = self._send()
        for reply in self._pull():
            message = self.pending.pop(reply.metadata.reply_to_message_id, None)
            if message is not None:
                done.append((message, reply))
        return done

    def pause(self) -> None:
        """Wait until the next poll is due: a network is asked at most 50 times a second."""
        simulated = poll_interval(self.grid) == SIMULATION_POLL
        time.sleep(SIMULATION_POLL if simulated else max(NETWORK_POLL, len(self.pending) * 0.02))

    def _pull(self) -> Iterable[Message]:
        """The replies that are there.

        On a network every message is pulled in a thread of its own. Flower hands out a reply whose
        sender died while uploading it, and then waits for the missing parts, three minutes or
        more, with all other replies in its hands.
        """
        if not self.pending:
            return []
        if poll_interval(self.grid) == SIMULATION_POLL:
            return self.grid.pull_messages(list(self.pending))
        self._pulls = {i: pull for i, pull in self._pulls.items() if i in self.pending}
        for identity in self.pending:
            if identity not in self._pulls:
                self._pulls[identity] = _Pull(self.grid, identity)
        until = time.monotonic() + PULL_PATIENCE
        for pull in self._pulls.values():
            pull.join(max(0.0, until - time.monotonic()))
        ended = {i: pull for i, pull in self._pulls.items() if not pull.is_alive()}
        self._pulls = {i: pull for i, pull in self._pulls.items() if i not in ended}
        return [reply for pull in ended.values() for reply in pull.result()]

    def close(self, timeout: float) -> list[Message]:
        """Give up: an error reply for every message that is left."""
        late = [
            _error(m, NO_REPLY, f"no reply within {timeout:g} s") for m in self.pending.values()
        ]
        unsent = [_error(m, NOT_SENT, f"not sent within {timeout:g} s") for m in self.waiting]
        self.pending.clear()
        self.waiting.clear()
        return late + unsent

    def _send(self) -> list[tuple[Message, Message]]:
        """Send a batch; returns the messages that could not be sent, with an error reply each."""
        count = min(len(self.waiting), WINDOW - len(self.pending))
        batch = [self.waiting.popleft() for _ in range(count)]
        if not batch:
            return []
        pushed: list[Any] = list(self.grid.push_messages(batch))
        if len(pushed) != len(batch):  # Flower answers [] if the request was too large
            pushed = [None] * len(batch)
        failed = []
        for identity, message in zip(pushed, batch, strict=True):
            if identity:
                self.pending[identity] = message
            else:
                failed.append((message, _error(message, NOT_SENT, "the message could not be sent")))
        return failed


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Yield one reply per message in the order of arrival; missing ones become error replies."""
    deadline = time.monotonic() + timeout
    mail = Mail(grid)
    mail.add(messages)
    while mail:
        yield from (reply for _, reply in mail.poll())
        if time.monotonic() > deadline:
            break
        if mail.pending:
            mail.pause()
    yield from mail.close(timeout)


def _error(message: Message, code: int, reason: str) -> Message:
    if not message.metadata.message_id:  # never pushed: give it an id, so that it can be answered
        message.metadata.__dict__["_message_id"] = f"unsent-{id(message):x}"
    return Message(Error(code=code, reason=reason), reply_to=message)

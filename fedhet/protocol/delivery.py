"""Sends messages and collects replies as they come, within a time limit.

Flower's own ``send_and_receive`` sleeps 3 s between polls on a network; here the poll is short.
Its simulator scans all outstanding messages at every sweep (quadratic), so there only a window of
them is under way; on a network every node gets its message at once.
"""

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedhet.protocol.flower import is_simulated, posted, take_damaged_replies

log = logging.getLogger("fedhet")
SIMULATION_POLL = 0.01
NETWORK_POLL = 0.25
WINDOW = 64  # messages under way in a simulation
BATCH = 64  # messages in one request to the SuperLink
PULLS = 64  # requests for replies at a time on a network
LONG_JOB = 0.3  # seconds; three of the simulator's sweeps
PULL_PATIENCE = 0.5  # seconds to wait for pulls that are under way
# A SuperLink that is short of CPU drops replies ("database is locked"), and a node that died and
# came back has forgotten what it was asked. Who is silent for this long, and for three times what
# the slowest of the others took, is asked again: longer than Flower needs to notice a dead node.
REMIND_AFTER = 75.0  # seconds
REMINDERS = 2  # for one message
NO_REPLY = 1000  # error codes of our own, above Flower's
NOT_SENT = 1001


class _Pull(threading.Thread):
    """Asks for a few replies; a daemon, so that one that hangs keeps no process alive."""

    def __init__(self, grid: Grid, identities: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.grid, self.identities = grid, identities
        self.replies: list[Message] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Work of the thread."""
        try:
            self.replies = list(self.grid.pull_messages(self.identities))
        except Exception as error:  # raised again where the result is wanted
            self.error = error

    def result(self) -> list[Message]:
        """What came; raises what the pull raised."""
        if self.error is not None:
            raise self.error
        return self.replies


class Mail:
    """Messages on their way: not yet sent, and sent but not yet answered."""

    def __init__(self, grid: Grid, window: int = WINDOW) -> None:
        self.grid = grid
        self.simulated = is_simulated(grid)
        if not self.simulated:
            take_damaged_replies()
        polls = getattr(grid, "poll_interval", SIMULATION_POLL)  # 0: its pulls wait themselves
        self.interval = polls if self.simulated else NETWORK_POLL  # seconds
        self.window = window if self.simulated else sys.maxsize
        self.waiting: deque[Message] = deque()
        self.pending: dict[str, Message] = {}  # a message that was repeated has several ids
        self._since: dict[int, float] = {}  # when a message was sent first, by id() of it
        self._took: list[float] = []  # seconds of those that are answered
        self._reminded: Counter[int] = Counter()
        self._pulls: list[_Pull] = []
        self._news = time.monotonic()
        self._asking = 0.0  # seconds that the last poll took

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
        started = time.monotonic()
        replies = list(self._pull())
        self._asking = time.monotonic() - started
        for reply in replies:
            message = self.pending.get(reply.metadata.reply_to_message_id)
            if message is not None:
                self._forget(message)
                done.append((message, reply))
        if done:
            self._news = time.monotonic()
        return done

    def remind(self, timeout: float) -> list[Message]:
        """Repeat what has gone unanswered for too long, within ``timeout`` seconds; returns it.

        A client that answers twice gives the same answer twice: the first one counts. Until half
        of the others have answered nobody can say what is long, but half of the time.
        """
        if self.simulated or not self.pending:  # nothing is lost in a simulation
            return []
        waiting = {id(message): message for message in self.pending.values()}
        known = len(self._took) >= len(waiting)
        bound = max(REMIND_AFTER, 3 * max(self._took) if known and self._took else timeout / 2)
        now = time.monotonic()
        late = [
            message
            for key, message in waiting.items()
            if self._reminded[key] < REMINDERS
            and now - self._since[key] > bound * 2 ** self._reminded[key]
        ]
        if not late:
            return []
        copies = [
            Message(m.content, m.metadata.dst_node_id, m.metadata.message_type, ttl=m.metadata.ttl)
            for m in late
        ]
        for identity, message in zip(self.grid.push_messages(copies), late, strict=False):
            self._reminded[id(message)] += 1
            if identity:
                self.pending[identity] = message
        return late

    def _forget(self, message: Message) -> None:
        """It is answered: whatever else comes for it is not pulled."""
        self.pending = {key: other for key, other in self.pending.items() if other is not message}
        self._took.append(time.monotonic() - self._since.pop(id(message)))

    def pause(self) -> None:
        """Wait until the next poll is due: the longer nothing came, the less often we look.

        Polls take time from the training of a simulation, and on a network from the SuperLink:
        they get a fifth of it at most.
        """
        if self.simulated:
            time.sleep(min(10, 1 + 2 * (time.monotonic() - self._news)) * self.interval)
        else:
            time.sleep(max(self.interval, 4 * self._asking))

    def _pull(self) -> Iterable[Message]:
        """The replies that are there.

        On a network up to 64 threads pull, each its own messages. If a client died while it
        uploaded a reply, Flower waits three minutes or more for the missing parts, and the thread
        that asked for it returns none of its other replies until then.
        """
        if not self.pending:
            return []
        if self.simulated:
            return self.grid.pull_messages(list(self.pending))
        asked = {identity for pull in self._pulls for identity in pull.identities}
        unasked = [identity for identity in self.pending if identity not in asked]
        shares = [unasked[i::PULLS] for i in range(min(PULLS, len(unasked)))]
        self._pulls += [_Pull(self.grid, share) for share in shares]
        until = time.monotonic() + PULL_PATIENCE
        for pull in self._pulls:
            pull.join(max(0.0, until - time.monotonic()))
        ended = [pull for pull in self._pulls if not pull.is_alive()]
        self._pulls = [pull for pull in self._pulls if pull.is_alive()]
        return [reply for pull in ended for reply in pull.result()]

    def close(self, timeout: float) -> list[tuple[Message, Message]]:
        """Give up: every message that is left, with an error reply.

        A grid that can (``cancel``) ends what still works at them.
        """
        if cancel := getattr(self.grid, "cancel", None):
            cancel(list(self.pending))
        late = [
            (message, _error(message, NO_REPLY, f"no reply within {timeout:g} s"))
            for message in {id(message): message for message in self.pending.values()}.values()
        ]
        unsent = [
            (message, _error(message, NOT_SENT, f"not sent within {timeout:g} s"))
            for message in self.waiting
        ]
        self.pending.clear()
        self.waiting.clear()
        return late + unsent

    def _send(self) -> list[tuple[Message, Message]]:
        """Fill the window; returns the messages that could not be sent, with an error reply."""
        failed: list[tuple[Message, Message]] = []
        while self.waiting and len(self.pending) < self.window:
            count = min(len(self.waiting), self.window - len(self.pending), BATCH)
            failed += self._push([self.waiting.popleft() for _ in range(count)])
        return failed

    def _push(self, batch: list[Message]) -> list[tuple[Message, Message]]:
        pushed: list[Any] = list(self.grid.push_messages(batch))
        if len(pushed) != len(batch):  # Flower answers [] if the request was too large
            pushed = [None] * len(batch)
        failed = []
        for identity, message in zip(pushed, batch, strict=True):
            if identity:
                self.pending[identity] = message
                self._since[id(message)] = time.monotonic()
            else:
                failed.append((message, _error(message, NOT_SENT, "the message could not be sent")))
        return failed


def exchange(
    grid: Grid, messages: Iterable[Message], timeout: float, window: int = WINDOW
) -> Iterator[tuple[Message, Message]]:
    """Yield every message with its reply, as they arrive; missing ones become error replies.

    In a simulation ``window`` messages are under way at a time, the first ones first.
    """
    deadline = time.monotonic() + timeout
    mail = Mail(grid, window)
    mail.add(messages)
    while mail:
        yield from mail.poll()
        if time.monotonic() > deadline:
            break
        for message in mail.remind(timeout):
            log.warning("node %d is asked again: no reply yet", message.metadata.dst_node_id)
        if mail.pending:
            mail.pause()
    yield from mail.close(timeout)


def longest_first(
    messages: Iterable[Message], seconds: Sequence[float], processes: int
) -> tuple[list[Message], int]:
    """The order of sending and the window, from what each message's work may take (0: unknown).

    Long jobs start longest first, so that the processes of a simulation end a round together.
    Flower's simulator takes what is under way in the order of its nodes: only twice as many as
    can run are. Short jobs must not wait for its sweeps, and go as they are.
    """
    given = list(messages)
    if min(seconds, default=0.0) < LONG_JOB:
        return given, WINDOW
    order = sorted(range(len(given)), key=lambda i: -seconds[i])
    return [given[i] for i in order], 2 * processes


def _error(message: Message, code: int, reason: str) -> Message:
    if not message.metadata.message_id:  # never pushed: give it an id, so that it can be answered
        posted(message, f"unsent-{id(message):x}")
    return Message(Error(code=code, reason=reason), reply_to=message)

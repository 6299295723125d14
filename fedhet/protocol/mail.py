"""Mail: messages on their way from the server to clients, and their replies."""

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedhet.protocol.flower import NO_REPLY, NOT_SENT, is_simulated, posted, take_damaged_replies
from fedhet.protocol.messages import QUERY_BYTES, Reply, read_reply

log = logging.getLogger("fedhet")

SIMULATION_POLL = 0.02
NETWORK_POLL = 0.25
WINDOW = 64  # messages under way in a simulation of Flower's own
FOREVER = 1e9  # seconds that a simulation's message may take
BATCH = 64  # messages in one request to the SuperLink
PULLS = 64  # requests for replies at a time on a network
PULL_PATIENCE = 0.5  # seconds to wait for pulls that are under way
# A SuperLink that is short of CPU drops replies ("database is locked"), and a node that died and
# came back has forgotten what it was asked. A node that is silent for so many seconds, and for
# three times what the slowest of the others took, is asked again: Flower notices death earlier.
REMIND_AFTER = 75.0
REMINDERS = 2  # for one message


@dataclass(eq=False)
class _Sent:
    """A message that is under way: when it was sent first, how often again, and with which ids."""

    message: Message
    since: float
    ids: list[str]
    reminders: int = 0


class Mail:
    """Messages on their way: not yet sent, and sent but not yet answered.

    Flower's own ``send_and_receive`` sleeps 3 s between polls. Its simulator scans all outstanding
    messages at every sweep, so there only a window of them is under way.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.simulated = is_simulated(grid)
        if not self.simulated:
            take_damaged_replies()
        polls = getattr(grid, "poll_interval", SIMULATION_POLL)  # 0: its pulls wait themselves
        self.interval = polls if self.simulated else NETWORK_POLL  # seconds
        # Our own grid says how many: its workers queue messages themselves.
        self.window = getattr(grid, "window", WINDOW) if self.simulated else sys.maxsize
        self.waiting: list[Message] = []
        self.pending: dict[str, _Sent] = {}  # a message that was repeated has several ids
        self.clients: dict[int, str] = {}  # whose a message is, by its Python id
        self._took: list[float] = []  # seconds of those that are answered
        self._pulled: SimpleQueue[tuple[Sequence[str], list[Message] | Exception]] = SimpleQueue()
        self._pulling: set[str] = set()  # ids that a thread pulls at the moment
        self._pull_seconds = 0.0  # of the last poll

    def __bool__(self) -> bool:
        return bool(self.waiting or self.pending)

    def poll(self) -> list[tuple[Message, Message]]:
        """Send what the window allows; return each message that is done, with its reply.

        Replies to anything else (another round's, a stranger's) are never pulled. An error reply
        may carry the server's own node id: ``reply_to_message_id`` says what it answers.
        """
        done = []
        while self.waiting and len(self.pending) < self.window:
            count = min(self.window - len(self.pending), BATCH)
            batch, self.waiting = self.waiting[:count], self.waiting[count:]
            for message in batch if self.simulated else ():
                message.metadata.ttl = FOREVER
            # Flower answers [] if the request was too large
            pushed: list[Any] = list(self.grid.push_messages(batch)) or [None] * len(batch)
            for identity, message in zip(pushed, batch, strict=True):
                if identity:
                    self.pending[identity] = _Sent(message, time.monotonic(), [identity])
                else:
                    error = _error(message, NOT_SENT, "the message could not be sent")
                    done.append((message, error))
        started = time.monotonic()
        pull = self.grid.pull_messages if self.simulated else self._pull
        replies = list(pull(list(self.pending))) if self.pending else []
        self._pull_seconds = time.monotonic() - started
        for reply in replies:
            sent = self.pending.get(reply.metadata.reply_to_message_id)
            if sent is not None:
                for identity in sent.ids:
                    del self.pending[identity]
                self._took.append(time.monotonic() - sent.since)
                done.append((sent.message, reply))
        return done

    def _under_way(self) -> list[_Sent]:
        return list(dict.fromkeys(self.pending.values()))  # each once

    def remind(self, timeout: float) -> list[Message]:
        """Repeat what has gone unanswered for too long, within ``timeout`` seconds; return it.

        Of two equal answers the first one counts. Until half of the others have answered, half of
        the time is long.
        """
        if self.simulated:  # where nothing is lost
            return []
        waiting, now = self._under_way(), time.monotonic()
        known = self._took and len(self._took) >= len(waiting)
        bound = max(REMIND_AFTER, 3 * max(self._took) if known else timeout / 2)
        late = [one for one in waiting if now - one.since > bound * 2**one.reminders]
        late = [one for one in late if one.reminders < REMINDERS]
        copies = []
        for sent in late:
            sent.reminders += 1
            content, meta = sent.message.content, sent.message.metadata
            copies.append(Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl))
        pushed = self.grid.push_messages(copies) if copies else ()
        for identity, sent in zip(pushed, late, strict=False):
            if identity:
                self.pending[identity] = sent
                sent.ids.append(identity)
        return [sent.message for sent in late]

    def pause(self) -> None:
        """Wait until the next poll is due; polls take at most a fifth of a SuperLink's time."""
        time.sleep(max(self.interval, 0.0 if self.simulated else 4 * self._pull_seconds))

    def _pull(self, identities: Sequence[str]) -> Iterable[Message]:
        """Return the replies that are there, on a network; raise what a pull raised."""
        # Flower waits minutes for a reply whose client died while it uploaded: one thread hangs.
        unasked = [identity for identity in identities if identity not in self._pulling]
        for share in (unasked[i::PULLS] for i in range(min(PULLS, len(unasked)))):
            self._pulling.update(share)
            threading.Thread(target=self._pull_some, args=(share,), daemon=True).start()
        replies: list[Message] = []
        until = time.monotonic() + PULL_PATIENCE
        with contextlib.suppress(Empty):
            while self._pulling:
                pulled, result = self._pulled.get(timeout=max(0.0, until - time.monotonic()))
                self._pulling.difference_update(pulled)
                if isinstance(result, Exception):
                    raise result
                replies += result
        place = {identity: i for i, identity in enumerate(identities)}  # threads end in any order
        return sorted(replies, key=lambda reply: place.get(reply.metadata.reply_to_message_id, -1))

    def _pull_some(self, identities: Sequence[str]) -> None:
        try:
            self._pulled.put((identities, list(self.grid.pull_messages(identities))))
        except Exception as error:  # noqa: BLE001  (raised where the result is wanted)
            self._pulled.put((identities, error))

    def close(self, timeout: float, age: float = 0.0) -> list[tuple[Message, Message]]:
        """Give up what was sent ``age`` seconds ago or before; return it with error replies."""
        before, given_up = time.monotonic() - age, []
        for sent in self._under_way():
            if sent.since <= before:
                given_up.append((sent.message, NO_REPLY, "no reply"))
                for identity in sent.ids:
                    del self.pending[identity]
        if not age:
            given_up += [(message, NOT_SENT, "not sent") for message in self.waiting]
            self.waiting = []
        return [(m, _error(m, code, f"{why} within {timeout:g} s")) for m, code, why in given_up]


def exchange(
    grid: Grid, messages: Mapping[str, Message], timeout: float,
    limit: Callable[[str], int] = lambda _: QUERY_BYTES,
    enough: Callable[[str, Reply], bool] = lambda *_: False,
    mail: Mail | None = None, least: float = math.inf, after: float = 0.0,
) -> list[tuple[str, Reply]]:  # fmt: skip
    """Send clients a message each; return their replies as they came, each decoded on arrival.

    ``limit`` is the bytes above which a client's reply is refused unread. Those that are missing
    are replies with an error, unless ``enough`` returned True for one that came. On a network this
    takes ``timeout`` seconds at most; a simulation is waited for however long it takes.

    With ``mail`` it ends once ``least`` replies without error came, and either every message is
    answered or ``after`` seconds are over. The others stay under way, ``timeout`` seconds in all,
    for the next exchange with the same ``mail``, which returns them as well.
    """
    least, began = math.inf if mail is None else least, time.monotonic()
    mail, deadline = Mail(grid) if mail is None else mail, began + timeout
    mail.clients |= zip(map(id, messages.values()), messages, strict=True)
    mail.waiting += messages.values()
    replies: list[tuple[str, Reply]] = []
    while mail:
        done, late = mail.poll(), time.monotonic() > deadline
        if not mail.simulated:
            done += mail.close(timeout, 0.0 if late else timeout)
        elif late:
            deadline = math.inf
            count = len(mail.pending) + len(mail.waiting)
            log.warning("%d replies have not come for %g s; a simulation waits", count, timeout)
        for sent, message in done:
            client = mail.clients.pop(id(sent))
            replies.append((client, read_reply(message, limit(client))))
            if enough(*replies[-1]):
                return replies
        if sum(not reply.error for _, reply in replies) >= least and (
            time.monotonic() - began >= after or messages.keys() <= dict(replies).keys()
        ):
            break
        for message in mail.remind(timeout):
            log.warning("node %d is asked again: no reply yet", message.metadata.dst_node_id)
        if mail.pending:
            mail.pause()
    return replies


def _error(message: Message, code: int, reason: str) -> Message:
    if not message.metadata.message_id:  # never pushed: give it an id, so that it can be answered
        posted(message, f"unsent-{id(message):x}")
    return Message(Error(code=code, reason=reason), reply_to=message)

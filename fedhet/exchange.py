"""Sends messages and collects replies as they come, within a time limit.

Flower's own ``send_and_receive`` sleeps 3 s between polls on a network; here the poll is short.
Its simulator scans all outstanding messages at every sweep (quadratic), so only a window of them
is in flight.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

SIMULATION_POLL = 0.01
NETWORK_POLL = 0.25
WINDOW = 64
NO_REPLY = 1000  # error codes of our own, above Flower's
NOT_SENT = 1001


def poll_interval(grid: Grid) -> float:
    """Seconds between polls: the in-memory grid of a simulation has a pull interval of its own."""
    return SIMULATION_POLL if hasattr(grid, "pull_interval") else NETWORK_POLL


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Yield one reply per message in the order of arrival; missing ones become error replies.

    Replies to anything else (another round's, a stranger's) are never pulled. An error reply may
    carry the server's own node id: match replies by ``reply_to_message_id``.
    """
    deadline = time.monotonic() + timeout
    waiting = list(messages)[::-1]
    pending: dict[str, Message] = {}
    while waiting or pending:
        batch: list[Message] = []
        while waiting and len(pending) + len(batch) < WINDOW:
            batch.append(waiting.pop())
        if batch:
            pushed: list[Any] = list(grid.push_messages(batch))
            if len(pushed) != len(batch):  # Flower answers [] if the request was too large
                pushed = [None] * len(batch)
            for message, identity in zip(batch, pushed, strict=True):
                if identity:
                    pending[identity] = message
                else:
                    yield _error(message, NOT_SENT, "the message could not be sent")
        for reply in grid.pull_messages(list(pending)) if pending else ():
            if pending.pop(reply.metadata.reply_to_message_id, None) is not None:
                yield reply
        if time.monotonic() > deadline:
            break
        if pending:
            time.sleep(poll_interval(grid))
    for message in pending.values():
        yield _error(message, NO_REPLY, f"no reply within {timeout:.0f} s")
    for message in reversed(waiting):
        yield _error(message, NOT_SENT, f"not sent within {timeout:.0f} s")


def _error(message: Message, code: int, reason: str) -> Message:
    if not message.metadata.message_id:  # never pushed: give it an id, so that it can be answered
        message.metadata.__dict__["_message_id"] = f"unsent-{id(message):x}"
    return Message(Error(code=code, reason=reason), reply_to=message)

"""One attempt at a sum at the server: uploads are added up as they come, then the masks taken off.

It knows neither the method nor what the vectors mean. What it holds of one client goes with it.
"""

import logging
import time
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Message

from fedhet.config.schema import RunConfig
from fedhet.protocol.checks import Rejected, check_origin
from fedhet.protocol.delivery import exchange
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.messages import (
    QUERY_BYTES,
    UNMASK,
    Instruction,
    Reply,
    message_bytes,
    read_reply,
    request,
)
from fedhet.protocol.payload import Array, Payload
from fedhet.sums.collector import Collector, NoSumError, PlainCollector
from fedhet.sums.contribution import Vector
from fedhet.sums.fixed_point import RangeError, check_total, fraction_bits, from_words
from fedhet.sums.member import BOX_BYTES, SEED_BYTES, Terms
from fedhet.sums.messages import (
    SUM,
    Cohort,
    Survivors,
    cohort_record,
    opened_of,
    survivors_record,
    upload_of,
)
from fedhet.sums.shares import SHARE_BYTES

log = logging.getLogger("fedhet")

AGAIN = 5.0  # seconds after which a survivor that failed to answer is asked again, on a network
TRIES = 2  # in a simulation, where nobody comes back


def terms_of(config: RunConfig) -> Terms:
    """What the run asks of every sum."""
    return Terms(config.sum_min, config.sum_threshold)


@dataclass(frozen=True)
class Words(Payload):
    """What goes up: words (L,) uint32, which count as the floats that they stand for."""

    words: Array
    boxes: Array

    @property
    def floats(self) -> int:
        """One for each word."""
        return self.words.size


@dataclass
class Attempt:
    """Attempt ``number`` of ``members`` in ``round``, at ``length`` words.

    ``told`` are the classes whose rows may be in them; None where nobody has counted.
    """

    handshake: Handshake
    config: RunConfig
    number: int
    round: int
    members: list[str]
    length: int
    told: list[int] | None = None
    refused: dict[str, str] = field(default_factory=dict)  # who will not help to unmask, and why
    bytes_down: int = 0  # of messages that unmask
    bytes_up: int = 0

    def __post_init__(self) -> None:
        kind = Collector if self.masked else PlainCollector
        self.collector = kind(self.members, self.length, terms_of(self.config))
        self.size = self.config.cohort(len(self.handshake.roster.ids))

    @property
    def masked(self) -> bool:
        """Whether there are masks to be taken off."""
        return self.config.secure_sum == "masked"

    @property
    def limit(self) -> int:
        """Bytes above which an upload is refused unread."""
        return 4 * self.length + BOX_BYTES * len(self.members) + QUERY_BYTES

    def record(self) -> ConfigRecord:
        """What each member is told of it."""
        told = None if self.told is None else tuple(self.told)
        return cohort_record(Cohort(tuple(sorted(self.members)), self.number, self.size, told))

    def take(self, client: str, reply: Reply) -> Payload:
        """Add one upload; Rejected with the reason if it is not as agreed. Returns its traffic."""
        check_origin(self.handshake.roster.infos[client], reply, self.round)
        arrays = list(reply.arrays)
        if not self.masked:
            arrays.append(np.zeros((len(self.members), BOX_BYTES), np.uint8))
        try:
            words, boxes = upload_of(arrays)
            self.collector.take(client, words, boxes)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return Words(words, boxes if self.masked else boxes[:0])

    def total(self, deadline: float) -> Vector:
        """The sum (L,) float64; NoSumError with the reason if it cannot be had until then."""
        survivors = self.collector.close()
        if len(survivors) < self.config.min_replies:
            raise NoSumError(f"{len(survivors)} of min-replies={self.config.min_replies} came")
        self._unmask(deadline)
        try:
            words = self.collector.total()
            largest = self.config.sum_range
            total = from_words(words, fraction_bits(self.size, largest))
            check_total(total, len(survivors), largest)
        except (NoSumError, RangeError) as error:
            why = "; ".join(f"client {c}: {reason}" for c, reason in self.refused.items())
            raise NoSumError(f"{error}{f' ({why})' if why else ''}") from error
        return total

    def _unmask(self, deadline: float) -> None:
        """Ask survivors until there is enough for the sum, or the time is up."""
        simulated, tries = is_simulated(self.handshake.grid), 0
        while (left := deadline - time.monotonic()) > 0:
            silent = [c for c in self.collector.missing() if c not in self.refused]
            if not silent or (simulated and tries == TRIES):
                break
            if tries and not simulated:
                time.sleep(min(AGAIN, left))
                self.handshake.query(patience=0.0)
            tries += 1
            self._ask([c for c in silent if c in self.handshake.roster.nodes], left)

    def _ask(self, clients: list[str], left: float) -> None:
        """One message to each of these survivors; ends once there is enough."""
        messages = {client: self._message(client, left) for client in clients}
        whose = {id(message): client for client, message in messages.items()}
        self.bytes_down += sum(map(message_bytes, messages.values()))
        limit = QUERY_BYTES + (SHARE_BYTES + SEED_BYTES) * len(self.members)
        for sent, message in exchange(self.handshake.grid, messages.values(), left):
            client, reply = whose[id(sent)], read_reply(message, limit)
            self.bytes_up += reply.message_bytes
            if message.has_error():
                log.info("client %s does not answer: %s", client, reply.error)
                continue
            try:
                check_origin(self.handshake.roster.infos[client], reply, self.round)
                survivors, gone = len(self.collector.survivors), len(self.collector.gone)
                opened = opened_of(reply, survivors, gone)
                self.collector.answer(client, opened.shares, opened.seeds, opened.closed)
            except (Rejected, ValueError) as error:
                self.refused[client] = str(error)
            if not self.collector.missing():
                break

    def _message(self, client: str, left: float) -> Message:
        shake, survivors = self.handshake, tuple(self.collector.survivors)
        what = Instruction(shake.experiment, self.round, state_dir=shake.state_dir)
        message = request(UNMASK, shake.roster.nodes[client], what, left)
        boxes = self.collector.boxes_for(client)
        message.content[SUM] = survivors_record(Survivors(survivors, self.number, boxes))
        return message

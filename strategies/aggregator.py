"""Aggregate a round from single uploads: which replies count, with which weight.

Each reply is looked at alone, then all of a round are held against each other.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhet.errors import Rejected, one_line
from fedhet.protocol.checks import (
    StepLimits,
    check_arrays,
    check_origin,
    check_trained,
    read_confusion,
)
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.mail import replies
from fedhet.protocol.messages import CONFUSION, QUERY_BYTES, Reply
from fedhet.protocol.payload import Payload
from fedhet.records.ledger import Ledger
from fedhet.site.privacy import sigma
from fedhet.strategies.robust import capped

if TYPE_CHECKING:
    from fedhet.strategies.base import MethodStrategy

log = logging.getLogger("fedhet")

MANY_BYTES = 256 << 20  # of a reply whose shapes vary


@dataclass(frozen=True)
class Upload:
    """An accepted reply: its client, its payload, and its share of the round's weights."""

    info: ClientInfo
    payload: Payload
    weight: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Valid:
    """A reply that is valid by itself; ``step`` is the length of its step."""

    info: ClientInfo
    payload: Payload
    reply: Reply
    step: float | None


class PlainAggregator:
    """Aggregates the rounds of a run whose server sees every upload.

    :class:`fedhet.sums.server.SumAggregator` takes its place in a run with ``secure-sum``.
    """

    ledger_type = Ledger
    train_share = 1.0  # of a round's time that waiting for training may take
    evaluates = True  # whether a client alone may be asked for its accuracy
    about = None  # what a train message says of a sum

    def __init__(self, strategy: "MethodStrategy[Any]", marks: Mapping[str, Any]) -> None:
        """Load :meth:`marks` from a checkpoint's ``marks``."""
        self.strategy, self.config, self.roster = strategy, strategy.config, strategy.roster
        self.ledger, self.handshake = strategy.ledger, strategy.handshake
        self.steps = StepLimits(self.config.max_update_ratio, sigma(self.config))
        self.steps.load(marks.get("steps", {}))
        self._pace: dict[str, float] = {}  # seconds per training image, by model

    def marks(self) -> dict[str, Any]:
        """Return the values for a checkpoint."""
        return {"steps": self.steps.dump()}

    def members(self, round_: int, clients: list[str]) -> list[str]:
        """Return those of a round's ``clients`` that are asked to train: all."""
        del round_
        return clients

    def seconds(self, client: str) -> float:
        """Return a client's expected training time, by the last reply of its model; 0: unknown."""
        info = self.roster.infos[client]
        return self._pace.get(info.model, 0.0) * info.train_images

    def limit(self, client: str) -> int:
        """Return the bytes above which a reply is refused unread."""
        expected = self.strategy.expect(self.roster.infos[client])
        return MANY_BYTES if expected is None else 4 * expected.bytes + QUERY_BYTES

    def combine_replies(
        self, round_: int, replies: Sequence[tuple[str, Reply]]
    ) -> Mapping[str, float] | None:
        """Check and aggregate replies, in client order; None if too few of them are valid."""
        found: list[Valid] = []
        for client, reply in replies:
            info = self.roster.infos[client]
            try:
                found.append(self.valid(info, reply, round_))
            except Rejected as reason:
                self.ledger.reject(client, str(reason), reply)
            else:
                self.ledger.spend(client, reply.metrics)
        outliers = self.outliers(found)
        for one in found:
            if one.info.client in outliers:
                self.ledger.reject(one.info.client, outliers[one.info.client], one.reply)
        accepted = [one for one in found if one.info.client not in outliers]
        if len(accepted) < self.config.min_replies:
            count = f"{len(accepted)} of min-replies={self.config.min_replies}"
            for one in accepted:
                why = f"valid, but the round is skipped: {count} came"
                self.ledger.reject(one.info.client, why, one.reply)
            return None
        numbers = self.strategy.aggregate(self._uploads(accepted), round_)
        self._accept(accepted, round_)
        return numbers

    def confusions(self) -> dict[str, NDArray[np.int64]]:
        """Ask clients for their confusion matrices (C, C) after the last round; by client."""
        found: dict[str, NDArray[np.int64]] = {}
        roster, finished = self.roster, self.strategy.finished
        asked = [
            client
            for client in roster.ids
            if client in roster.nodes and (self.config.evaluate_all or roster.generations[client])
        ]
        messages = {c: self.strategy.message(CONFUSION, c, finished) for c in asked}
        for client, reply in replies(self.handshake.grid, messages, self.config.round_timeout):
            try:
                check_origin(roster.infos[client], reply, finished)
                found[client] = read_confusion(reply, len(roster.classes))
            except Rejected as reason:
                log.warning("client %s is not in confusion.csv: %s", client, one_line(str(reason)))
        return found

    def outliers(self, found: Sequence[Valid]) -> Mapping[str, str]:
        """Return reasons by client, for steps that are far longer than everybody's."""
        if found and self.steps.start is None:
            self.steps.start = self.strategy.step_start(found[0].info)
        lengths = {one.info.client: one.step for one in found if one.step is not None}
        return self.steps.outliers(lengths)

    def _uploads(self, accepted: Sequence[Valid]) -> list[Upload]:
        uniform = self.config.weighting == "uniform"
        sizes = np.array([1 if uniform else one.info.train_images for one in accepted])
        shares = capped(sizes, self.config.max_weight).tolist()
        return [
            Upload(one.info, one.payload, share, one.reply.metrics)
            for share, one in zip(shares, accepted, strict=True)
        ]

    def _accept(self, accepted: Sequence[Valid], round_: int) -> None:
        """Record the aggregated replies; their clients continue from this round."""
        self.steps.accept([one.step for one in accepted if one.step is not None])
        for one in accepted:
            info, metrics = one.info, one.reply.metrics
            self._pace[info.model] = metrics.get("seconds", 0.0) / info.train_images
            self.ledger.accept(info.client, round_, one.payload, one.reply)

    def valid(self, info: ClientInfo, reply: Reply, round_: int) -> Valid:
        """Return a reply with its payload; raise Rejected if anything about it is wrong."""
        strategy = self.strategy
        check_trained(info, reply, round_, self.config, strategy.metric_ranges)
        images = reply.metrics.get("num-examples")
        if images != info.train_images:
            raise Rejected(f"num-examples is {images}, but it declared {info.train_images}")
        try:
            payload = strategy.upload_type.from_ndarrays(reply.arrays)
        except ValueError as error:
            name = type(strategy).__name__
            raise Rejected(
                f"{error}; `upload_type` of {name} must be what the client's `upload` returns"
            ) from error
        length = check_arrays(payload, strategy.expect(info), self.config.max_update_norm)
        strategy.check(info, payload)
        return Valid(info, payload, reply, strategy.step_length(payload, length))

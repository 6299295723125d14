"""Check a round's replies where the server sees single uploads, and the rules that combine them.

Replies are checked alone, then against each other. :class:`fedhet.sums.server.SumAggregator` takes
the place of :class:`PlainAggregator` in a run with ``secure-sum``.

``trimmed-mean`` and ``median`` are those of Yin, Chen, Ramchandran and Bartlett 2018,
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (arXiv 1803.01498),
definitions 1 and 2: coordinate by coordinate and without weights. Of m values the trimmed mean
leaves out the floor(trim * m) largest and as many smallest, so that m < 1 / trim values are not
trimmed at all: choose ``trim`` by the fewest clients that share a class.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import RunConfig
from fedhet.errors import Rejected, one_line
from fedhet.protocol import checks
from fedhet.protocol.checks import Checked, Valid
from fedhet.protocol.handshake import ClientInfo, Handshake
from fedhet.protocol.mail import exchange
from fedhet.protocol.messages import CONFUSION, QUERY_BYTES, Reply
from fedhet.protocol.payload import Array, Payload
from fedhet.records.ledger import Ledger
from fedhet.site.privacy import sigma

log = logging.getLogger("fedhet")

CHUNK = 1 << 20  # values that are sorted at a time
ROBUST = ("mean", "trimmed-mean", "median")
MANY_BYTES = 256 << 20  # of a reply whose shapes vary


@dataclass(frozen=True)
class Upload:
    """An accepted reply: its client, its payload, and its share of the round's weights.

    ``late`` is 1, or the factor in the share of a reply to a message of an earlier round.
    """

    info: ClientInfo
    payload: Any
    weight: float
    metrics: Mapping[str, float]
    late: float = 1.0


@dataclass(frozen=True)
class Reference:
    """What an upload of one client is held against.

    ``payload`` has its shapes and dtypes, and the values that the client started from, or zeros;
    None if shapes vary. ``max-update-ratio`` bounds the step from there, a root mean square, unless
    ``step`` measures the upload otherwise. It bounds nothing if not ``bounded``: ``check`` limits
    the values. ``start`` is the root mean square of the values started from, if ``payload`` has
    others.
    """

    payload: Payload | None
    start: float | None = None
    step: Callable[[Payload], float] | None = None
    bounded: bool = True

    @property
    def size(self) -> float:
        """Root mean square of the values that the client started from."""
        if self.start is not None:
            return self.start
        return 0.0 if self.payload is None else checks.size(self.payload.flat)


class _Method(Protocol):
    """The hooks of a strategy that replies are checked and combined by."""

    upload_type: type[Payload]
    unanswered: dict[str, int]  # rounds of train messages without a reply, by client

    @property
    def metric_ranges(self) -> Mapping[str, tuple[float, float]]: ...
    def reference(self, info: ClientInfo) -> Reference: ...
    def check(self, info: ClientInfo, payload: Any) -> None: ...
    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]: ...


class PlainAggregator:
    """Checks and books the rounds of a run whose server sees every upload."""

    train_share = 1.0  # of a round's time that waiting for training may take
    evaluates = True  # whether a client alone may be asked for its accuracy
    about = None  # what a train message says of a sum

    def __init__(self, config: RunConfig, ledger: Ledger, handshake: Handshake) -> None:
        self.config, self.ledger, self.handshake = config, ledger, handshake
        self.roster = handshake.roster

    def members(self, round_: int, clients: list[str], deadline: float) -> list[str]:
        """Return those of a round's ``clients`` that are asked to train: all."""
        return clients

    def limit(self, expected: Payload | None) -> int:
        """Return the bytes above which a reply is refused unread."""
        return MANY_BYTES if expected is None else 4 * expected.bytes + QUERY_BYTES

    def check(
        self, round_: int, replies: Sequence[tuple[str, Reply]], method: _Method, deadline: float
    ) -> Checked | None:
        """Return the replies that count, in client order; None if they are too few."""
        valid: list[Valid] = []
        accepted: list[Valid] = []
        steps: dict[str, float] = {}
        for client, reply in replies:
            try:
                trained = method.unanswered.get(client, round_)
                valid.append(self._valid(self.roster.infos[client], reply, trained, method))
            except Rejected as reason:
                self.ledger.reject(client, str(reason), reply)
                continue
            self.ledger.spend(client, reply.metrics)
            if valid[-1].step is not None:
                steps[client] = valid[-1].step
        start = method.reference(valid[0].info).size if valid else 0.0
        outliers = checks.long_steps(steps, start, self.config.max_update_ratio, sigma(self.config))
        for one in valid:
            if one.info.client in outliers:
                self.ledger.reject(one.info.client, outliers[one.info.client], one.reply)
            else:
                accepted.append(one)
        if len(accepted) >= self.config.min_replies:
            return Checked(round_, accepted)
        count = f"{len(accepted)} of min-replies={self.config.min_replies}"
        for one in accepted:
            why = f"valid, but the round is skipped: {count} came"
            self.ledger.reject(one.info.client, why, one.reply)
        return None

    def _valid(self, info: ClientInfo, reply: Reply, trained: int, method: _Method) -> Valid:
        """Return a reply with its payload; raise Rejected if anything about it is wrong."""
        checks.check_trained(info, reply, trained, self.config, method.metric_ranges)
        images = reply.metrics.get("num-examples")
        if images != info.train_images:
            raise Rejected(f"num-examples is {images}, but it declared {info.train_images}")
        try:
            payload = method.upload_type.from_ndarrays(reply.arrays)
        except ValueError as error:
            name = type(method).__name__
            text = f"`upload_type` of {name} must be what the client's `upload` returns"
            raise Rejected(f"{error}; {text}") from error
        reference = method.reference(info)
        length = checks.check_arrays(payload, reference.payload, self.config.max_update_norm)
        method.check(info, payload)
        if reference.step is not None:
            length = reference.step(payload)
        return Valid(info, payload, reply, length if reference.bounded else None, trained)

    def combine(self, checked: Checked, method: _Method) -> Mapping[str, float]:
        """Aggregate the accepted replies, each with its share of the weights; book them.

        Their clients continue from the round that they trained for. Return the round's numbers.
        """
        config, weights, late = self.config, [], []
        for one in checked.accepted:
            late.append(float(config.late_weight ** (checked.round - one.trained)))
            images = 1 if config.weighting == "uniform" else one.info.train_images
            weights.append(late[-1] * images)
        shares = capped(np.array(weights), config.max_weight).tolist()
        uploads = [
            Upload(one.info, one.payload, share, one.reply.metrics, factor)
            for share, factor, one in zip(shares, late, checked.accepted, strict=True)
        ]
        numbers = method.aggregate(uploads, checked.round)
        for one, factor in zip(checked.accepted, late, strict=True):
            self.ledger.accept(one.info.client, one.trained, one.payload, one.reply)
            if one.trained != checked.round:
                self.ledger.late(one.info.client, one.trained, factor)
        return numbers

    def confusions(self, round_: int, deadline: float) -> dict[str, NDArray[np.int64]]:
        """Ask clients for their confusion matrices (C, C) after the last round; by client."""
        roster, every = self.roster, self.config.evaluate_all
        clients = [c for c in roster.ids if c in roster.nodes and (every or roster.generations[c])]
        messages = {c: self.handshake.message(CONFUSION, c, round_) for c in clients}
        matrices: dict[str, NDArray[np.int64]] = {}
        for client, reply in exchange(self.handshake.grid, messages, self.config.round_timeout):
            try:
                checks.check_origin(roster.infos[client], reply, round_)
                matrices[client] = checks.read_confusion(reply, len(roster.classes))
            except Rejected as reason:
                log.warning("client %s is not in confusion.csv: %s", client, one_line(str(reason)))
        return matrices


# --- how uploads are combined ----------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """The rule by which a run combines its uploads."""

    name: str = "mean"
    trim: float = 0.0
    max_weight: float = 1.0

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the rule of a configuration."""
        return cls(config.aggregation, config.trim, config.max_weight)

    def middle(self, values: Array) -> Array:
        """Return the trimmed mean or median over the first axis of (m, ...), float64."""
        m = len(values)
        cut = (m - 1) // 2 if self.name == "median" else int(self.trim * m + 1e-9)
        return np.asarray(np.sort(values, axis=0)[cut : m - cut].mean(axis=0, dtype=np.float64))

    def middle_of(self, arrays: list[Array]) -> Array:
        """Return :meth:`middle` of equal shapes, float32, sorted piece by piece."""
        flat = [np.ravel(array) for array in arrays]
        result = np.empty(flat[0].size, dtype=np.float32)
        step = max(1, CHUNK // len(flat))
        for start in range(0, len(result), step):
            part = slice(start, start + step)
            result[part] = self.middle(np.stack([array[part] for array in flat]))
        return result.reshape(arrays[0].shape)

    def middle_by_class(self, classes: Array, rows: Array, count: int) -> Array:
        """Return :meth:`middle` of the rows (M, w) of each of ``count`` classes, else zeros."""
        result = np.zeros((count, *rows.shape[1:]))
        for one in np.unique(classes):
            result[one] = self.middle(rows[classes == one])
        return result


MEAN = Rule()


def capped(sizes: Array, cap: float, groups: Array | None = None) -> Array:
    """Return shares of ``sizes`` (M,) in the sum of their group, none above ``cap``, float64.

    What is cut off goes to the others of the group in proportion. In a group of fewer than
    1 / cap members nobody can be below the cap: all get the same.
    """
    if groups is None:
        groups = np.zeros(len(sizes), dtype=np.int64)
    limit = np.maximum(cap, 1 / np.maximum(np.bincount(groups), 1))[groups]
    shares = sizes / np.bincount(groups, sizes)[groups]
    full = np.zeros(len(sizes), dtype=bool)
    while (over := ~full & (shares > limit * (1 + 1e-12))).any():
        full |= over
        room = 1 - np.bincount(groups, np.where(full, limit, 0.0))[groups]
        loose = np.bincount(groups, np.where(full, 0.0, sizes))[groups]
        shares = np.where(full, limit, sizes * room / np.where(loose > 0, loose, 1.0))
    return np.asarray(shares)

"""Which replies count: each looked at alone, then all of a round held against each other."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedhet.protocol.checks import (
    Rejected,
    Steps,
    check_arrays,
    check_epsilon,
    check_metrics,
    check_reply,
    size,
)
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.messages import Reply
from fedhet.protocol.payload import Payload
from fedhet.site.privacy import sigma
from fedhet.strategies.base import MethodStrategy

MOST_FLOPS = 1000.0  # times the median of a round, per image: models differ in size
SWOLLEN = 10.0  # times the usual size: what went down came of no honest round


@dataclass(frozen=True)
class Valid:
    """A reply that is as it should be, looked at alone; ``step`` is the length of its step."""

    info: ClientInfo
    payload: Payload
    reply: Reply
    step: float | None


class Acceptance:
    """The checks of a run's replies, with what they remember from round to round."""

    def __init__(self, strategy: MethodStrategy[Any]) -> None:
        self.strategy = strategy
        self.steps = Steps(strategy.config.max_update_ratio, sigma(strategy.config))

    def valid(self, info: ClientInfo, reply: Reply, round_: int) -> Valid:
        """A reply with its payload; Rejected with a reason if anything about it is wrong."""
        try:
            return self._checked(info, reply, round_)
        except Rejected as reason:
            raise Rejected(f"{reason}{self._sent_too_much(info, round_)}") from reason

    def odd(self, found: Sequence[Valid]) -> Mapping[str, str]:
        """Reasons by client, for FLOPs and steps that are far from everybody's."""
        if found and self.steps.start is None:
            self.steps.start = self.strategy.step_start(found[0].info)
        spent = {
            one.info.client: one.reply.metrics.get("train_flops", 0.0) / one.info.train_images
            for one in found
        }
        usual = statistics.median(spent.values()) if spent else 0.0
        costly = {
            client: f"train_flops {flops:.4g} per image, and the median is {usual:.4g}"
            for client, flops in spent.items()
            if flops > MOST_FLOPS * usual
        }
        lengths = {one.info.client: one.step for one in found if one.step is not None}
        return self.steps.odd(lengths) | costly

    def accept(self, counted: Sequence[Valid]) -> None:
        """These replies count."""
        self.steps.accept([one.step for one in counted if one.step is not None])

    def _checked(self, info: ClientInfo, reply: Reply, round_: int) -> Valid:
        strategy, config = self.strategy, self.strategy.config
        check_reply(info, reply, round_)
        check_metrics(reply, strategy.metric_ranges)
        check_epsilon(reply, config)
        try:
            payload = strategy.upload_type.from_ndarrays(reply.arrays)
        except ValueError as error:
            name = type(strategy).__name__
            raise Rejected(
                f"{error}; `upload_type` of {name} must be what the client's `upload` returns"
            ) from error
        length = check_arrays(payload, strategy.expect(info), config.max_update_norm)
        strategy.check(info, payload)
        return Valid(info, payload, reply, strategy.step_length(payload, length))

    def _sent_too_much(self, info: ClientInfo, round_: int) -> str:
        """What a client cannot help: arrays far larger than usual went down to it in this round."""
        sent = size(self.strategy.download(info, round_).flat)
        usual = self.steps.start or self.steps.usual()
        if not usual or sent <= SWOLLEN * usual:
            return ""
        return f" (it was sent arrays {sent / usual:.3g} times as large as usual)"

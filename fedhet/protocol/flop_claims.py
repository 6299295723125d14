"""FLOPs that clients say they spent, held against what the server can know.

The server counts for itself what one round of a client costs per training image, with the method's
own losses on a model of the declared architecture. Models that only their nodes know (a module of
their own) it does not build: those are held against the median of the round.
"""

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from fedhet.protocol.checks import Rejected
from fedhet.protocol.identity import ClientInfo
from fedhet.protocol.payload import Payload

log = logging.getLogger("fedhet")

Count = Callable[[ClientInfo, Payload, int], tuple[float, float]]
FACTOR = 10.0  # methods may work harder in later rounds, and with larger batches
ODD = 1000.0  # times the median of a round, for models that only their nodes know


class Work:
    """The server's own counts, one per architecture, made when the first reply comes."""

    def __init__(self, count: Count | None = None) -> None:
        """``count`` gives the FLOPs of that round per training image, and those alike for all.

        What it raises means unknown.
        """
        self._count = count
        self._known: dict[str, tuple[float, float] | None] = {}
        self._when: dict[str, int] = {}  # the round of that count

    def check(
        self, info: ClientInfo, flops: float, payload: Callable[[], Payload], round_: int
    ) -> None:
        """Rejected if ``flops`` are far above the server's count for a client sent ``payload``.

        What a client is sent, and the round, may decide what it trains on: before a refusal, once
        a round and architecture, the server counts again.
        """
        if info.model not in self._known:
            self._known[info.model] = self._counted(info, payload, round_)
            self._when[info.model] = round_
        if self._exceeds(info, flops) and self._when[info.model] != round_:
            self._known[info.model] = self._counted(info, payload, round_)
            self._when[info.model] = round_
        if self._exceeds(info, flops):
            raise Rejected(
                f"train_flops {flops:.4g}, but the server counts "
                f"{self._expected(info):.4g} for {info.train_images} images of {info.model}"
            )

    def estimate(
        self,
        infos: Sequence[ClientInfo],
        images: float,
        payload: Callable[[], Payload],
        round_: int,
    ) -> float:
        """FLOPs of a round of these clients by the server's count, ``images`` training images each.

        Architectures that it cannot count cost as much as the others do; 0 if it can count none.
        """
        known = []
        for info in infos:
            if info.model not in self._known:
                self._known[info.model] = self._counted(info, payload, round_)
                self._when[info.model] = round_
            known.append(self._known[info.model])
        costs = [own * images + others for own, others in filter(None, known)]
        return sum(costs) / len(costs) * len(infos) if costs else 0.0

    def _expected(self, info: ClientInfo) -> float:
        """The server's count for a client; infinity if there is none."""
        known = self._known[info.model]
        return math.inf if known is None else known[0] * info.train_images + known[1]

    def _exceeds(self, info: ClientInfo, flops: float) -> bool:
        return flops > FACTOR * self._expected(info)

    def odd(self, spent: Mapping[str, float], infos: Sequence[ClientInfo]) -> dict[str, str]:
        """Reasons by client, for models the server could not count: far above the median."""
        per_image = [spent[info.client] / info.train_images for info in infos]
        limit = ODD * statistics.median(per_image) if per_image else 0.0
        return {
            info.client: f"train_flops {value:.4g} per image, and the median is {limit / ODD:.4g}"
            for info, value in zip(infos, per_image, strict=True)
            if self._known.get(info.model) is None and value > limit
        }

    def _counted(
        self, info: ClientInfo, payload: Callable[[], Payload], round_: int
    ) -> tuple[float, float] | None:
        if self._count is None:
            return None
        try:
            return self._count(info, payload(), round_)
        except Exception as error:  # a method or a model of somebody else may fail in any way
            log.info("FLOPs of %s are not checked by count: %s", info.model, error)
            return None

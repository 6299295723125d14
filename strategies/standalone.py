"""Standalone: every sampled client trains alone; nothing crosses the wire in either direction.

Clients are sampled as in every other method, so that the numbers compare.
"""

from collections.abc import Mapping

import numpy as np

from fedhet.config.schema import Params, RunConfig
from fedhet.protocol.payload import Payload
from fedhet.strategies.base import MethodStrategy
from fedhet.sums.contribution import Own, Summand, Vector


class StandaloneStrategy(MethodStrategy):
    """Sends nothing, combines nothing."""

    not_summed = ""
    weighs_late = True

    @classmethod
    def ignores(cls, config: RunConfig, params: Params) -> Mapping[str, str]:
        """Return the keys of weights, which have no effect without a mean."""
        return {"weighting": "nothing is sent", "max-weight": "nothing is sent"}

    @classmethod
    def contribution(cls, upload: Payload, own: Own) -> Summand:
        """Return no entries."""
        return Summand(np.zeros(0), np.zeros(0))

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Do nothing: there are no global arrays."""
        return {}

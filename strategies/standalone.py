"""Standalone: every sampled client trains alone; nothing crosses the wire in either direction.

Clients are sampled as in every other method, so that the numbers compare.
"""

from collections.abc import Mapping

from fedhet.config.schema import Params, RunConfig
from fedhet.strategies.base import MethodStrategy


class StandaloneStrategy(MethodStrategy):
    """Sends nothing, combines nothing."""

    not_summed = ""
    weighs_late = True

    @classmethod
    def ignores(cls, config: RunConfig, params: Params) -> Mapping[str, str]:
        """Return the keys of weights, which have no effect without a mean."""
        return {"weighting": "nothing is sent", "max-weight": "nothing is sent"}

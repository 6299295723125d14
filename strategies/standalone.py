"""Standalone: every sampled client trains alone; nothing crosses the wire in either direction.

Clients are sampled as in every other method, so that the numbers compare.
"""

from collections.abc import Mapping

from fedhet.schema import Params, RunConfig
from fedhet.strategies.base import MethodStrategy


class StandaloneStrategy(MethodStrategy):
    """Sends nothing, combines nothing."""

    @classmethod
    def ignores(cls, config: RunConfig, params: Params) -> Mapping[str, str]:
        """There is no mean to weight."""
        return {"weighting": "nothing is sent", "max-weight": "nothing is sent"}

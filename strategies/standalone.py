"""Standalone: every sampled client trains alone; nothing crosses the wire in either direction.

Clients are sampled as in every other method, so that the numbers compare.
"""

from fedhet.strategies.base import MethodStrategy


class StandaloneStrategy(MethodStrategy):
    """Sends nothing, combines nothing."""

    not_summed = ""
    unweighted = "nothing is sent"
    weighs_late = True

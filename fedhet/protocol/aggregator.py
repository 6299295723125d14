"""How a round is aggregated: the interface that the loop over rounds uses."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import RunConfig
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.messages import Reply
from fedhet.records.ledger import Ledger


class Aggregator(ABC):
    """Aggregates the rounds of a run, from what its clients reply.

    :class:`fedhet.strategies.plain.PlainAggregator` does so from single uploads, and
    :class:`fedhet.sums.server.SumAggregator` from sums (``secure-sum``).
    """

    ledger_type: type[Ledger] = Ledger
    train_share = 1.0  # of a round's time that waiting for training may take
    evaluates = True  # whether a client alone may be asked for its accuracy
    about: Any = None  # what a train message says of a sum

    def __init__(self, strategy: Any, marks: Mapping[str, Any]) -> None:
        """Load :meth:`marks` from a checkpoint's ``marks``.

        ``strategy`` is a :class:`fedhet.strategies.base.MethodStrategy`, of a level above.
        """
        del marks
        self.strategy = strategy
        self.config: RunConfig = strategy.config
        self.roster: Roster = strategy.roster
        self.ledger = strategy.ledger
        self.handshake: Handshake = strategy.handshake

    @abstractmethod
    def marks(self) -> dict[str, Any]:
        """Return the values for a checkpoint."""

    def members(self, round_: int, clients: list[str]) -> list[str]:
        """Return those of a round's ``clients`` that are asked to train."""
        del round_
        return clients

    def seconds(self, client: str) -> float:
        """Return a client's expected training time; 0: unknown."""
        del client
        return 0.0

    @abstractmethod
    def limit(self, client: str) -> int:
        """Return the bytes above which a client's reply is refused unread."""

    @abstractmethod
    def combine_replies(
        self, round_: int, replies: Sequence[tuple[str, Reply]]
    ) -> Mapping[str, float] | None:
        """Check replies, in client order, and set the global arrays by those that are valid.

        Return numbers for the round's record; None if the round is skipped.
        """

    @abstractmethod
    def confusions(self) -> dict[str, NDArray[np.int64]]:
        """Return confusion matrices (C, C) after the last round, by client."""

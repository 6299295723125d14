"""The books of a run in which the server learns sums: totals and means, nothing of one client."""

from collections.abc import Mapping
from typing import Any

from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.roster import Roster
from fedhet.records.ledger import Ledger
from fedhet.sums.metrics import Summed

EVALUATED = "evaluated_clients"


class SumLedger(Ledger):
    """As :class:`Ledger`; where metrics are summed, means alone, over the last round's clients.

    The hash chain covers the total and who is in it, instead of single uploads.
    """

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        self.means: dict[str, float] = {}

    def accept(
        self, client: str, payload: Payload, metrics: Mapping[str, float], message_bytes: int
    ) -> None:
        """Book somebody who is in the sum; what it sent is not in the chain."""
        super().accept(client, payload, metrics, message_bytes)
        self.chain.add("upload", client, metrics)

    def add_total(self, total: Array, means: Mapping[str, Summed]) -> None:
        """Book the sum itself, and the means that were found in it."""
        self.chain.add("sum", "", {}, (total,))
        for name, found in means.items():
            if "accuracy" in name:
                self.means[name] = found.mean
            elif name == "train_loss":
                self.round.losses = [found.mean]
            else:
                self.round.numbers[name] = found.mean
        if "test_accuracy" in means:
            self.means[EVALUATED] = float(means["test_accuracy"].clients)

    def record(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """As :meth:`Ledger.record`; deviations and percentiles are nobody's to know."""
        record = super().record(arrays)
        for name, mean in self.means.items():
            if name == EVALUATED:
                record[name] = int(mean)
            else:
                record[f"{name}_mean"] = mean
        if self.means:
            record["train_flops"] = None  # not told: see fedhet.sums.metrics
        return record

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return super().dump() | {"means": self.means}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`."""
        super().load(kept)
        self.means = dict(kept.get("means", {}))

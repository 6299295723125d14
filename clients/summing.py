"""A client's part in a sum: its upload as a vector, the vector as words, the words masked.

The method says what it adds (``contribution`` of its strategy, which the ClientApp hands over), the
notes hold the rules and the masks (:mod:`fedhet.node.sums`); neither knows of the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhet.clients.base import MethodClient, round_config
from fedhet.node.sums import SumNotes
from fedhet.protocol.contribution import Own, Vector
from fedhet.protocol.messages import Instruction, Reply
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.reasons import Refused, Word
from fedhet.protocol.sum_metrics import SumMetrics
from fedhet.protocol.sums import Cohort
from fedhet.secure_sum.words import RangeError, fraction_bits, grid, to_words

Contribute = Callable[[Payload, Own], Vector]


@dataclass
class Part:
    """One client's part in one attempt; ``notes`` is None where nothing is masked."""

    client: MethodClient[Any]
    contribute: Contribute
    metrics: SumMetrics | None  # None: they are told beside the sum
    cohort: Cohort
    sent: bytes  # digest of what came down
    notes: SumNotes | None = None

    def reply(self, what: Instruction, received: Sequence[Array]) -> tuple[Reply, dict[str, float]]:
        """Train and answer; the second are this client's own numbers, for its own eyes.

        They are empty where a request came again and is answered with what was answered before.
        Raises Refused for a cohort that the client's rules forbid, before anything is trained.
        """
        if self.notes is not None:
            before = self.notes.repeated(what.round, self.cohort, self.sent)
            if before is not None:
                return before, {}
        client, config = self.client, self.client.config
        _, _, found = client.fit(list(received), round_config(what))
        numbers = {name: float(value) for name, value in found.items()}
        own = own_of(client)
        parts = [self.contribute(client.uploaded, own)]
        if self.metrics is not None:
            parts.append(self.metrics.vector(numbers | {"train_images": float(sum(own.images))}))
        vector = np.concatenate(parts)
        bits = fraction_bits(self.cohort.size, config.sum_range)
        try:
            words = to_words(grid(vector, bits, config.sum_range))
        except RangeError as error:
            raise Refused(str(error), Word.RANGE) from error
        info = {"client": client.setup.data.client, "round": what.round, "state": client.saved}
        reply = Reply(info, numbers if self.metrics is None else {}, [words])
        if self.notes is not None:
            reply = self.notes.mask(what.round, self.cohort, self.sent, words, reply)
        return reply, numbers


def own_of(client: MethodClient[Any]) -> Own:
    """What a client knows of itself."""
    counts, positions = client.setup.data.class_counts(), list(client.setup.classes)
    by_id = {positions.index(name): count for name, count in counts.items()}
    seen = tuple(sorted(by_id))
    return Own(client.config, client.classes, seen, tuple(by_id[label] for label in seen))

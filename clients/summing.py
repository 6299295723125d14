"""A client's part in a sum: its upload as a vector, the vector as words, the words masked.

The method says what it adds (by its strategy, which the ClientApp hands over), the
notes hold the rules and the masks (:mod:`fedhet.sums.kept`); neither knows of the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.clients.base import MethodClient, round_config
from fedhet.errors import UserError
from fedhet.protocol.messages import Instruction, Reply
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.reasons import Refused, Word
from fedhet.site.budget import Budget
from fedhet.site.privacy import clipped, share_steps
from fedhet.sums.contribution import Method, Own, Vector, ownership
from fedhet.sums.fixed_point import RangeError, fraction_bits, grid, to_words
from fedhet.sums.kept import SumNotes
from fedhet.sums.member import Terms
from fedhet.sums.messages import Cohort
from fedhet.sums.metrics import SPENT, SumMetrics


@dataclass
class Part:
    """One client's part in one attempt; ``notes`` is None where nothing is masked."""

    client: MethodClient[Any]
    method: Method
    metrics: SumMetrics | None  # None: they are told beside the sum
    cohort: Cohort
    sent: bytes  # digest of what came down
    notes: SumNotes | None = None
    told: frozenset[int] | None = None  # classes whose rows may be summed
    _steps: list[NDArray[np.int64]] = field(default_factory=list)  # of the vector's parts

    def reply(self, what: Instruction, received: Sequence[Array]) -> tuple[Reply, dict[str, float]]:
        """Train and answer; the second are this client's own numbers, for its own eyes.

        They are empty where a request came again and is answered with what was answered before.
        Raises Refused for a cohort that the client's rules forbid, before anything is trained.
        """
        if self.notes is not None:
            before = self.notes.repeated(what.round, self.cohort, self.sent)
            if before is not None:
                return before, {}
        client = self.client
        client.adding, client.told = self.add, self.told
        _, _, found = client.fit(list(received), round_config(what))
        numbers = {name: float(value) for name, value in found.items()}
        told = numbers
        if self.metrics is not None:
            images = float(sum(self._own().images))
            self._put(self.metrics.vector(numbers | {"train_images": images}))
            told = {name: value for name, value in numbers.items() if name == SPENT}
        info = {"client": client.setup.data.client, "round": what.round, "state": client.saved}
        words = to_words(np.concatenate(self._steps))
        reply = Reply(info, told, [words])
        if self.notes is not None:
            reply = self.notes.mask(what.round, self.cohort, self.sent, words, reply)
        return reply, numbers

    def owners(self, what: Instruction) -> Reply:
        """Answer with which classes this client has, of which the server learns the sum."""
        if self.notes is not None:
            before = self.notes.repeated(what.round, self.cohort, self.sent)
            if before is not None:
                return before
        self._steps.clear()
        self._put(ownership(self._own()))
        info = {"client": self.client.setup.data.client, "round": what.round}
        reply = Reply(info, {}, [to_words(np.concatenate(self._steps))])
        if self.notes is not None:
            words = reply.arrays[0]
            reply = self.notes.mask(what.round, self.cohort, self.sent, words, reply)
        return reply

    def add(self, upload: Payload, received: Payload, budget: Budget) -> Vector:
        """Take an upload as what it adds (L,), with a share of the noise where there is any.

        Returns it without the noise. Called before the client's state is saved.
        """
        config, own = self.client.config, self._own()
        self._steps.clear()
        if not config.dp_clip:
            vector = self.method.contribution(upload, own)
            self._put(vector)
            return vector
        if self.notes is None and not self.client.setup.simulated:
            raise UserError(
                "secure-sum: 'unmasked' is not allowed with dp-clip on a network: a client's own "
                "share of the noise does not protect a vector that is seen"
            )
        step = upload.since(received) if self.method.sums_updates else upload
        vector = self.method.contribution(step, own)
        covered = len(vector) - self.method.counts_at_end(own)
        vector[:covered] = clipped(vector[:covered], config.dp_clip)
        self._put(vector[:covered], budget)
        self._put(vector[covered:])
        return vector

    def _put(self, vector: Vector, budget: Budget | None = None) -> None:
        """Append a part of the vector in steps of the words' grid, noised if there is a budget."""
        client, config = self.client, self.client.config
        bits = fraction_bits(self.cohort.size, config.sum_range)
        try:
            steps = grid(vector, bits, config.sum_range)
        except RangeError as error:
            raise Refused(str(error), Word.RANGE) from error
        if budget is not None and not len(vector):
            budget.open()
        elif budget is not None:
            terms = Terms(config.sum_min, config.sum_threshold)
            fewest = terms.fewest(len(self.cohort.members))
            sigma = share_steps(config, len(vector), bits, fewest)
            simulated = client.setup.simulated
            attempt = self.cohort.attempt
            steps = steps + budget.share(
                vector, sigma, client.round, attempt=attempt, simulated=simulated
            )
        self._steps.append(steps)

    def _own(self) -> Own:
        """What this client knows of itself."""
        setup = self.client.setup
        counts, positions = setup.data.class_counts(), list(setup.classes)
        by_id = {positions.index(name): count for name, count in counts.items()}
        seen = tuple(sorted(by_id))
        images = tuple(by_id[label] for label in seen)
        return Own(self.client.config, self.client.classes, seen, images, self.told)

"""How a client answers the messages of a sum; the ClientApp calls it in runs that have one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.clients.base import MethodClient, round_config
from fedhet.errors import UserError
from fedhet.protocol.checks import read_arrays
from fedhet.protocol.messages import Instruction, Reply
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.reasons import Refused, Word, telling
from fedhet.request import Request
from fedhet.site.budget import Budget
from fedhet.site.privacy import clipped, share_steps
from fedhet.sums.contribution import SPENT, Method, Own, SumMetrics, Vector, cells_of, ownership
from fedhet.sums.masks import RangeError, fraction_bits, grid, to_words
from fedhet.sums.member import Credentials, SumNotes, Terms
from fedhet.sums.messages import (
    Cohort,
    digest_of_sent,
    key_info,
    opened_info,
    read_cohort,
    read_introduction,
    read_survivors,
)


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
        return self._alone(what, lambda: ownership(self._own()))

    def confusion(self, what: Instruction) -> Reply:
        """Answer with the confusion matrix, of which the server learns the sum.

        Rows of classes with too few owners are zero.
        """

        def vector() -> Vector:
            matrix = self.client.finish(what.generation, what.state).numpy()
            counted = set(self._own().seen) & (
                set(range(len(matrix))) if self.told is None else self.told
            )
            matrix[[label for label in range(len(matrix)) if label not in counted]] = 0
            return cells_of(matrix, self.client.config.sum_range)

        return self._alone(what, vector)

    def _alone(self, what: Instruction, vector: Callable[[], Vector]) -> Reply:
        """Answer with a vector of this client that is summed by itself."""
        if self.notes is not None:
            before = self.notes.repeated(what.round, self.cohort, self.sent)
            if before is not None:
                return before
        self._steps.clear()
        self._put(vector())
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


# --- messages ---------------------------------------------------------------------------------


def own_key(asked: Request, client: str) -> dict[str, Any]:
    """What the handshake tells instead of classes and counts: the key for this run's sums."""
    if asked.config.secure_sum != "masked":
        asked.store(client)  # refused where the run began with masked sums
        return {}
    with telling(Word.PROOF):
        return key_info(asked.sum_notes(client).key(Credentials.of(asked.node)))


def introduce(asked: Request) -> dict[str, Any]:
    """Keep the others' keys; says whose are not accepted."""
    try:
        keys = read_introduction(asked.message)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    notes, own = asked.sum_notes(), Credentials.of(asked.node)
    strangers = notes.introduce(keys, own.ca if own is not None else None)
    return {"client": notes.client, "strangers": strangers}


def train(asked: Request) -> tuple[Reply, dict[str, float]]:
    """Train and answer with what the sum needs; the second are this client's own numbers."""
    part, config = _part(asked), asked.config
    counted = asked.method.strategy.sums_classes(config, config.params) and config.sum_owners > 1
    if counted != (part.told is not None):
        raise Refused("owners of classes are counted before, where their rows are summed")
    return part.reply(asked.what, read_arrays(asked.message))


def owners(asked: Request) -> Reply:
    """Which classes this client has, for a sum of its own."""
    return _part(asked).owners(asked.what)


def confusion(asked: Request) -> Reply:
    """The confusion matrix of this client, for a sum of its own."""
    part = _part(asked)
    if asked.config.sum_owners > 1 and part.told is None:
        raise Refused("owners of classes are counted before, where their rows are summed")
    return part.confusion(asked.what)


def _part(asked: Request) -> Part:
    """This client's part in the sum that a message asks for."""
    try:
        cohort = read_cohort(asked.message)
        fraction_bits(cohort.size, asked.config.sum_range)  # of a size that fits no word
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    client = asked.client()
    config, strategy = asked.config, asked.method.strategy
    masked = config.secure_sum == "masked"
    summed = SumMetrics(config.sum_range, strategy.metric_ranges) if config.sum_metrics else None
    return Part(
        client=client,
        method=strategy,
        metrics=summed,
        cohort=cohort,
        sent=digest_of_sent(asked.message, asked.what, cohort, asked.text),
        notes=asked.sum_notes(client.setup.data.client) if masked else None,
        told=None if cohort.told is None else frozenset(cohort.told),
    )


def unmask(asked: Request) -> dict[str, Any]:
    """Open what others sealed for this client; needs neither examples nor model."""
    try:
        survivors = read_survivors(asked.message)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    notes = asked.sum_notes()
    opened = notes.unmask(asked.what.round, survivors)
    return {"client": notes.client, "round": asked.what.round, **opened_info(opened)}

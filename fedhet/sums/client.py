"""How a client answers the messages of a sum; the ClientApp calls it in runs that have one.

:class:`Part` is the one object that says how an upload leaves: as a vector, noised where the run
has ``dp-clip``, in words, masked. The method says what it adds (``contribution``), the notes hold
the rules and the masks (:mod:`fedhet.sums.member`); neither knows of the other.

``asked`` is a :class:`fedhet.client_app.Request`, ``client`` a
:class:`fedhet.clients.base.MethodClient`: both of floors above.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import RunConfig
from fedhet.errors import Refused, UserError
from fedhet.protocol.checks import read_arrays
from fedhet.protocol.messages import AGREE, CONFUSION, OWNERS, UNIT, Instruction, Reply
from fedhet.protocol.payload import Array, Empty, Payload
from fedhet.protocol.reasons import Word, telling
from fedhet.site.privacy import Budget, clipped, share_steps
from fedhet.sums.contribution import (
    SPENT,
    Method,
    Own,
    Summand,
    SumMetrics,
    Vector,
    cells_of,
    default_unit,
    exceeded,
    ownership,
)
from fedhet.sums.masks import Terms, Words, fraction_bits, grid, to_words
from fedhet.sums.member import Credentials, SumNotes
from fedhet.sums.messages import (
    Cohort,
    digest_of_sent,
    key_info,
    opened_info,
    read_cohort,
    read_introduction,
    read_survivors,
)

Answer = tuple[Reply, dict[str, float]]  # and this client's own numbers, for its own eyes


@dataclass
class Part:
    """One client's part in one attempt; ``notes`` is None where nothing is masked."""

    client: Any
    method: Method
    metrics: SumMetrics | None  # None: they are told beside the sum
    cohort: Cohort
    sent: bytes  # digest of what came down
    notes: SumNotes | None = None
    _steps: list[NDArray[np.int64]] = field(default_factory=list)  # of the vector's parts

    def __post_init__(self) -> None:
        told = self.cohort.told
        self.told = None if told is None else frozenset(told)  # classes whose rows may be summed

    def train(self, what: Instruction, received: Sequence[Array]) -> Answer:
        """Train and answer with the masked vector."""

        def trained() -> Answer:
            client = self.client
            client.leaving, client.told = self, self.told
            _, _, found = client.fit(list(received), what.fit_config())
            numbers = {name: float(value) for name, value in found.items()}
            told = numbers
            if self.metrics is not None:
                images = float(sum(self._own().images))
                self._put(self.metrics.vector(numbers | {"train_images": images}))
                told = {name: value for name, value in numbers.items() if name == SPENT}
            info = {"client": client.setup.data.client, "round": what.round, "state": client.saved}
            return Reply(info, told, [to_words(np.concatenate(self._steps))]), numbers

        return self._once(what, trained)

    def count(self, what: Instruction, kind: str) -> Answer:
        """Answer with a vector of this client that is summed by itself.

        It is which classes the client has, which powers of two its images exceed, or its confusion
        matrix, in which rows of classes with too few owners are zero.
        """

        def counted() -> Answer:
            own = self._own()
            if kind == UNIT:
                words: Words = exceeded(sum(own.images))
            else:
                largest = self.client.config.sum_range
                found = ownership(own) if kind == OWNERS else self._confusion(what, own, largest)
                self._put(found)
                words = to_words(self._steps[-1])
            info = {"client": self.client.setup.data.client, "round": what.round}
            return Reply(info, {}, [words]), {}

        return self._once(what, counted)

    def _confusion(self, what: Instruction, own: Own, largest: float) -> Vector:
        matrix = self.client.finish(what.generation, what.state).numpy()
        every = frozenset(range(len(matrix)))
        matrix[sorted(every - (set(own.seen) & (every if self.told is None else self.told)))] = 0
        return cells_of(matrix, largest)

    def _once(self, what: Instruction, make: Callable[[], Answer]) -> Answer:
        """Make and mask a reply; repeat the one that was given to this very request before.

        Raises Refused for a cohort that the client's rules forbid, before anything is made.
        """
        if self.notes is None:
            return make()
        before = self.notes.repeated(what.round, self.cohort, self.sent)
        if before is not None:
            return before, {}
        reply, numbers = make()
        words = reply.arrays[0]
        return self.notes.mask(what.round, self.cohort, self.sent, words, reply), numbers

    def leave(self, upload: Payload, received: Payload, round_: int, budget: Budget) -> Payload:
        """Take an upload as what it adds, and show it to the client, without the noise.

        Called before the client's state is saved.
        """
        self.client.added(self.add(upload, received, round_, budget))
        return Empty()

    def add(self, upload: Payload, received: Payload, round_: int, budget: Budget) -> Vector:
        """Return what an upload adds (L,), clipped; its words get a share of the noise."""
        config, own = self.client.config, self._own()
        self._steps.clear()
        if not config.dp_clip:
            vector = self.method.contribution(upload, own).flat
            self._put(vector)
            return vector
        if self.notes is None and not self.client.setup.simulated:
            raise UserError(
                "secure-sum: 'unmasked' is not allowed with dp-clip on a network: a client's own "
                "share of the noise does not protect a vector that is seen"
            )
        step = upload.since(received) if self.method.sums_updates else upload
        added = self.method.contribution(step, own)
        values = clipped(added.values, config.dp_clip)
        self._put(values, round_, budget)
        self._put(added.counts)
        return Summand(values, added.counts).flat

    def _put(self, vector: Vector, round_: int = 0, budget: Budget | None = None) -> None:
        """Append a part of the vector in steps of the words' grid, noised if there is a budget."""
        config = self.client.config
        bits = fraction_bits(self.cohort.size, config.sum_range)
        steps = grid(vector, bits, config.sum_range)
        if budget is not None and not len(vector):
            budget.open()
        elif budget is not None:
            members = self.cohort.members
            fewest = (
                Terms(config.sum_min, config.sum_threshold).fewest(len(members))
                if self.notes is None
                else self.notes.fewest(members)
            )
            sigma = share_steps(config, len(vector), bits, fewest)
            simulated, attempt = self.client.setup.simulated, self.cohort.attempt
            steps = steps + budget.share(
                vector, sigma, round_, attempt=attempt, simulated=simulated
            )
        self._steps.append(steps)

    def _own(self) -> Own:
        """What this client knows of itself."""
        setup, config = self.client.setup, self.client.config
        counts, positions = setup.data.class_counts(), list(setup.classes)
        by_id = {positions.index(name): count for name, count in counts.items()}
        seen = tuple(sorted(by_id))
        images = tuple(by_id[label] for label in seen)
        return Own(config, self.client.classes, seen, images, self.told, self.cohort.unit)


def own_key(asked: Any, client: str) -> dict[str, Any]:
    """What the handshake tells instead of classes and counts: the key for this run's sums."""
    if asked.config.secure_sum != "masked":
        asked.store(client)  # refused where the run began with masked sums
        return {}
    with telling(Word.PROOF):
        return key_info(asked.sum_notes(client).key(Credentials.of(asked.node)))


def introduce(asked: Any) -> dict[str, Any]:
    """Keep the others' keys; say whose are not accepted."""
    try:
        keys = read_introduction(asked.message)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    notes, own = asked.sum_notes(), Credentials.of(asked.node)
    strangers = notes.introduce(keys, own.ca if own is not None else None)
    return {"client": notes.client, "strangers": strangers}


def answer(asked: Any) -> Answer:
    """Answer a message that asks for words: train, or count owners or images."""
    kind, config, strategy = asked.kind, asked.config, asked.method.strategy
    try:
        cohort = read_cohort(asked.message)
        fraction_bits(cohort.size, config.sum_range)  # of a size that fits no word
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    client = asked.client()
    summed = SumMetrics(config.sum_range, strategy.metric_ranges) if config.sum_metrics else None
    part = Part(
        client=client,
        method=strategy,
        metrics=summed,
        cohort=cohort,
        sent=digest_of_sent(asked.message, asked.what, cohort, asked.text),
        notes=asked.sum_notes(client.setup.data.client) if config.secure_sum == "masked" else None,
    )
    if kind in {UNIT, OWNERS}:
        return part.count(asked.what, kind)
    rows = kind == CONFUSION or strategy.sums_classes(config, config.params)
    if (rows and config.sum_owners > 1) != (part.told is not None):
        raise Refused("owners of classes are counted before, where their rows are summed")
    if kind == CONFUSION:
        return part.count(asked.what, kind)
    weighs = strategy.weighs_images(config, config.params)
    _check_unit(cohort.unit, config, sum(client.setup.data.class_counts().values()), weighs=weighs)
    return part.train(asked.what, read_arrays(asked.message))


def _check_unit(unit: int, config: RunConfig, images: int, *, weighs: bool) -> None:
    """Raise Refused for a unit of weights that this run cannot have; say whether it clips."""
    agreed = default_unit(config, weighs_images=weighs)
    if (agreed and unit != agreed) or (not agreed and unit & (unit - 1)):
        wanted = agreed or "a power of two"
        raise Refused(f"unit of weights: {unit} came, not {wanted}", Word.INSTRUCTION)
    if weighs and images > unit:
        print(
            f"fedhet: {images} training images weigh as {unit} do, the most that a client had when "
            "the unit of weights was found", file=sys.stderr,
        )  # fmt: skip


def open_masks(asked: Any) -> dict[str, Any]:
    """Sign who is left, or open what others sealed for this client; needs no examples."""
    try:
        survivors = read_survivors(asked.message)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    notes, round_ = asked.sum_notes(), asked.what.round
    about = {"client": notes.client, "round": round_}
    if asked.kind == AGREE:
        return about | {"signature": notes.sign(round_, survivors, Credentials.of(asked.node))}
    return about | opened_info(notes.unmask(round_, survivors))

"""The round, and the server half of a method.

:class:`MethodStrategy` is a Flower ``Strategy`` with its own loop over rounds. Flower's loop always
starts at round 1, runs two phases, cannot stop early and sleeps 3 s between polls. This one can
resume, reads the evaluation from the train reply, and limits every wait. One round:

    ask       configure_train: one message for each client of the round
    wait      exchange: send them, decode each reply when it comes
    check     the aggregator's `check`: each reply alone, then all against each other
    combine   aggregate_train: the uploads become the new global arrays
    book      evaluate those that did not train, write the lines, then the checkpoint

A method overrides hooks that take and return plain arrays. They are called in this order:
``download``, then ``reference`` and ``check`` for each upload, then ``aggregate``. ``arrays`` and
``load`` are the method's state. With ``secure-sum`` no upload reaches the server: each client makes
its ``contribution``, and ``combine`` takes their sum. :class:`PlainAggregator` checks plain
uploads, and :mod:`fedhet.sums.server` has sums unmasked.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedhet.config.schema import P, RunConfig
from fedhet.data.inputs import Inputs
from fedhet.errors import Rejected, RunFailed, UserError, brief, distinct, one_line
from fedhet.files import client_order
from fedhet.lazy import nn, torch
from fedhet.protocol import checks, messages
from fedhet.protocol.checks import FLOAT32, Checked, Valid
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import ClientInfo, Handshake, Roster
from fedhet.protocol.mail import Mail, exchange
from fedhet.protocol.messages import Reply
from fedhet.protocol.payload import Array, Empty, Payload
from fedhet.records.ledger import Checkpoint, Ledger, Round, save_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import confusion_rows, headline, imbalance, out_of_patience
from fedhet.site.privacy import sigma
from fedhet.strategies.rules import Rule, capped
from fedhet.sums.contribution import Own, Summand, Vector, sum_unit
from fedhet.sums.server import SumAggregator, SumLedger

log = logging.getLogger("fedhet")
Replies = Sequence[tuple[str, Reply]]  # with their clients
COMES_BACK = 60.0  # seconds within which a node that starts again is online
MANY_BYTES = 256 << 20  # of a reply whose shapes vary
SPACED = 5.0  # seconds after a round that failed, twice as many after each further one


@dataclass(frozen=True)
class Upload:
    """An accepted reply: its client, its payload, and its share of the round's weights.

    ``late`` is 1, or the factor in the share of a reply to a message of an earlier round.
    """

    info: ClientInfo
    payload: Any
    weight: float
    metrics: Mapping[str, float]
    late: float = 1.0


@dataclass(frozen=True)
class Reference:
    """What an upload of one client is held against.

    ``payload`` has its shapes and dtypes, and the values that the client started from, or zeros;
    None if shapes vary. ``max-update-ratio`` bounds the step from there, a root mean square. It
    bounds nothing if not ``bounded``: ``check`` limits the values. If ``step`` is set, it measures
    the step of an upload, whose shapes are not those of ``payload``: ``check`` looks at them.
    """

    payload: Payload | None
    step: Callable[[Payload], float] | None = None
    bounded: bool = True


class MethodStrategy(Strategy, Generic[P]):
    """Server half of a method with parameters ``P``; the module's docstring names the hooks."""

    upload_type: type[Payload] = Empty
    plans_rounds = False  # whether a round depends on the total number of rounds
    aggregations: ClassVar[Sequence[str]] = ("mean",)  # values of `aggregation` that it supports
    metric_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}  # range of each own metric
    shares_small_model = False  # whether clients share the model that `small-model` names
    broadcasts = False  # whether all clients are sent the same payload
    noise_on_steps = False  # whether noise is for upload - download, and `combine` gets its sum
    # Why `secure-sum` is refused: "" in a class with `contribution` and `combine`.
    not_summed: ClassVar[str] = "its strategy has no `contribution` and `combine`"
    sends_class_rows: ClassVar[bool] = False  # whether uploads are rows per class
    growing: ClassVar[Sequence[str]] = ()  # names of `arrays` whose length varies over rounds
    state: ClassVar[Sequence[str]] = ()  # names of attributes: global arrays, modules of them
    refuses: ClassVar[Mapping[str, str]] = {}  # kinds of input that it cannot work with, and why
    unweighted: ClassVar[str] = ""  # why weights of clients have no effect, if they have none
    # Whether `aggregate` uses `weight` of uploads, or weights of its own times their `late`.
    weighs_late: ClassVar[bool] = False

    def __init__(self, config: RunConfig, roster: Roster) -> None:
        self.config = config
        self.params = cast("P", config.params)
        self.roster = roster
        self.rule = Rule(config.aggregation, config.trim, config.max_weight)
        ranges = dict.fromkeys((f"test_{name}" for name, _ in config.metrics), (-FLOAT32, FLOAT32))
        self.metric_ranges = {**type(self).metric_ranges, **ranges}  # type: ignore[misc]
        self.sends_all = self.broadcasts or config.summed  # whether all get the same payload
        self.images_per_weight = sum_unit(config) if config.summed else 1  # in `combine`
        self.min_owners = config.sum_owners if config.summed else 1  # of a class, for its mean
        # Whether `combine` is given a sum of clipped and noised steps, not of uploads.
        self.adds_steps = self.noise_on_steps and config.summed and config.dp_clip > 0
        self.finished = 0  # rounds
        self.unanswered: dict[str, int] = {}  # rounds of train messages without a reply, by client
        self.mail: Mail | None = None  # where those are that a round did not wait for
        self.short_classes: int | None = None  # that stayed as they were for lack of owners
        self.classes = len(roster.classes)
        self.inputs = roster.inputs or Inputs.image(
            config.image_size, grey=config.grey, standardised=config.standardise
        )
        self.d = config.representation

    # --- hooks of a method: plain arrays in, plain arrays out --------------------------------

    @classmethod
    def check_config(cls, config: RunConfig, params: P) -> None:
        """Raise UserError for settings of ``config``, or ``params`` of it, that cannot work."""

    @classmethod
    def check_hooks(cls, config: RunConfig) -> None:
        """Raise UserError for hooks that do not fit each other, or ``config``.

        Sums and medians of a class are not those of one derived from it with its own `aggregate`.
        """
        base = MethodStrategy
        if cls.upload_type is not Empty and cls.reference is base.reference:
            text = "set `reference`: a payload with an upload's shapes, or None if they vary"
            raise UserError(f"{cls.__name__}: {text}")
        if (cls.arrays is base.arrays) != (cls.load is base.load):
            raise UserError(f"{cls.__name__}: set both `arrays` and `load`, or neither")
        place = next(i for i, one in enumerate(cls.__mro__) if "aggregate" in vars(one))
        defined = {name for one in cls.__mro__[: place + 1] for name in vars(one)}
        has = f"{cls.__mro__[place].__name__} has an `aggregate` of its own"
        if config.summed and not {"combine", "not_summed"} & defined:
            lacks = f"{has} and no `combine`: add it, or say in `not_summed` why not"
            raise UserError(f"secure-sum: '{config.secure_sum}' is not allowed: {lacks}")
        if config.aggregation != "mean" and "aggregations" not in defined:
            lacks = f"{has}: average with `self.rule`, and set `aggregations`"
            raise UserError(f"aggregation: '{config.aggregation}' is not allowed: {lacks}")

    @classmethod
    def ignores(cls, config: RunConfig, params: P) -> Mapping[str, str]:
        """Return the common keys that have no effect, each with the reason.

        ``config`` with ``params`` is refused if it sets one of them.
        """
        return dict.fromkeys(("weighting", "max-weight") if cls.unweighted else (), cls.unweighted)

    def initialise(self) -> None:
        """Create the global arrays of before round 1; a resumed run calls ``load`` after it."""

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the payload for client ``info`` at the start of round ``round_`` (1 to T).

        Copies, never views of the strategy's own arrays.
        """
        return Empty()

    def reference(self, info: ClientInfo) -> Reference:
        """Return what an upload of client ``info`` is held against: see :class:`Reference`."""
        return Reference(Empty())

    def check(self, info: ClientInfo, payload: Any) -> None:
        """Raise Rejected if ``payload`` of ``info``'s client is not valid; its shapes are right."""

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Combine ``uploads``, sorted by client, in float64, at the end of round ``round_``.

        Their weights add up to 1. Return numbers for the round's line.
        """
        return {}

    @classmethod
    def contribution(cls, upload: Any, own: Own) -> Summand:
        """Return one client's summand; called in the client's process.

        It is linear in what ``upload`` shares, and as long for every client of a run; ``own`` is
        what the client knows of itself. Raise NotImplementedError if the method has no sums.
        """
        if cls.upload_type is not Empty:
            raise NotImplementedError(cls.not_summed)
        return Summand(np.zeros(0), np.zeros(0))

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Set the global arrays from ``total`` (L,) float64, the flat sum of a round's summands.

        Return numbers for the record of round ``round_``. Raise NotImplementedError if the method
        has no sums.
        """
        if self.upload_type is not Empty:
            raise NotImplementedError(self.not_summed)
        return {}

    def arrays(self) -> dict[str, Array]:
        """Return the global arrays by name, of any shape () or (n, ...) and dtype.

        They are checkpointed and hashed. By default they are the attributes that ``state`` names:
        arrays, and modules, whose tensors have the attribute's name and a dot before their own.
        """
        arrays = dict[str, Array]()
        for name in self.state:
            value = getattr(self, name)
            within = hasattr(value, "state_dict")
            arrays |= state_arrays(value, f"{name}.") if within else {name: value}
        return arrays

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Load a checkpoint's ``arrays``, after :meth:`initialise`; Rejected if they do not fit.

        Names, their order, dtypes and shapes (n, ...) must be those of :meth:`arrays`; only those
        in ``growing`` may have another length n. All numbers must be finite.
        """
        current = self.arrays()
        if list(arrays) != list(current):
            raise Rejected(f"{len(arrays)} arrays; the method has {len(current)}, or other names")
        for name, array in arrays.items():
            like = np.asarray(current[name])
            if name in self.growing and array.ndim:
                like = np.empty((len(array), *like.shape[1:]), dtype=like.dtype)
            here, expected = checks.form(array), checks.form(like)
            if here != expected:
                raise Rejected(f"array '{name}' is {here}, expected {expected}")
            if not np.isfinite(array).all():
                raise Rejected(f"array '{name}' holds NaN or infinity")
        try:
            self.load(arrays)
        except (ValueError, IndexError, RuntimeError) as error:  # lengths that do not fit
            raise Rejected(f"the arrays do not fit each other: {brief(error)}") from error

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take ``arrays`` (n, ...), of :meth:`arrays`' dtypes, instead of the own ones."""
        for name in self.state:
            if hasattr(value := getattr(self, name), "state_dict"):
                load_state(value, arrays, f"{name}.")
            else:
                setattr(self, name, arrays[name])

    # --- the loop ----------------------------------------------------------------------------

    def prepare(
        self, handshake: Handshake, folder: RunFolder, kept: Checkpoint | None = None
    ) -> None:
        """Prepare the remaining rounds: all, or those after ``kept``, a checkpoint.

        ``handshake`` has found the clients; ``folder`` is the run's. Raises Damaged if its lines
        before the checkpoint are not those that were written.
        """
        self.handshake, self.folder = handshake, folder
        self.ledger: Ledger = (SumLedger if self.config.summed else Ledger)(self.roster)
        self.seconds = self.deadline = math.inf  # a round's limit, and when this round ends
        self.simulated = True  # whether the clients' states are where the server is
        self.counted = True  # whether the last round had replies enough
        self.initialise()
        if kept is None:
            folder.check_unbegun()
        else:
            folder.take_up(kept.meta)
            self.load(kept.arrays)
            self.ledger.load(kept.meta)
            self.finished = int(kept.meta["round"])
        self.aggregator: PlainAggregator | SumAggregator
        if not isinstance(self.ledger, SumLedger):
            self.aggregator = PlainAggregator(self.config, self.ledger, handshake)
            return
        every, images = tuple(range(self.classes)), (0,) * self.classes
        client = replace(next(iter(self.roster.infos.values())), seen=every, images=images)
        payload = self.reference(client).payload
        assert payload is not None
        summand = self.contribution(payload, Own(self.config, self.classes, every, images))
        about = handshake, self.ledger, len(summand.flat), self.metric_ranges
        rows, attempts = self.sends_class_rows, folder.attempts
        self.aggregator = SumAggregator(*about, by_class=rows, attempts=attempts)

    def start(
        self,
        grid: Grid,
        *_: object,
        on_round: Callable[[Mapping[str, Any]], object] | None = None,
        **__: object,
    ) -> Result:
        """Run the remaining rounds, after :meth:`prepare`; return an empty result.

        The configuration replaces Flower's other parameters, here and in the steps of a round. The
        global arrays are in the run folder. Raises RunFailed if too many rounds in a row had too
        few valid replies.
        """
        self.summary()
        self.simulated = is_simulated(grid)
        if not self.simulated:
            self.seconds = self.config.round_timeout
            self.mail = Mail(grid) if self.config.late == "next" else None
        if not self.folder.checkpoint.exists():  # lines without one are a loss, not a start
            self._checkpoint(0)
        lines = self.folder.read_rounds() if self.config.patience else []
        skipped, clock = 0, time.perf_counter()
        for round_ in range(self.finished + 1, self.config.rounds + 1):
            if out_of_patience(self.config, lines):
                break
            record = self._round(grid, round_, clock)
            clock = time.perf_counter()
            skipped = 0 if self.counted else skipped + 1
            log.info(
                "round %d/%d: test %s, %d of %d replied, %.1f s",
                round_, self.config.rounds, headline(self.config.metric, record),
                record["replied"], record["sampled"], record["seconds"],
            )  # fmt: skip
            lines.append(record)
            if on_round is not None and on_round(record) is False:
                break
            if skipped > self.config.max_skipped_rounds:
                reasons = distinct(f["reason"] for f in self.ledger.round.failures)
                few = f"fewer than min-replies={self.config.min_replies} valid replies"
                raise RunFailed(f"{skipped} rounds in a row had {few}: {reasons}")
            if skipped and not self.simulated and round_ < self.config.rounds:
                self._wait_for_recovery(skipped)
        deadline = time.monotonic() + self.seconds
        matrices = self.aggregator.confusions(self.finished, deadline)
        self.folder.write_confusion(confusion_rows(self.roster.classes, matrices))
        return Result()

    def _wait_for_recovery(self, skipped: int) -> None:
        # Else what fails at once for everybody, such as a file that is away, uses up all rounds.
        pause = min(COMES_BACK, SPACED * 2 ** (skipped - 1), self.config.round_timeout)
        least = time.monotonic() + pause
        until = time.monotonic() + min(COMES_BACK, self.config.round_timeout)
        self.folder.wait_for(f"waiting {pause:.0f} s or more after a round with too few replies")
        while (now := time.monotonic()) < until:
            if now > least and not set(self.roster.ids) - set(self.roster.nodes):
                break
            time.sleep(1.0)
            self.handshake.query(patience=0.0)
        self.folder.wait_for("")

    def summary(self) -> None:
        """Log the run's method, data and clients."""
        log.info(
            "%s: %d clients, %d per round, rounds %d to %d, %d classes",
            self.config.method, len(self.roster.ids), self.config.cohort(len(self.roster.ids)),
            self.finished + 1, self.config.rounds, self.classes,
        )  # fmt: skip
        counts: Counter[str] = Counter()
        for info in self.roster.infos.values():
            counts.update(dict(zip(info.seen_names, info.images, strict=True)))
        if line := imbalance(self.config, counts):
            log.warning("%s", line)

    def _round(self, grid: Grid, round_: int, clock: float) -> dict[str, Any]:
        """Run one round, which began at ``clock``; return its record."""
        self.ledger.round = Round(round_)
        self.handshake.query()
        for who, reason in self.roster.refusals():
            self.ledger.round.failures.append({"client": who, "reason": reason})
        self.deadline, config = time.monotonic() + self.seconds, self.config
        asked = self._by_client(self.configure_train(round_))
        self.unanswered |= dict.fromkeys(asked, round_)
        left = self.deadline - time.monotonic()
        timeout = min(self.aggregator.train_share * config.round_timeout, left)
        # After the last round there is none in which a late reply could count.
        least = config.min_replies if round_ < config.rounds else math.inf
        late = partial(exchange, mail=self.mail, least=least, after=config.late_after)
        replies = self._read(late(grid, asked, timeout, self._limit))
        checked = self.aggregator.check(round_, replies, self, self.deadline)
        for client, _ in replies:
            self.unanswered.pop(client, None)
        self.ledger.round.under_way = sorted(self.unanswered, key=client_order)
        self.aggregate_train(round_, checked)
        return self._book(grid, round_, clock)

    def _by_client(self, messages: Iterable[Message]) -> dict[str, Message]:
        clients = dict(zip(self.roster.nodes.values(), self.roster.nodes, strict=True))
        return {clients[message.metadata.dst_node_id]: message for message in messages}

    def _limit(self, client: str) -> int:
        return self.aggregator.limit(self.reference(self.roster.infos[client]).payload)

    def _read(self, replies: Iterable[Message | tuple[str, Reply]]) -> Replies:
        """Return replies in client order; note whose state is lost."""
        clients = dict(zip(self.roster.nodes.values(), self.roster.nodes, strict=True))
        read: list[tuple[str, Reply]] = []
        for one in replies:
            if isinstance(one, tuple):
                read.append(one)
            elif client := clients.get(one.metadata.src_node_id):  # of another loop than ours
                read.append((client, messages.read_reply(one, self._limit(client))))
        read.sort(key=lambda pair: client_order(pair[0]))
        for client, reply in read:
            if reply.says("state-lost"):
                self.roster.lose(client, self.ledger.round.number, reply.error)
        return read

    def configure_train(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Return one train message per sampled client that is online, the longest job first.

        So the processes of a simulation end the round together.
        """
        asked, cohort = list[Message](), self.config.cohort(len(self.roster.ids))
        drawn = self.roster.sample(self.config.seed, server_round, cohort)
        sampled = [client for client in drawn if client not in self.unanswered]
        self.ledger.round.counts["sampled"] += len(sampled)
        online = self.ledger.online(sampled)
        members = self.aggregator.members(server_round, online, self.deadline)
        pace = self.ledger.pace  # by the last reply of a model; 0: unknown
        infos = [self.roster.infos[client] for client in members]
        infos.sort(key=lambda info: pace.get(info.model, 0.0) * info.train_images, reverse=True)
        for info in infos:
            if not asked or not self.sends_all:  # else it is made and encoded once
                payload = self.download(info, server_round)
                record = messages.to_record(payload.flat)
            whole = server_round, record, self.aggregator.about
            message = self.handshake.message(messages.TRAIN, info.client, *whole)
            self.ledger.round.carry("downlink", payload, messages.message_bytes(message))
            asked.append(message)
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message] | Checked | None
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine replies that were checked; (None, None) if fewer than min-replies count.

        Messages, of another loop than ours, are read and checked first. The global arrays stay in
        the strategy: of a round that counts, only its numbers return.
        """
        if replies is not None and not isinstance(replies, Checked):
            read = self._read(replies)
            replies = self.aggregator.check(server_round, read, self, self.deadline)
        self.counted = replies is not None
        if replies is None:
            return None, None
        numbers: dict[str, Any] = dict(self.aggregator.combine(replies, self))
        self.ledger.round.numbers |= numbers
        return None, MetricRecord(numbers)

    def configure_evaluate(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Return one evaluate message per online client whose state has no accuracy yet.

        A client that has just failed is not asked again: a round has one time limit.
        """
        if not self.aggregator.evaluates:
            return []
        busy = self.unanswered.keys() | {one["client"] for one in self.ledger.round.failures}
        behind = self.ledger.unevaluated(everybody=self.config.evaluate_all)
        ask = partial(self.handshake.message, messages.EVALUATE)
        return [ask(client, server_round) for client in behind if client not in busy]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message | tuple[str, Reply]]
    ) -> MetricRecord | None:
        """Record the accuracies; return their mean over all clients evaluated so far, percent."""
        for client, reply in self._read(replies):
            try:
                checks.check_evaluation(self.roster.infos[client], reply, server_round)
            except Rejected as reason:
                self.ledger.fail(client, f"evaluation: {reason}")
            else:
                self.ledger.score(client, reply.metrics)
        return MetricRecord({"test-accuracy-mean": self.ledger.spread("test_accuracy")["mean"]})

    def _book(self, grid: Grid, round_: int, clock: float) -> dict[str, Any]:
        """Evaluate clients that did not train; write the lines, then their checkpoint."""
        if self.config.evaluates(round_) and self.deadline > time.monotonic():
            asked = self._by_client(self.configure_evaluate(round_))
            timeout = min(self.config.round_timeout, self.deadline - time.monotonic())
            self.aggregate_evaluate(round_, exchange(grid, asked, timeout, self._limit))
        arrays = self.arrays()
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                text = f"round {round_}: array '{name}' of the server holds NaN or infinity, and"
                why = f"no upload did: see `aggregate` of {type(self).__name__}"
                raise RunFailed(f"{text} {why}")
        self.folder.append_clients(self.ledger.client_rows())
        record = self.ledger.record(arrays)
        record["seconds"] = time.perf_counter() - clock
        self.folder.append_round(record)
        self._checkpoint(round_)
        self.finished = round_
        return record

    def _checkpoint(self, round_: int) -> None:
        meta = {"round": round_, "simulated": self.simulated, "roster": self.roster.dump()}
        meta |= self.ledger.dump() | self.folder.marks()
        save_checkpoint(self.folder.checkpoint, Checkpoint(self.arrays(), meta))


def state_arrays(module: "nn.Module", prefix: str = "") -> dict[str, Array]:
    """Return parameters and buffers of a module, by name, as copies."""
    state = module.state_dict()
    return {prefix + name: tensor.detach().numpy().copy() for name, tensor in state.items()}


def load_state(module: "nn.Module", arrays: Mapping[str, Array], prefix: str = "") -> None:
    """Inverse of :func:`state_arrays`; ``arrays`` may hold others as well."""
    names = module.state_dict()
    module.load_state_dict({name: torch.tensor(arrays[prefix + name]) for name in names})


Method = MethodStrategy[Any]


class PlainAggregator:
    """Checks and books the rounds of a run whose server sees every upload."""

    train_share = 1.0  # of a round's time that waiting for training may take
    evaluates = True  # whether a client alone may be asked for its accuracy
    about = None  # what a train message says of a sum

    def __init__(self, config: RunConfig, ledger: Ledger, handshake: Handshake) -> None:
        self.config, self.ledger, self.handshake = config, ledger, handshake
        self.roster = handshake.roster

    def members(self, round_: int, clients: list[str], deadline: float) -> list[str]:
        """Return those of a round's ``clients`` that are asked to train: all."""
        return clients

    def limit(self, expected: Payload | None) -> int:
        """Return the bytes above which a reply is refused unread."""
        return MANY_BYTES if expected is None else 4 * expected.bytes + messages.QUERY_BYTES

    def check(
        self, round_: int, replies: Replies, method: Method, deadline: float
    ) -> Checked | None:
        """Return the replies that count, in client order; None if they are too few."""
        valid: dict[str, Valid] = {}
        for client, reply in replies:
            try:
                trained = method.unanswered.get(client, round_)
                valid[client] = self._valid(self.roster.infos[client], reply, trained, method)
            except Rejected as reason:
                self.ledger.reject(client, str(reason), reply)
            else:
                self.ledger.spend(client, reply.metrics)
        steps = {client: one.step for client, one in valid.items() if one.step is not None}
        started = method.reference(next(iter(valid.values())).info).payload if valid else None
        start = 0.0 if started is None else checks.size(started.flat)
        outliers = checks.long_steps(steps, start, self.config.max_update_ratio, sigma(self.config))
        for client, why in outliers.items():
            self.ledger.reject(client, why, valid.pop(client).reply)
        accepted = list(valid.values())
        if len(accepted) >= self.config.min_replies:
            return Checked(round_, accepted)
        count = f"{len(accepted)} of min-replies={self.config.min_replies}"
        for one in accepted:
            why = f"valid, but the round is skipped: {count} came"
            self.ledger.reject(one.info.client, why, one.reply)
        return None

    def _valid(self, info: ClientInfo, reply: Reply, trained: int, method: Method) -> Valid:
        """Return a reply with its payload; raise Rejected if anything about it is wrong."""
        checks.check_trained(info, reply, trained, self.config, method.metric_ranges)
        images = reply.metrics.get("num-examples")
        if images != info.train_images:
            raise Rejected(f"num-examples is {images}, but it declared {info.train_images}")
        try:
            payload = method.upload_type.from_ndarrays(reply.arrays)
        except ValueError as error:
            name = type(method).__name__
            text = f"`upload_type` of {name} must be what the client's `upload` returns"
            raise Rejected(f"{error}; {text}") from error
        reference = method.reference(info)
        like = None if reference.step else reference.payload
        length = checks.check_arrays(payload, like, self.config.max_update_norm)
        method.check(info, payload)
        if reference.step is not None:
            length = reference.step(payload)
        return Valid(info, payload, reply, length if reference.bounded else None, trained)

    def combine(self, checked: Checked, method: Method) -> Mapping[str, float]:
        """Aggregate the accepted replies, each with its share of the weights; book them.

        Their clients continue from the round that they trained for. Return the round's numbers.
        """
        config, replies, weights, late = self.config, checked.accepted, [], []
        for one in replies:
            late.append(float(config.late_weight ** (checked.round - one.trained)))
            weights.append(late[-1] * (config.weighting == "uniform" or one.info.train_images))
        shares = capped(np.array(weights), config.max_weight).tolist()
        uploads = [
            Upload(one.info, one.payload, share, one.reply.metrics, factor)
            for share, factor, one in zip(shares, late, replies, strict=True)
        ]
        numbers = method.aggregate(uploads, checked.round)
        for one, factor in zip(replies, late, strict=True):
            self.ledger.accept(one.info.client, one.trained, one.payload, one.reply)
            if one.trained != checked.round:
                self.ledger.late(one.info.client, one.trained, factor)
        return numbers

    def confusions(self, round_: int, deadline: float) -> dict[str, NDArray[np.int64]]:
        """Ask clients for their confusion matrices (C, C) after the last round; by client."""
        roster, every = self.roster, self.config.evaluate_all
        clients = [c for c in roster.ids if c in roster.nodes and (every or roster.generations[c])]
        asked = {c: self.handshake.message(messages.CONFUSION, c, round_) for c in clients}
        matrices: dict[str, NDArray[np.int64]] = {}
        for client, reply in exchange(self.handshake.grid, asked, self.config.round_timeout):
            try:
                checks.check_origin(roster.infos[client], reply, round_)
                matrices[client] = checks.read_confusion(reply, len(roster.classes))
            except Rejected as reason:
                log.warning("client %s is not in confusion.csv: %s", client, one_line(str(reason)))
        return matrices

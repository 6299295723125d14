"""The round loop: who is asked, what is believed, what is written down.

Flower's own ``Strategy.start`` counts from 1, always runs two phases, has no stop and sleeps 3 s
between polls; this one resumes, lets evaluation ride in the train reply and is bounded in every
wait. It calls a method's hooks through Flower's (``configure_train``, ``aggregate_train``, ...).
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedhet.errors import HookError, RunFailedError, one_line
from fedhet.files import client_order
from fedhet.protocol.checks import Rejected, check_evaluation, check_origin, reply_limit
from fedhet.protocol.delivery import exchange, longest_first
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.messages import (
    CONFUSION,
    EVALUATE,
    TRAIN,
    Instruction,
    Reply,
    message_bytes,
    read_reply,
    request,
    to_record,
)
from fedhet.protocol.payload import Empty, Payload
from fedhet.protocol.reasons import distinct
from fedhet.records.checkpoint import Checkpoint, save_checkpoint
from fedhet.records.ledger import Ledger
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import headline, imbalance, out_of_patience
from fedhet.strategies.acceptance import Acceptance, Valid
from fedhet.strategies.base import MethodStrategy, Upload
from fedhet.strategies.final import Matrix, confusion_rows, read_confusion
from fedhet.strategies.robust import capped

log = logging.getLogger("fedhet")


class Rounds:
    """The rounds of one run that are left: all, or those after ``kept``, a checkpoint.

    :class:`fedhet.sums.server.SumRounds` are those of a run with sums.

    Raises VerifyError if the lines before the checkpoint are not those that were written.
    """

    train_share = 1.0  # of a round's time that waiting for training may take
    ledger_type: type[Ledger] = Ledger

    def __init__(
        self,
        strategy: MethodStrategy[Any],
        handshake: Handshake,
        folder: RunFolder,
        kept: Checkpoint | None = None,
    ) -> None:
        self.strategy, self.handshake, self.folder = strategy, handshake, folder
        self.config = strategy.config
        self.roster = strategy.roster
        self.state_dir = str(folder.state_dir(self.config))
        self.ledger = self.ledger_type(self.roster)
        self.acceptance = Acceptance(strategy)
        self.finished = 0
        self.deadline = 0.0  # of the round
        self.simulated = True  # whether the clients' states are where the server is
        self._requests: list[tuple[str, Message]] = []
        self._asked: dict[str, str] = {}  # client by id of the message that it was sent
        self._pace: dict[str, float] = {}  # seconds per training image, by model
        _check_hooks(strategy)
        if kept is None:
            folder.check_unbegun()
            strategy.initialise()
        else:
            folder.take_up(kept.meta)
            strategy.load(kept.arrays)
            self.ledger.load(kept.meta)
            self.acceptance.steps.load(kept.meta.get("steps", {}))
            self.finished = int(kept.meta["round"])

    # --- the loop ----------------------------------------------------------------------------

    def run(self, grid: Grid, on_round: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        """Run the rounds that are left.

        Raises RunFailedError when too many rounds in a row had too few valid replies.
        """
        self.strategy.summary()
        self.simulated = is_simulated(grid)
        if not self.folder.checkpoint.exists():  # so that lines without one are a loss, no start
            self._checkpoint(0)
        skipped = 0
        lines = self.folder.read_rounds() if self.config.patience else []
        clock = time.perf_counter()
        for round_ in range(self.finished + 1, self.config.rounds + 1):
            if out_of_patience(self.config, lines):
                break
            skipped = 0 if self._round(grid, round_) else skipped + 1
            record = self._close(round_, clock)
            clock = time.perf_counter()
            log.info(
                "round %d/%d: test %s, %d of %d replied, %.1f s",
                round_, self.config.rounds, headline(self.config.metric, record),
                record["replied"], record["sampled"], record["seconds"],
            )  # fmt: skip
            lines.append(record)
            if on_round is not None:
                on_round(record)
            if skipped > self.config.max_skipped_rounds:
                reasons = distinct(f["reason"] for f in self.ledger.round.failures)
                raise RunFailedError(
                    f"{skipped} rounds in a row had fewer than min-replies="
                    f"{self.config.min_replies} valid replies: {reasons}"
                )
        self.deadline = time.monotonic() + self.config.round_timeout
        matrices = self.confusions(grid)
        self.folder.write_confusion(confusion_rows(self.roster.classes, matrices))

    def confusions(self, grid: Grid) -> dict[str, Matrix]:
        """Ask clients for their confusion matrices (C, C) after the last round, by client."""
        found: dict[str, Matrix] = {}
        current = self.roster.generations
        self._requests = [
            (client, self._request(CONFUSION, client, self.finished))
            for client in self.roster.ids
            if client in self.roster.nodes and (self.config.evaluate_all or current[client])
        ]
        messages = [message for _, message in self._requests]
        for client, reply in self._named(
            self._collect(exchange(grid, messages, self.config.round_timeout))
        ):
            try:
                check_origin(self.roster.infos[client], reply, self.finished)
                found[client] = read_confusion(reply, len(self.roster.classes))
            except Rejected as reason:
                log.warning("client %s is not in confusion.csv: %s", client, one_line(str(reason)))
        return found

    def summary(self) -> None:
        """Log what is about to run."""
        log.info(
            "%s: %d clients, %d per round, rounds %d to %d, %d classes",
            self.config.method, len(self.roster.ids), self.config.cohort(len(self.roster.ids)),
            self.finished + 1, self.config.rounds, len(self.roster.classes),
        )  # fmt: skip
        counts: Counter[str] = Counter()
        for info in self.roster.infos.values():
            counts.update(dict(zip(info.seen_names, info.images, strict=True)))
        if line := imbalance(self.config, counts):
            log.warning("%s", line)

    def _round(self, grid: Grid, round_: int) -> bool:
        """One round; False if it was skipped for lack of valid replies."""
        nothing = (ArrayRecord(), ConfigRecord())
        self.ledger.begin(round_)
        self.handshake.query()
        self.ledger.keep_out(self.roster.refusals())
        timeout = self.config.round_timeout
        self.deadline = time.monotonic() + timeout
        messages = self.strategy.configure_train(round_, *nothing, grid)
        processes = self.config.processes(len(self.roster.ids))
        messages, window = longest_first(messages, self._seconds(), processes)
        replies = self._collect(exchange(grid, messages, self.train_share * timeout, window))
        _, numbers = self.strategy.aggregate_train(round_, replies)
        left = self.deadline - time.monotonic()
        if self._evaluates(round_) and left > 0:
            messages = self.strategy.configure_evaluate(round_, *nothing, grid)
            replies = self._collect(exchange(grid, messages, left))
            self.strategy.aggregate_evaluate(round_, replies)
        return numbers is not None

    def _close(self, round_: int, clock: float) -> dict[str, Any]:
        """Write the round's lines, then the checkpoint that makes them final."""
        arrays = self.strategy.arrays()
        self.folder.append_clients(self.ledger.client_rows())
        record = self.ledger.record(arrays)
        record["seconds"] = time.perf_counter() - clock
        self.folder.append_round(record)
        self._checkpoint(round_)
        self.finished = round_
        return record

    def _checkpoint(self, round_: int) -> None:
        meta = {
            "round": round_,
            "simulated": self.simulated,
            "roster": self.roster.dump(),
            "steps": self.acceptance.steps.dump(),
            **self.ledger.dump(),
            **self.folder.marks(),
            **self.own_marks(),
        }
        save_checkpoint(self.folder.checkpoint, Checkpoint(self.strategy.arrays(), meta))

    def own_marks(self) -> dict[str, Any]:
        """What a kind of rounds keeps of its own in a checkpoint."""
        return {}

    # --- training ----------------------------------------------------------------------------

    def train_messages(self, round_: int) -> list[Message]:
        """One train message per sampled client that is online, in client order."""
        books = self.ledger.round
        made: dict[Hashable, tuple[Payload, ArrayRecord]] = {}
        self._requests = []
        for client in self._sampled(round_):
            info = self.roster.infos[client]
            audience = self.strategy.audience(info)
            if audience not in made:
                payload = self.strategy.download(info, round_)
                made[audience] = payload, to_record(payload.flat)
            payload, record = made[audience]
            message = self._request(TRAIN, client, round_, record)
            books.downlink.add(payload, message_bytes(message))
            self._requests.append((client, message))
        return [message for _, message in self._requests]

    def _sampled(self, round_: int) -> list[str]:
        """The round's clients that are online."""
        cohort = self.config.cohort(len(self.roster.ids))
        chosen = self.roster.sample(self.config.seed, round_, cohort)
        self.ledger.round.sampled += len(chosen)
        return self._online(chosen)

    def _online(self, clients: list[str]) -> list[str]:
        """Those that are online; the others are booked as offline."""
        here = []
        for client in clients:
            if client in self.roster.nodes:
                here.append(client)
            else:
                self.ledger.round.offline += 1
                self.ledger.fail(client, "offline")
        return here

    def take_training(self, round_: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check, sort and combine the replies; None if fewer than min-replies are valid."""
        found: list[Valid] = []
        for client, reply in self._named(replies):
            info = self.roster.infos[client]
            try:
                found.append(self.acceptance.valid(info, reply, round_))
            except Rejected as reason:
                self.ledger.refuse(client, str(reason), reply.arrays, reply.message_bytes)
            else:
                self.ledger.spend(client, reply.metrics)
        odd = self.acceptance.odd(found)
        for one in found:
            if one.info.client in odd:
                self._refuse(one, odd[one.info.client])
        accepted = [one for one in found if one.info.client not in odd]
        if len(accepted) < self.config.min_replies:
            count = f"{len(accepted)} of min-replies={self.config.min_replies}"
            for one in accepted:
                self._refuse(one, f"valid, but the round is skipped: {count} came")
            return None
        uniform = self.config.weighting == "uniform"
        sizes = np.array([1 if uniform else one.info.train_images for one in accepted])
        shares = capped(sizes, self.config.max_weight).tolist()
        uploads = [
            Upload(one.info, one.payload, share, one.reply.metrics)
            for share, one in zip(shares, accepted, strict=True)
        ]
        numbers = dict(self.strategy.aggregate(uploads, round_))
        self.acceptance.accept(accepted)
        for info, payload, reply in ((one.info, one.payload, one.reply) for one in accepted):
            self.roster.accept(info.client, round_, reply.state)
            self._pace[info.model] = reply.metrics.get("seconds", 0.0) / info.train_images
            self.ledger.accept(info.client, payload, reply.metrics, reply.message_bytes)
            if "test_accuracy" in reply.metrics:
                self.ledger.score(info.client, reply.metrics)
        self.ledger.round.numbers = numbers
        return MetricRecord(dict(numbers))

    def _refuse(self, one: Valid, reason: str) -> None:
        """Leave out a reply that, looked at alone, was as it should be."""
        reply = one.reply
        self.ledger.refuse(one.info.client, reason, reply.arrays, reply.message_bytes)

    def _seconds(self) -> list[float]:
        """What each request's training may take, by the last replies of its model; 0: unknown."""
        infos = [self.roster.infos[client] for client, _ in self._requests]
        return [self._pace.get(info.model, 0.0) * info.train_images for info in infos]

    # --- evaluation --------------------------------------------------------------------------

    def evaluate_messages(self, round_: int) -> list[Message]:
        """One evaluate message per online client whose present state has no accuracy yet."""
        # Whoever has just failed is not asked again: a round has one time limit.
        failed = {failure["client"] for failure in self.ledger.round.failures}
        behind = self.ledger.unevaluated(everybody=self.config.evaluate_all)
        behind = [client for client in behind if client not in failed]
        self._requests = [(c, self._request(EVALUATE, c, round_)) for c in behind]
        return [message for _, message in self._requests]

    def take_accuracies(self, replies: Iterable[Message]) -> MetricRecord:
        """Book the accuracies; returns their mean over all clients evaluated so far, percent."""
        for client, reply in self._named(replies):
            try:
                check_evaluation(self.roster.infos[client], reply, self.ledger.round.number)
            except Rejected as reason:
                self.ledger.fail(client, f"evaluation: {reason}")
            else:
                self.ledger.score(client, reply.metrics)
        return MetricRecord({"test-accuracy-mean": self.ledger.spread("test_accuracy")["mean"]})

    def _evaluates(self, round_: int) -> bool:
        return round_ % self.config.evaluate_every == 0 or round_ == self.config.rounds

    # --- messages ----------------------------------------------------------------------------

    def _request(
        self, kind: str, client: str, round_: int, arrays: ArrayRecord | None = None
    ) -> Message:
        what = Instruction(
            experiment=self.folder.experiment,
            round=round_,
            generation=self.roster.generations[client],
            state=self.roster.states.get(client, ""),
            evaluate=self._evaluates(round_),
            state_dir=self.state_dir,
            classes=self.roster.classes,
        )
        return request(kind, self.roster.nodes[client], what, self.config.round_timeout, arrays)

    def _collect(self, pairs: Iterable[tuple[Message, Message]]) -> Iterator[Message]:
        """Replies as they come; who was asked is remembered by the id of the message."""
        clients = {id(message): client for client, message in self._requests}
        for sent, reply in pairs:
            self._asked[reply.metadata.reply_to_message_id] = clients[id(sent)]
            yield reply

    def _named(self, replies: Iterable[Message]) -> list[tuple[str, Reply]]:
        """Replies with their clients, in client order; the message that is answered tells whose.

        Each is decoded when it arrives, so that no message is kept beside its arrays.
        """
        found: dict[str, Reply] = {}
        for message in replies:
            client = self._asked.pop(message.metadata.reply_to_message_id, None)
            if client is not None:
                found[client] = reply = read_reply(message, self._limit(client))
                if reply.lost:
                    self.roster.lose(client, self.ledger.round.number, reply.error)
        return sorted(found.items(), key=lambda pair: client_order(pair[0]))

    def _limit(self, client: str) -> int:
        """Bytes above which a reply is refused unread."""
        return reply_limit(self.strategy.expect(self.roster.infos[client]))


def _check_hooks(strategy: MethodStrategy[Any]) -> None:
    """HookError for hooks that do not fit together."""
    own, base = type(strategy), MethodStrategy
    if strategy.upload_type is not Empty and own.expect is base.expect:
        raise HookError(
            f"{own.__name__}: set `expect`: a payload with an upload's shapes, or None if they vary"
        )
    if (own.arrays is base.arrays) != (own.load is base.load):
        raise HookError(f"{own.__name__}: set both `arrays` and `load`, or neither")

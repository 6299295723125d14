"""What all strategies share: the round loop, checks of replies, checkpoints.

A method fills in plain-array hooks (``payload``, ``expect``, ``aggregate``, ``arrays``, ...); no
hook sees a Flower object. Flower's own ``start`` counts from 1, always runs two phases, has no
stop and sleeps 3 s between polls; this one resumes, lets evaluation ride in the train reply and
is bounded in every wait.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedhet.errors import RunFailedError
from fedhet.ids import client_order
from fedhet.protocol.checks import (
    Rejected,
    check_accuracies,
    check_arrays,
    check_epsilon,
    check_reply,
    reply_limit,
)
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.mail import exchange, longest_first
from fedhet.protocol.messages import (
    EVALUATE,
    TRAIN,
    Instruction,
    Reply,
    message_bytes,
    read_reply,
    request,
    to_record,
)
from fedhet.protocol.payload import Array, Empty, Payload
from fedhet.protocol.people import ClientInfo
from fedhet.protocol.roster import Roster
from fedhet.records.checkpoint import load_checkpoint, save_checkpoint
from fedhet.records.ledger import Ledger
from fedhet.records.run_folder import RunFolder
from fedhet.schema import RunConfig

log = logging.getLogger("fedhet")


@dataclass(frozen=True)
class Upload:
    """An accepted reply: whose it is, its payload, and its weight n_k / sum n_j in the round."""

    info: ClientInfo
    payload: Payload
    weight: float
    metrics: Mapping[str, float]


class MethodStrategy(Strategy):
    """Server half of a method; the module's docstring says what a method fills in."""

    upload_type: type[Payload] = Empty

    def __init__(self, config: RunConfig, roster: Roster, folder: RunFolder) -> None:
        self.config = config
        self.roster = roster
        self.folder = folder
        self.experiment = folder.experiment
        self.state_dir = str(folder.state_dir(config))
        self.classes = len(roster.classes)
        self.ledger = Ledger(roster)
        self.finished = 0
        self._requests: list[tuple[str, Message]] = []
        self._asked: dict[str, str] = {}  # client by id of the message that it was sent
        self._records: dict[tuple[int, ...], tuple[Payload, ArrayRecord]] = {}
        self._pace: dict[str, float] = {}  # seconds per training image, by model
        self.initialise()

    # --- hooks of a method: plain arrays in, plain arrays out --------------------------------

    @classmethod
    def check_config(cls, config: RunConfig) -> None:
        """Raise UserError for settings that this method cannot work with."""

    @classmethod
    def ignores(cls, config: RunConfig) -> Mapping[str, str]:
        """Common keys that change nothing here, each with the reason.

        A configuration that sets one of them to something else than its default is refused.
        """
        return {}

    def initialise(self) -> None:
        """Create the global arrays as they are before round 1."""

    def payload(self, info: ClientInfo, round_: int) -> Payload:
        """What is sent down to one client at the start of a round."""
        return Empty()

    def expect(self, info: ClientInfo) -> Payload | None:
        """A payload with the shapes and dtypes of this client's upload; None: they vary."""
        return Empty()

    def check(self, info: ClientInfo, payload: Payload) -> None:
        """Raise Rejected if an upload of the right shapes is still not acceptable."""

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Combine uploads, sorted by client, in float64; returns numbers worth recording."""
        return {}

    def arrays(self) -> dict[str, Array]:
        """The global arrays by name: what is checkpointed and hashed."""
        return {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""

    # --- Flower's hooks ----------------------------------------------------------------------

    def summary(self) -> None:
        """Log what is about to run."""
        log.info(
            "%s: %d clients, %d per round, rounds %d to %d, %d classes",
            self.config.method, len(self.roster.ids), self.config.cohort(len(self.roster.ids)),
            self.finished + 1, self.config.rounds, self.classes,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One train message per sampled client that is online, in client order."""
        del arrays, config, grid
        cohort = self.config.cohort(len(self.roster.ids))
        books = self.ledger.round
        self._requests = []
        self._records.clear()
        for client in self.roster.sample(self.config.seed, server_round, cohort):
            books.sampled += 1
            if client not in self.roster.nodes:
                books.offline += 1
                self.ledger.fail(client, "offline")
                continue
            payload = self.payload(self.roster.infos[client], server_round)
            message = self._request(TRAIN, client, server_round, payload)
            books.downlink.add(payload, message_bytes(message))
            self._requests.append((client, message))
        return [message for _, message in self._requests]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, sort and combine the replies; (None, None) if fewer than min-replies are valid."""
        accepted: list[tuple[ClientInfo, Payload, Reply]] = []
        for client, reply in self._named(replies):
            info = self.roster.infos[client]
            try:
                payload = self._valid(info, reply, server_round)
            except Rejected as reason:
                self.ledger.refuse(client, str(reason), reply.arrays, reply.message_bytes)
            else:
                accepted.append((info, payload, reply))
                self.ledger.spend(client, reply.metrics)
        if len(accepted) < self.config.min_replies:
            count = f"{len(accepted)} of min-replies={self.config.min_replies}"
            for info, _, reply in accepted:
                why = f"valid, but the round is skipped: {count} came"
                self.ledger.refuse(info.client, why, reply.arrays, reply.message_bytes)
            return None, None
        uniform = self.config.weighting == "uniform"
        sizes = [1 if uniform else info.train_images for info, _, _ in accepted]
        uploads = [
            Upload(info, payload, size / sum(sizes), reply.metrics)
            for size, (info, payload, reply) in zip(sizes, accepted, strict=True)
        ]
        numbers = dict(self.aggregate(uploads, server_round))
        for info, payload, reply in accepted:
            self.roster.generations[info.client] = server_round
            self._pace[info.model] = reply.metrics.get("seconds", 0.0) / info.train_images
            self.ledger.accept(info.client, payload, reply.metrics, reply.message_bytes)
            if "test_accuracy" in reply.metrics:
                self.ledger.score(info.client, reply.metrics)
        self.ledger.round.numbers = numbers
        return to_record(list(self.arrays().values())), MetricRecord(dict(numbers))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One evaluate message per online client whose present state has no accuracy yet."""
        del arrays, config, grid
        # Whoever has just failed is not asked again: a round has one time limit.
        failed = {failure["client"] for failure in self.ledger.round.failures}
        behind = self.ledger.unevaluated(everybody=self.config.evaluate_all)
        behind = [client for client in behind if client not in failed]
        self._requests = [(c, self._request(EVALUATE, c, server_round)) for c in behind]
        return [message for _, message in self._requests]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Book the accuracies; returns their mean over all clients evaluated so far, percent."""
        for client, reply in self._named(replies):
            try:
                if reply.error:
                    raise Rejected(reply.error)
                check_accuracies(reply)
            except Rejected as reason:
                self.ledger.fail(client, f"evaluation: {reason}")
            else:
                self.ledger.score(client, reply.metrics)
        return MetricRecord({"test-accuracy-mean": self.ledger.spread("test_accuracy")["mean"]})

    # --- the round loop ----------------------------------------------------------------------

    def start(  # noqa: PLR0913, PLR0917  (Flower's signature)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        on_round: Callable[[Mapping[str, Any]], None] | None = None,
        handshake: Handshake | None = None,
    ) -> Result:
        """Run the rounds that are left: all, or those after a checkpoint.

        What Flower's signature has beside ``grid`` comes from the configuration instead.
        Raises RunFailedError when too many rounds in a row had too few valid replies.
        """
        del initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        self.summary()
        skipped = 0
        clock = time.perf_counter()
        for round_ in range(self.finished + 1, self.config.rounds + 1):
            skipped = 0 if self._round(grid, round_, handshake) else skipped + 1
            record = self._close(round_, clock)
            clock = time.perf_counter()
            log.info(
                "round %d/%d: test accuracy %.2f %%, %d of %d replied, %.1f s",
                round_, self.config.rounds, record["test_accuracy_mean"], record["replied"],
                record["sampled"], record["seconds"],
            )  # fmt: skip
            if on_round is not None:
                on_round(record)
            if skipped > self.config.max_skipped_rounds:
                reasons = sorted({f["reason"] for f in self.ledger.round.failures})
                raise RunFailedError(
                    f"{skipped} rounds in a row had fewer than min-replies="
                    f"{self.config.min_replies} valid replies: {'; '.join(reasons)}"
                )
        return Result(arrays=to_record(list(self.arrays().values())))

    @staticmethod
    def kept_roster(folder: RunFolder) -> dict[str, Any] | None:
        """The roster in the last checkpoint, needed before a strategy can be made; None: none."""
        kept = load_checkpoint(folder.checkpoint)
        return dict(kept[1]["roster"]) if kept is not None else None

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one; later lines of the records are dropped."""
        kept = load_checkpoint(self.folder.checkpoint)
        if kept is not None:
            arrays, meta = kept
            self.load(arrays)
            self.finished = int(meta["round"])
            self.ledger.load(meta)
        self.folder.truncate(self.finished)

    def _round(self, grid: Grid, round_: int, handshake: Handshake | None) -> bool:
        """One round; False if it was skipped for lack of valid replies."""
        nothing = (ArrayRecord(), ConfigRecord())
        self.ledger.begin(round_)
        if handshake is not None:
            handshake.query()
        self.ledger.keep_out(self.roster.refusals())
        deadline = time.monotonic() + self.config.round_timeout
        messages = self.configure_train(round_, *nothing, grid)
        processes = self.config.processes(len(self.roster.ids))
        messages, window = longest_first(messages, self._seconds(), processes)
        replies = self._collect(exchange(grid, messages, self.config.round_timeout, window))
        arrays, _ = self.aggregate_train(round_, replies)
        left = deadline - time.monotonic()
        if self._evaluates(round_) and left > 0:
            messages = self.configure_evaluate(round_, *nothing, grid)
            self.aggregate_evaluate(round_, self._collect(exchange(grid, messages, left)))
        return arrays is not None

    def _close(self, round_: int, clock: float) -> dict[str, Any]:
        """Write the round's lines, then the checkpoint that makes them final."""
        self.folder.append_clients(self.ledger.client_rows())
        record = self.ledger.record(self.arrays())
        record["seconds"] = time.perf_counter() - clock
        self.folder.append_round(record)
        meta = {"round": round_, "roster": self.roster.dump(), **self.ledger.dump()}
        save_checkpoint(self.folder.checkpoint, self.arrays(), meta)
        self.finished = round_
        return record

    # --- pieces ------------------------------------------------------------------------------

    def _seconds(self) -> list[float]:
        """What each request's training may take, by the last replies of its model; 0: unknown."""
        infos = [self.roster.infos[client] for client, _ in self._requests]
        return [self._pace.get(info.model, 0.0) * info.train_images for info in infos]

    def _evaluates(self, round_: int) -> bool:
        return round_ % self.config.evaluate_every == 0 or round_ == self.config.rounds

    def _request(
        self, kind: str, client: str, round_: int, payload: Payload | None = None
    ) -> Message:
        what = Instruction(
            experiment=self.experiment,
            round=round_,
            generation=self.roster.generations[client],
            evaluate=self._evaluates(round_),
            state_dir=self.state_dir,
            classes=self.roster.classes,
        )
        arrays = None if payload is None else self._record(payload)
        return request(kind, self.roster.nodes[client], what, self.config.round_timeout, arrays)

    def _record(self, payload: Payload) -> ArrayRecord:
        """The payload as it is sent, made once where many clients get the very same arrays."""
        key = tuple(map(id, payload.flat))
        if key not in self._records:
            self._records[key] = payload, to_record(payload.flat)
        return self._records[key][1]

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
                limit = reply_limit(self.expect(self.roster.infos[client]))
                found[client] = read_reply(message, limit)
        return sorted(found.items(), key=lambda pair: client_order(pair[0]))

    def _valid(self, info: ClientInfo, reply: Reply, round_: int) -> Payload:
        """The payload of a reply; Rejected with a reason if anything about it is wrong."""
        check_reply(info, reply, round_)
        check_accuracies(reply)
        check_epsilon(reply, self.config)
        try:
            payload = self.upload_type.from_ndarrays(reply.arrays)
        except ValueError as error:
            raise Rejected(str(error)) from error
        check_arrays(payload, self.expect(info), self.config.max_update_norm)
        self.check(info, payload)
        return payload

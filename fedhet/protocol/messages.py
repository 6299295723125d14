"""Messages between server and clients: what they hold, how they are read, and how they travel.

A request holds ``arrays`` (the payload) and ``config`` (an :class:`Instruction`); a reply holds
``arrays``, ``metrics`` (numbers only: Flower's MetricRecord takes no text) and ``info`` (texts).
A client that takes no part says why by an error :class:`Code`.
"""

import contextlib
import logging
import re
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Annotated, Any, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass as wired
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedhet.errors import Refused, Rejected, UserError, brief, one_line
from fedhet.files import is_id
from fedhet.protocol.flower import (
    NO_REPLY,
    NOT_SENT,
    is_simulated,
    posted,
    take_damaged_replies,
)
from fedhet.protocol.payload import Array

log = logging.getLogger("fedhet")

SUM = "sum"  # the record of what a sum needs: see fedhet.sums.messages
PACKED = "packed"  # the one array of a payload's record
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
CONFUSION = "evaluate.confusion"  # after the last round
# Of a sum: keys, the unit of weights, owners of classes, who is left, and the masks.
INTRODUCE, UNIT, OWNERS = "query.introduce", "train.unit", "train.owners"
AGREE, UNMASK = "train.agree", "train.unmask"
QUERY_BYTES = 1 << 20  # largest reply that carries no arrays
LONGEST_TEXT = 4096  # characters of a text in an instruction; a path is the longest
MAX_HEADER = 1 << 20  # bytes of a payload's header, enough for 10,000 arrays
WIRE = ConfigDict(extra="forbid")  # of a class that is read from the other side
Wired = TypeVar("Wired")


def _id(name: str) -> str:
    if not is_id(name):
        raise ValueError("not an id of up to 64 characters of A-Z a-z 0-9 . _ -")
    return name


Id = Annotated[StrictStr, AfterValidator(_id)]  # of a client or an experiment
PRINTABLE = r"^(?: |[^\p{C}\p{Z}])+$"
MAX_TEXT = 255  # characters of a class's name, as of a file's on most systems
Name = Annotated[StrictStr, Field(max_length=MAX_TEXT, pattern=PRINTABLE)]
_Text = Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]


def to_wire(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as Flower's records take them, without None."""
    pairs = ((one.name.replace("_", "-"), getattr(values, one.name)) for one in fields(values))
    return {k: list(v) if isinstance(v, tuple) else v for k, v in pairs if v is not None}


def from_wire(kind: type[Wired], record: Mapping[str, Any]) -> Wired:
    """Return the ``kind`` whose fields a record holds, as :func:`to_wire` wrote them.

    Raise ValueError, in one line, for a field that is missing, unknown or not as ``kind`` says.
    """
    values = {key.replace("-", "_"): value for key, value in record.items()}
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = one_line(first["msg"]).removeprefix("Value error, ")
        named = place and first["type"] != "missing"
        value = f"{shown(first['input'])} is not allowed: " if named else ""
        raise ValueError(f"{place or kind.__name__}: {value}{why}") from error


def shown(value: object) -> str:
    """Return a stranger's value for a message."""
    return f"'{one_line(str(value)[:80] if isinstance(value, str) else repr(value)[:80])}'"


@wired(frozen=True, config=WIRE)
class Instruction:
    """What the server tells a client beside the payload."""

    experiment: Id
    round: StrictInt = 0
    generation: StrictInt = 0
    digest: _Text = ""  # of that generation's state; empty for generation 0
    evaluate: StrictBool = True
    state_dir: _Text = ""  # used by simulated clients only
    classes: tuple[StrictStr, ...] = ()
    refused: _Text = ""  # why the run does without this node; nothing is asked then
    nonce: _Text = ""  # makes the message's id a secret of its addressee: see handshake

    def fit_config(self) -> dict[str, bool | bytes | float | int | str]:
        """Return what a client's ``fit`` is told of a round."""
        names = ("round", "generation", "digest", "evaluate")
        return {name: getattr(self, name) for name in names}

    def reply(
        self,
        client: str,
        metrics: Mapping[str, float] | None = None,
        arrays: Sequence[Array] = (),
        **info: Any,
    ) -> "Reply":
        """Return a client's reply to this instruction, with these texts beside its id and round."""
        return Reply({"client": client, "round": self.round, **info}, metrics or {}, arrays)


@dataclass(frozen=True)
class Reply:
    """What a client said: texts, numbers, arrays. ``error`` is empty unless it failed."""

    info: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Sequence[Array] = ()
    message_bytes: int = 0

    @property
    def error(self) -> str:
        """Reason of a failure, one line, or empty."""
        return str(self.info.get("error", ""))

    @property
    def undelivered(self) -> bool:
        """Whether no reply came: ``error`` is Flower's."""
        return self.info.get("undelivered") is True

    @property
    def lost(self) -> bool:
        """Whether the client says that the state which the server means is gone."""
        return self.info.get("state-lost") is True

    @property
    def digest(self) -> str:
        """Digest of the state that the client has saved."""
        return str(self.info.get("digest", ""))


def request(  # noqa: PLR0913
    kind: str,
    node: int,
    what: Instruction,
    ttl: float,
    arrays: ArrayRecord | None = None,
    *,
    about: Any = None,
) -> Message:
    """Return a message to ``node``: query, train or evaluate; ``about`` is what a sum needs.

    After ``ttl`` seconds nobody waits for the reply any more, and a node that was away is not
    bothered with the message. Flower makes replies expire together with their message.
    """
    config = to_wire(replace(what, nonce=secrets.token_hex(16)))
    content = RecordDict({"config": ConfigRecord(config)})
    if arrays is not None:
        content["arrays"] = arrays
    if about is not None:
        content[SUM] = ConfigRecord(to_wire(about))
    return Message(content, node, kind, ttl=ttl)


def instruction(message: Message) -> Instruction:
    """Return the instruction of a request, which has all of its keys and no others.

    Raises ValueError, in one line. Whether the values are plausible is for
    :func:`fedhet.protocol.checks.read_instruction` to say.
    """
    content = message.content
    if not {"config"} <= set(content) <= {"config", "arrays", SUM}:
        raise ValueError(
            "an instruction has the record 'config', and 'arrays' and 'sum' at most beside it"
        )
    config = content.config_records.get("config")
    keys = [one.name.replace("_", "-") for one in fields(Instruction)]
    if config is None or set(config) != set(keys):
        raise ValueError(f"an instruction has the keys {', '.join(keys)} and no others")
    return from_wire(Instruction, config)


def arrays_of(message: Message) -> list[Array]:
    """Return the payload arrays of a request or reply, in order; none if it carries none.

    Raises ValueError for anything but plain numbers in safetensors' format.
    """
    record = message.content.array_records.get("arrays")
    if not record:
        return []
    if set(record) != {PACKED}:
        raise ValueError(f"payload has other records than '{PACKED}'")
    return unpack(record[PACKED].data)


def unpack(data: bytes) -> list[Array]:
    """Return the arrays that :func:`pack` wrote; raise ValueError for anything else."""
    if int.from_bytes(data[:8], "little") > MAX_HEADER:
        raise ValueError(f"payload has a header of more than {MAX_HEADER} bytes")
    try:
        found = load(data)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"payload is not in safetensors' format: {error}") from error
    if any(array.dtype.kind not in "biuf" for array in found.values()):
        raise ValueError("payload has arrays that are not numbers")
    return [found[name] for name in sorted(found)]


def answer(to: Message, reply: Reply) -> Message:
    """Return the message that answers ``to`` with ``reply``."""
    content = RecordDict({"info": ConfigRecord(dict(reply.info))})
    if reply.metrics:
        content["metrics"] = MetricRecord(dict(reply.metrics))
    if reply.arrays:
        content["arrays"] = to_record(reply.arrays)
    return Message(content, reply_to=to)


def read_reply(message: Message, limit: int = QUERY_BYTES) -> Reply:
    """Unpack a reply; one that is not of this form becomes a Reply with an error.

    One of more than ``limit`` bytes is refused before anything in it is decoded. What could be
    measured of a refused reply (its bytes) is told as well: it has crossed the wire.
    """
    size, lost = 0, False
    if message.has_error():
        reason = one_line(message.error.reason)
        own = message.error.code >= NO_REPLY  # words of fedhet's, not Flower's
        text = reason if own else f"Flower error {message.error.code}: {reason}"
        return Reply({"error": text, "undelivered": True})
    try:
        size = message_bytes(message)
        content = message.content
        said = size - sum(record.count_bytes() for record in content.array_records.values())
        if size > limit:
            raise Rejected(f"reply of {size} bytes, more than the {limit} allowed")
        if said > QUERY_BYTES:
            raise Rejected(
                f"{said} bytes of texts and numbers, more than the {QUERY_BYTES} allowed"
            )
        info = dict(content.config_records["info"].items())
        if "error" in info:
            lost = info.get("state-lost") is True
            raise Rejected(failure_text(info["error"], info.get("log")))
        metrics = {
            key: float(value)  # type: ignore[arg-type]
            for record in content.metric_records.values()
            for key, value in record.items()
        }
        return Reply(info, metrics, arrays_of(message), size)
    except Exception as error:  # bytes of the other side can raise any error
        ours = isinstance(error, Rejected)
        reason = str(error) if ours else f"reply cannot be read: {brief(error)}"
        return Reply({"error": reason, "state-lost": lost}, message_bytes=size)


def message_bytes(message: Message) -> int:
    """Return the bytes of the records of a message as they are sent."""
    return sum(
        # count_bytes() of a ConfigRecord fails on empty texts and lists
        len(record.deflate()) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in message.content.values()
    )


def pack(arrays: Sequence[Array]) -> bytes:
    """Return arrays in safetensors' format, named by their places."""
    return save({f"{i:05d}": np.asarray(array, order="C") for i, array in enumerate(arrays)})


def to_record(arrays: Sequence[Array]) -> ArrayRecord:
    """Return arrays as a Flower record of one array, whose bytes are those of :func:`pack`.

    Flower sends each array of a record as two objects, each in requests of its own, which cost the
    SuperLink more than the arrays do.
    """
    data = pack(arrays)
    packed = FlowerArray("uint8", (len(data),), "safetensors", data)
    return ArrayRecord({PACKED: packed} if arrays else {})


# --- why a client takes no part ----------------------------------------------------------------


# A deployed node sends a code of this list and a number; its own log has the text under that
# number. What its disk looks like, how its classes are called and what an exception says stays
# there. The number is drawn: one that counts would tell how often a site has failed. A simulation
# is one owner's on one machine: there the whole text is sent.
MOST = 999_999  # the largest number of an entry


class Code(StrEnum):
    """Error codes of a deployed node, each with its meaning."""

    meaning: str

    def __new__(cls, code: str, meaning: str = "") -> "Code":
        """Make a member from its code and its meaning."""
        made = str.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    INSTRUCTION = "instruction", "it received an invalid instruction"
    PAYLOAD = ("payload", "it received other arrays than the method sends: do server and node "
        "run the same version of it?")  # fmt: skip
    GENERATION = "generation", "it was asked for generation 0, which it no longer keeps"
    STATE = "state", "its private state cannot be written or read"
    STATE_LOST = "state-lost", "the private state that the server asks for is lost or damaged"
    NOT_FINITE = "not-finite", "training ended in NaN or infinity: a smaller lr, or grad-clip"
    BUDGET = "budget", "its privacy budget does not allow this upload"
    MEMORY = "out-of-memory", "it has too little memory: a smaller batch-size, or fewer processes"
    CONFIGURATION = "configuration", "the run's configuration cannot work there"
    CLASSES = ("classes", "the run must name the classes (classes, or labels of a file), since a "
        "site does not tell them")  # fmt: skip
    DATA = ("data", "its data cannot be used: missing, damaged, or with a class that the run "
        "lacks")  # fmt: skip
    PUBLIC = ("public-data", "its copy of the public data set is missing or cannot be opened "
        "(fedhet node --public)")  # fmt: skip
    MODEL = "model", "its model cannot be built there"
    DEVICE = "device", "its device is not available"
    METHOD = ("method", "its method, model or data set does not fit this version of fedhet")
    UNEXPECTED = "unexpected", "an unexpected error"
    LIMITS_FILE = ("limits-file", "its site's file of limits cannot be read, so no run is "
        "allowed")  # fmt: skip
    CODE = "limit-code", "its site runs only code that is installed there"
    MODULES = "limit-modules", "its site does not allow a module that the run names"
    MAX_EPOCHS = "limit-max-epochs", "its site allows fewer epochs a round"
    MAX_ROUNDS = "limit-max-rounds", "its site allows fewer rounds"
    METHODS = "limit-methods", "its site does not allow this method"
    SHARED_MODELS = "limit-shared-models", "its site refuses methods that share a model"
    MIN_NOISE = "limit-min-noise", "its site requires more noise (dp-clip, dp-epsilon)"
    MAX_UPLOAD_BYTES = "limit-max-upload-bytes", "its site allows only smaller uploads"
    CLASS_COUNTS = "limit-class-counts", "its site hides examples per class (use secure-sum)"
    MAX_DOWNLOAD_BYTES = "limit-max-download-bytes", "its site accepts only smaller messages"
    MAX_DOWNLOAD_NORM = "limit-max-download-norm", "its site accepts only a smaller norm"
    MIN_SUM = "limit-min-sum", "its site requires sums over more clients"
    MIN_SUM_NOISE = ("limit-min-sum-noise", "its site requires more noise in every sum (dp-clip, "
        "dp-epsilon)")  # fmt: skip
    SECURE_SUM = "limit-secure-sum", "its site requires secure-sum=masked"
    RANGE = "sum-range", "its vector has an entry that is not finite, or beyond sum-range"
    PROOF = "sum-proof", "its certificate does not prove that its key for the sums is its own"
    # The rules of a member of a sum: see fedhet.sums.client.
    SMALL = "cohort-too-small", "the cohort is smaller than sum-min, or than its site's min-sum"
    ABSENT = "not-in-cohort", "it is not in the cohort of its own round"
    STRANGER = ("stranger-in-cohort", "it does not know or accept the key of a member of the "
        "cohort")  # fmt: skip
    TWICE = "member-named-twice", "a client or a key is in the cohort twice"
    OLD = "attempt-not-new", "the attempt is not newer than the last one that it answered"
    THRESHOLD = "threshold-too-low", "the threshold would allow two answers for one attempt"
    UNASKED = "unmask-without-upload", "it has not uploaded in the attempt that is to be unmasked"
    OTHER = "other-survivors-than-answered", "it has sent its shares for other survivors"
    FEW = ("too-few-survivors", "fewer are left than sum-threshold, sum-min or its site's "
        "min-sum allow")  # fmt: skip
    UNSIGNED = "survivors-not-signed", "too few members have signed its list of survivors"
    LEFT_OUT = "not-a-survivor", "it is not among the survivors"
    OUTSIDE = "survivors-not-the-cohort", "a survivor was not in the cohort"
    BOXES = "boxes-malformed", "the boxes differ in size or number from what was agreed"


def refusal(code: Code) -> Refused:
    """Return the refusal whose text is an error code and its meaning."""
    return Refused(f"{code}: {code.meaning}", code)


@contextlib.contextmanager
def coded(code: Code) -> Iterator[None]:
    """Give a UserError without a code this one, within this block."""
    try:
        yield
    except UserError as error:
        error.code = error.code or code
        raise


@contextlib.contextmanager
def refusing(code: Code = Code.PAYLOAD, text: str = "") -> Iterator[None]:
    """Raise Refused for a ValueError within this block, with this text or the error's."""
    try:
        yield
    except ValueError as error:
        raise Refused(text or str(error), code) from error


def failure_text(error: object, number: object) -> str:
    """Return what the server shows of a failure: its code, where to look, what the code means.

    Without a number it is a simulated client's text, and shown as it is, on one line.
    """
    if number is None:
        return one_line(error) or "failed without a reason"
    place = number if type(number) is int and 1 <= number <= MOST else "unknown"
    code = next((one for one in Code if one == str(error)), None)
    if code is None:
        return f"an unknown error code (its log: no. {place})"
    return f"{code} (its log: no. {place}): {code.meaning}"


def distinct(reasons: Iterable[str], most: int = sys.maxsize) -> str:
    """Return reasons side by side, each once whatever its number; of more than ``most`` a count."""
    found = sorted({re.sub(r" \(its log: no\. \w+\)", "", text) for text in reasons})
    return "; ".join([*found[:most], *[f"{len(found) - most} more"] * (len(found) > most)])


# --- sending ----------------------------------------------------------------------------------


SIMULATION_POLL = 0.01
NETWORK_POLL = 0.25
WINDOW = 64  # messages under way in a simulation
BATCH = 64  # messages in one request to the SuperLink
PULLS = 64  # requests for replies at a time on a network
PULL_PATIENCE = 0.5  # seconds to wait for pulls that are under way
# A SuperLink that is short of CPU drops replies ("database is locked"), and a node that died and
# came back has forgotten what it was asked. A node that is silent for this long, and for three
# times what the slowest of the others took, is asked again: longer than Flower needs to notice a
# dead node.
REMIND_AFTER = 75.0  # seconds
REMINDERS = 2  # for one message


@dataclass(eq=False)
class _Sent:
    """A message that is under way: when it was sent first, and how often again."""

    message: Message
    since: float
    reminders: int = 0


class Mail:
    """Messages on their way: not yet sent, and sent but not yet answered.

    Flower's own ``send_and_receive`` sleeps 3 s between polls on a network; here the poll is short.
    Its simulator scans all outstanding messages at every sweep (quadratic), so there only a window
    of them is under way; on a network every node gets its message at once.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.simulated = is_simulated(grid)
        if not self.simulated:
            take_damaged_replies()
        polls = getattr(grid, "poll_interval", SIMULATION_POLL)  # 0: its pulls wait themselves
        self.interval = polls if self.simulated else NETWORK_POLL  # seconds
        self.window = WINDOW if self.simulated else sys.maxsize
        self.waiting: deque[Message] = deque()
        self.pending: dict[str, _Sent] = {}  # a message that was repeated has several ids
        self._took: list[float] = []  # seconds of those that are answered
        self._pulled: SimpleQueue[tuple[Sequence[str], list[Message] | Exception]] = SimpleQueue()
        self._asked: set[str] = set()  # ids that a thread pulls at the moment
        self._news = time.monotonic()
        self._asking = 0.0  # seconds that the last poll took

    def __bool__(self) -> bool:
        return bool(self.waiting or self.pending)

    def add(self, messages: Iterable[Message]) -> None:
        """Queue messages; :meth:`poll` sends them."""
        self.waiting.extend(messages)

    def poll(self) -> list[tuple[Message, Message]]:
        """Send what the window allows; returns each message that is done, with its reply.

        Replies to anything else (another round's, a stranger's) are never pulled. An error reply
        may carry the server's own node id: match replies by ``reply_to_message_id``.
        """
        done = self._send()
        started = time.monotonic()
        replies = list(self._pull())
        self._asking = time.monotonic() - started
        for reply in replies:
            sent = self.pending.get(reply.metadata.reply_to_message_id)
            if sent is not None:  # nothing else is pulled for it
                self.pending = {key: one for key, one in self.pending.items() if one is not sent}
                self._took.append(time.monotonic() - sent.since)
                done.append((sent.message, reply))
        if done:
            self._news = time.monotonic()
        return done

    def remind(self, timeout: float) -> list[Message]:
        """Repeat what has gone unanswered for too long, within ``timeout`` seconds; returns it.

        A client that answers twice gives the same answer twice: the first one counts. Until half
        of the others have answered nobody can say what is long, but half of the time.
        """
        if self.simulated or not self.pending:  # nothing is lost in a simulation
            return []
        waiting = self._waited_for()
        known = len(self._took) >= len(waiting)
        bound = max(REMIND_AFTER, 3 * max(self._took) if known and self._took else timeout / 2)
        now = time.monotonic()
        late = [
            sent
            for sent in waiting
            if sent.reminders < REMINDERS and now - sent.since > bound * 2**sent.reminders
        ]
        if not late:
            return []
        copies = [
            Message(m.content, m.metadata.dst_node_id, m.metadata.message_type, ttl=m.metadata.ttl)
            for m in (sent.message for sent in late)
        ]
        for identity, sent in zip(self.grid.push_messages(copies), late, strict=False):
            sent.reminders += 1
            if identity:
                self.pending[identity] = sent
        return [sent.message for sent in late]

    def _waited_for(self) -> list[_Sent]:
        """Return what is under way, each once."""
        return list(dict.fromkeys(self.pending.values()))

    def pause(self) -> None:
        """Wait until the next poll is due: the longer nothing came, the less often we look.

        Polls take time from the training of a simulation, and on a network from the SuperLink:
        they get a fifth of it at most.
        """
        if self.simulated:
            time.sleep(min(10, 1 + 2 * (time.monotonic() - self._news)) * self.interval)
        else:
            time.sleep(max(self.interval, 4 * self._asking))

    def _pull(self) -> Iterable[Message]:
        """Return the replies that are there.

        On a network up to 64 threads pull, each its own messages. If a client died while it
        uploaded a reply, Flower waits three minutes or more for the missing parts, and the thread
        that asked for it returns none of its other replies until then. They are daemons: one that
        hangs keeps no process alive. Raises what a pull raised.
        """
        if not self.pending:
            return []
        if self.simulated:
            return self.grid.pull_messages(list(self.pending))
        unasked = [identity for identity in self.pending if identity not in self._asked]
        for share in (unasked[i::PULLS] for i in range(min(PULLS, len(unasked)))):
            self._asked.update(share)
            threading.Thread(target=self._pull_some, args=(share,), daemon=True).start()
        found: list[Message] = []
        until = time.monotonic() + PULL_PATIENCE
        with contextlib.suppress(Empty):
            while self._asked:
                pulled, result = self._pulled.get(timeout=max(0.0, until - time.monotonic()))
                self._asked.difference_update(pulled)
                if isinstance(result, Exception):
                    raise result
                found += result
        place = {identity: i for i, identity in enumerate(self.pending)}  # threads end in any order
        return sorted(found, key=lambda reply: place.get(reply.metadata.reply_to_message_id, -1))

    def _pull_some(self, identities: Sequence[str]) -> None:
        """Pull replies in a thread of their own."""
        try:
            self._pulled.put((identities, list(self.grid.pull_messages(identities))))
        except Exception as error:  # noqa: BLE001  (raised where the result is wanted)
            self._pulled.put((identities, error))

    def close(self, timeout: float) -> list[tuple[Message, Message]]:
        """Give up: every message that is left, with an error reply.

        A grid that can (``cancel``) ends what still works at them.
        """
        if cancel := getattr(self.grid, "cancel", None):
            cancel(list(self.pending))
        late = [(sent.message, NO_REPLY, "no reply") for sent in self._waited_for()]
        unsent = [(message, NOT_SENT, "not sent") for message in self.waiting]
        self.pending.clear()
        self.waiting.clear()
        return [
            (message, _error(message, code, f"{what} within {timeout:g} s"))
            for message, code, what in late + unsent
        ]

    def _send(self) -> list[tuple[Message, Message]]:
        """Fill the window; returns the messages that could not be sent, with an error reply."""
        failed: list[tuple[Message, Message]] = []
        while self.waiting and len(self.pending) < self.window:
            count = min(len(self.waiting), self.window - len(self.pending), BATCH)
            batch = [self.waiting.popleft() for _ in range(count)]
            # Flower answers [] if the request was too large
            pushed: list[Any] = list(self.grid.push_messages(batch)) or [None] * count
            for identity, message in zip(pushed, batch, strict=True):
                if identity:
                    self.pending[identity] = _Sent(message, time.monotonic())
                else:
                    error = _error(message, NOT_SENT, "the message could not be sent")
                    failed.append((message, error))
        return failed


def exchange(
    grid: Grid, messages: Iterable[Message], timeout: float
) -> Iterator[tuple[Message, Message]]:
    """Yield every message with its reply, as they arrive; missing ones become error replies."""
    deadline = time.monotonic() + timeout
    mail = Mail(grid)
    mail.add(messages)
    while mail:
        yield from mail.poll()
        if time.monotonic() > deadline:
            break
        for message in mail.remind(timeout):
            log.warning("node %d is asked again: no reply yet", message.metadata.dst_node_id)
        if mail.pending:
            mail.pause()
    yield from mail.close(timeout)


def replies(
    grid: Grid, messages: Mapping[str, Message], timeout: float, limit: int = QUERY_BYTES
) -> Iterator[tuple[str, Reply]]:
    """Send clients a message each; yield the replies as they come, each read within ``limit``."""
    whose = {id(message): client for client, message in messages.items()}
    for sent, message in exchange(grid, messages.values(), timeout):
        yield whose[id(sent)], read_reply(message, limit)


def _error(message: Message, code: int, reason: str) -> Message:
    if not message.metadata.message_id:  # never pushed: give it an id, so that it can be answered
        posted(message, f"unsent-{id(message):x}")
    return Message(Error(code=code, reason=reason), reply_to=message)

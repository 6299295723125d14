"""The ClientApp: message -> NumPyClient -> message.

The messages of a simulated client may reach different processes. So this module keeps nothing but
caches of its process. A failure becomes a reply that names the reason.
"""

import hashlib
import json
import math
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhet import errors
from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import check_kind, envelope, from_run_config
from fedhet.config.registry import find_method
from fedhet.config.schema import METRICS, RunConfig
from fedhet.errors import Code, Damaged, Refused, RunFailed, UserError, brief, coded, one_line
from fedhet.files import check_id, folder_size
from fedhet.models.names import parse
from fedhet.models.zoo import build_model
from fedhet.plugins import giving
from fedhet.protocol import messages
from fedhet.protocol.checks import read_arrays, read_instruction
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.messages import QUERY, Reply, answer, message_bytes, to_wire
from fedhet.rng import one_blas_thread
from fedhet.site import limits, local_data
from fedhet.site.limits import NOTHING, History, say, state_root
from fedhet.site.local_data import LocalData
from fedhet.site.privacy import UploadProtection
from fedhet.site.state import DATA, SUM_KEY, FileStore
from fedhet.sums import masks
from fedhet.sums.client import Member, NodeCertificate, SumProtection, cannot_prove
from fedhet.sums.masks import Cohort, Introduction, SumTerms, Survivors
from fedhet.training.loop import Recent, without_denormals

# Failures that are not bugs, each with its code. They are reported without a traceback.
KNOWN: dict[type[Exception], Code] = {
    Damaged: Code.CONFIGURATION,  # before its base
    RunFailed: Code.NOT_FINITE,
    torch.OutOfMemoryError: Code.MEMORY,
    MemoryError: Code.MEMORY,
    UserError: Code.CONFIGURATION,
}
RUN = "run"  # record with the configuration, where the app's own run config does not have it
# Places of which this process has printed a traceback; a run clears it.
shown: Recent[tuple[object, ...], bool] = Recent(1000)


@dataclass(frozen=True)
class OwnSite:
    """What an app of somebody's own brings to a client: see :mod:`fedhet.app`.

    Client k has model k mod their number. ``objects`` are what names stand for that cannot be
    imported. ``data`` returns the examples of the node with this context.
    """

    models: Sequence[str]
    objects: Mapping[str, Any]
    data: Callable[[Context, RunConfig], LocalData]


def own_name(context: Context) -> str:
    """Return the client's id in an app of somebody's own, by its node's configuration."""
    node = context.node_config
    return check_id(str(node.get("name", node.get("partition-id", context.node_id))))


@lru_cache(maxsize=4)
def parsed(text: str) -> RunConfig:
    """Return the run's configuration, parsed once per process."""
    return from_run_config({"config": text})[0]


def set_process(config: RunConfig) -> None:
    """Apply the run's settings to this process. Called for every message: runs may alternate."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits from cuBLAS
    torch.set_num_threads(config.threads)
    one_blas_thread()
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    torch.backends.cudnn.deterministic = True
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class Request:
    """One message that was read and allowed, with everything that its answer needs.

    Raises Refused for a run that the site does not allow, or for an invalid instruction.
    """

    def __init__(
        self, message: Message, context: Context, run_config: Mapping[str, Any],
        history: History = NOTHING, own: OwnSite | None = None,
    ) -> None:  # fmt: skip
        self.message, self.context, self.own = message, context, own
        self.kind, self.node = message.metadata.message_type, context.node_config
        self.untold: Sequence[str] = ()  # names of classes of this node's own that take no part
        self.limits = limits.read_limits(self.node)
        limits.check_modules(self.limits, run_config)  # before any of them is imported
        # Of plain `flwr run` the scalars are the configuration.
        self.text = str(run_config.get("config") or envelope(from_run_config(run_config)[0], {}))
        self.config = parsed(self.text)
        set_process(self.config)
        self.simulated = is_simulated()
        self.method = find_method(self.config.method)
        self.limits.check("max_download_bytes", message_bytes(message))
        self.what = read_instruction(message, self.config)
        if self.what.refused:
            return
        if not self.simulated:
            limits.check_means(self.limits, history, lambda: cannot_prove(self.node))
            self.limits.check("max_disk", folder_size(state_root(self.node)))
        shares, experiment = self.method.client.shares_model, self.what.experiment
        limits.check_run(self.limits, self.config, history, experiment, shares_model=shares)

    @cached_property
    def data(self) -> LocalData:
        """This client's id and examples, without classes that are too rare to take part."""
        with coded(Code.DATA):
            if self.own is None:
                data = local_data.load_local(self.config, self.node, simulated=self.simulated)
            else:
                data = self.own.data(self.context, self.config)
        self.limits.check_columns(data.dataset.inputs.columns)
        if not self.simulated:
            self._check_same_data(data)
        least = self.limits.min_class
        data, rare = local_data.without_rare(data, least) if least else (data, [])
        if self.node.get("data-dir") and not self.config.classes:
            self.untold = rare
        if rare and self.kind == QUERY:
            say(lambda: f"classes with fewer than min-class={least} training "
                f"examples take no part: {', '.join(rare)}")  # fmt: skip
        return data

    def _check_same_data(self, data: LocalData) -> None:
        """Raise Refused if a deployed client's data are not those of its state of this run."""
        store, own = self.store(data.client), {"digest": data.dataset.digest}
        note, begun = store.read_note(DATA), self.what.generation > 0
        if note not in (None, own) or (note is None and begun and store.generations()):
            text = "this node's data are not those that it had in this run: give them back, or"
            word = "other data than before"
            raise Refused(f"{text} begin anew with fedhet node --new-data", Code.DATA, word)
        if note is None and self.kind != QUERY and not begun:
            store.write_note(DATA, own)

    def device(self) -> torch.device:
        """Return where this client trains; on a GPU by deterministic algorithms."""
        with coded(Code.DEVICE):
            device = local_data.choose_device(self.config, self.node)
        torch.set_deterministic_debug_mode("warn" if device.type == "cuda" else "default")
        return device

    def model(self) -> str:
        """Return the name of the model that this client trains."""
        data, simulated = self.data, self.simulated
        if self.own is not None:
            return self.own.models[data.index % len(self.own.models)]
        with coded(Code.MODEL):
            return local_data.assigned_model(self.config, self.node, data, simulated=simulated)

    def store(self, client: str) -> FileStore:
        """Return where its private state is; the server names a place in a simulation only.

        Raises Refused for a run that began with masked sums and has none now.
        """
        for name in (self.what.experiment, client):
            check_id(name)
        root = Path(self.what.state_dir) if self.simulated else state_root(self.node)
        store = FileStore(root / self.what.experiment / client, sync=not self.simulated)
        if self.config.secure_sum != "masked" and store.read_note(SUM_KEY) is not None:
            raise Refused("this run began with secure-sum=masked, which is now off")
        return store

    def client(self) -> MethodClient[Any]:
        """Return the method's client, for this message."""
        return self.method.client(Setup(
            self.config, self.data, self.what.classes, self.model(), self.device(),
            self.store(self.data.client), simulated=self.simulated, limits=self.limits,
            protection=self.part or UploadProtection(),
        ))  # fmt: skip

    def member(self) -> Member:
        """Return this client in the sums of the run; a node's own examples are not opened."""
        if self.own is not None:
            client = own_name(self.context)
        elif self.node.get("data-dir") and not self.simulated:
            client = check_id(str(self.node.get("name", "")), "node-config name")
        else:  # without the checks of `data`, which note what a run began with
            client = local_data.load_local(self.config, self.node, simulated=self.simulated).client
        fewest = max(self.config.sum_min, self.limits.min_sum or 0)  # a site's may be stricter
        terms = SumTerms(fewest, self.config.sum_threshold)
        return Member(self.store(client), self.what.experiment, client, terms)

    def about(self, kind: type[messages.Wired]) -> messages.Wired:
        """Return what the record ``sum`` says; raise Refused if it is no ``kind``."""
        with errors.refusing(Code.INSTRUCTION):
            record = self.message.content.config_records.get(messages.SUM)
            about, opens = messages.from_wire(kind, record or {}), self.kind == messages.UNMASK
            if isinstance(about, Survivors) and (about.boxes is not None) != opens:
                raise ValueError("boxes: only messages that unmask have them")
        return about

    @cached_property
    def part(self) -> SumProtection | None:
        """This client's part of the sum that is asked for; None if none is."""
        kind, config, what, method = self.kind, self.config, self.what, self.method.strategy
        if not config.summed or kind not in {messages.TRAIN, messages.OWNERS, messages.CONFUSION}:
            return None
        data, cohort = self.data, self.about(Cohort)
        with errors.refusing(Code.INSTRUCTION):  # for a size that fits no word
            masks.fraction_bits(cohort.size, config.sum_range)
        # The digest of all that must be the same for everybody whose vectors are summed.
        record = self.message.content.array_records.get("arrays")
        sent = bytes(record[messages.PACKED].data) if record else b""
        may = "all" if cohort.shared is None else ",".join(map(str, cohort.shared))
        same: list[masks.Part] = [kind, sent, self.text, cohort.size, int(what.evaluate), may]
        digest = hashlib.sha256(masks.encode([*same, *what.classes])).digest()
        member, fewest = self.member(), self.limits.min_class or 0
        part = SumProtection(data, config, method, what, cohort, digest, member, fewest)
        counted = config.sum_owners > 1 and (kind == messages.CONFUSION or method.sends_class_rows)
        if kind != messages.OWNERS and counted != (part.shared is not None):
            raise Refused("owners of classes must be counted before their rows are summed")
        return part


Handler = Callable[[Request], Reply]


# --- messages ----------------------------------------------------------------------------------


def _answered(handler: Handler, own: OwnSite | None, message: Message, context: Context) -> Message:
    history = NOTHING if is_simulated() else History(state_root(context.node_config))
    sent = message.content.pop(RUN, None) if own is not None else None
    run_config = context.run_config if sent is None else {"config": str(sent["config"])}
    try:
        with (
            without_denormals(), giving({} if own is None else own.objects),
            history.asked(message, run_config) as replies,
        ):  # fmt: skip
            asked = Request(message, context, run_config, history, own)
            part, before = asked.part, None
            if part is not None:
                before = part.member.repeated(part.what.round, part.cohort, part.sent)
            replies.append(before or handler(asked))
            return answer(message, replies[-1])
    except (Exception, SystemExit) as error:  # a client's fault, which the server is told
        return answer(message, _failure(error, message, context))


def query(asked: Request) -> Reply:
    """Say who this node is: client id, classes and images, model, device.

    Raises, with the reason, for what would fail in every round.
    """
    config, node, refused = asked.config, asked.node, asked.what.refused
    if refused:
        say(lambda: f"this run does without this node: {one_line(refused)}")
        return Reply({})
    data, of = asked.data, asked.data.dataset
    if config.summed and node.get("data-dir") and not config.classes:
        text = "secure-sum needs `classes` in the run's configuration: without it, the names of"
        raise Refused(f"{text} this node's folders would be its class list", Code.CLASSES)
    check_kind(config, of.inputs.kind)
    if node.get("model"):
        with coded(Code.MODEL), torch.random.fork_rng(devices=[]):
            width = config.representation
            build_model(str(node["model"]), classes=len(of.classes), d=width, inputs=of.inputs)
    folder = asked.store(data.client).folder  # refused where the run began with masked sums
    say(lambda: f"run {config.name or config.method}: state in {folder}")
    info: dict[str, Any] = {
        "client": data.client, "clients": data.clients,
        "classes": [name for name in of.classes if name not in asked.untold],
        "model": parse(asked.model()).public, "device": str(asked.device()),
        "inputs": json.dumps(of.inputs.dump()),
    }  # fmt: skip
    if config.summed:
        with coded(Code.PROOF):
            key = asked.member().key(NodeCertificate.of(node))
        return Reply(info | {"sum-key": list(astuple(key))})
    counts, images = data.class_counts(), len(data.split.train)
    counted = {"seen": list(counts), "images": list(counts.values()), "train-images": images}
    return Reply(info | counted)


def train(asked: Request) -> Reply:
    """Train for one round."""
    started, what, message, client = time.monotonic(), asked.what, asked.message, asked.client()
    arrays, images, metrics = client.fit(read_arrays(message), to_wire(what))
    numbers, digest = {k: float(v) for k, v in metrics.items()}, client.saved_digest
    if asked.part is None:
        sent = {"num-examples": float(images)} | numbers
        reply = what.reply(asked.data.client, sent, arrays, digest=digest)
    else:
        reply = asked.part.trained(numbers, digest)
    asked.limits.check("max_upload_bytes", sum(array.nbytes for array in reply.arrays))
    seconds = time.monotonic() - started
    scored = ", ".join(
        f"test {METRICS[name].title} {METRICS[name].text(numbers[key])}"
        for name in dict.fromkeys(["accuracy", asked.config.metric])
        if not math.isnan(numbers.get(key := f"test_{name}", math.nan))
    )
    say(lambda: (
        f"round {what.round}: {scored or 'not evaluated'}, {seconds:.1f} s, "
        f"{message_bytes(message):,} bytes received, {message_bytes(answer(message, reply)):,} sent"
    ))  # fmt: skip
    return reply


def introduce(asked: Request) -> Reply:
    """Keep the keys of the other members of the run's sums; say whose are not accepted."""
    with errors.refusing(Code.INSTRUCTION):
        keys = asked.about(Introduction).by_client()
    member, node = asked.member(), NodeCertificate.of(asked.node)
    strangers = member.introduce(keys, node.ca if node is not None else None)
    return Reply({"client": member.client, "strangers": strangers})


def sign(asked: Request) -> Reply:
    """Sign the list of survivors. Needs no examples."""
    survivors = asked.about(Survivors)
    member, what, node = asked.member(), asked.what, NodeCertificate.of(asked.node)
    if node is None:
        raise Refused("this node has no certificate", Code.PROOF)
    signature = member.sign(what.round, survivors, node.key)
    return what.reply(member.client, signature=signature)


def open_shares(asked: Request) -> Reply:
    """Open the boxes for this client, which unmask the round's sum. Needs no examples."""
    survivors = asked.about(Survivors)
    return Reply(to_wire(asked.member().open_shares(asked.what.round, survivors)))


def owners(asked: Request) -> Reply:
    """Answer with this client's part of a sum: its classes."""
    if asked.part is None:
        raise Refused("this run has no sums", Code.INSTRUCTION)
    return asked.part.owners()


def confusion(asked: Request) -> Reply:
    """Count after the last round how often each class was taken for each other one."""
    what = asked.what
    matrix = asked.client().confusion_matrix(what.generation, what.digest)
    if asked.part is not None:
        return asked.part.confusion(matrix.numpy())
    places = matrix.nonzero()
    cells = torch.cat([places, matrix[tuple(places.T)][:, None]], dim=1)
    return what.reply(asked.data.client, confusion=cells.flatten().tolist())


def evaluate(asked: Request) -> Reply:
    """Return the accuracy of a client that did not train in this round."""
    if asked.config.summed and asked.config.sum_metrics:
        raise Refused("with sum-metrics a single accuracy is not sent", Code.INSTRUCTION)
    _, images, metrics = asked.client().evaluate([], to_wire(asked.what))
    told = {} if asked.config.summed else {"num-examples": float(images)}
    return asked.what.reply(asked.data.client, told | {k: float(v) for k, v in metrics.items()})


def _failure(error: BaseException, message: Message, context: Context) -> Reply:
    """Return the error reply: a code and a log number, or the text in a simulation."""
    known = (code for kind, code in KNOWN.items() if isinstance(error, kind))
    code, about = next(known, Code.UNEXPECTED), {}
    text = brief(error)[:400]  # the server cuts a reason at 500 characters
    if isinstance(error, UserError):
        code, about = Code(error.code or code), {"about": error.about} if error.about else {}
    if code is Code.UNEXPECTED:
        frames = traceback.extract_tb(error.__traceback__)
        key = (type(error), *((frame.filename, frame.lineno) for frame in frames))
        if shown.get(key) is None:  # else the same error in the same place was printed before
            shown.put(key, True)
            config: Mapping[str, Any] = message.content.config_records.get("config") or {}
            round_ = config.get("round")  # of anybody: any value
            where = f", round {round_}" if type(round_) is int and round_ > 0 else ""
            step = f"client {own_name(context)}, {message.metadata.message_type}{where}"
            print(errors.shortened(error, step), file=sys.stderr, flush=True)
        text += errors.place(error)
    if isinstance(error, torch.OutOfMemoryError):
        text = f"out of GPU memory: fewer actors, or a smaller batch-size, need less ({text})"
    lost = code is Code.STATE_LOST
    if is_simulated():
        return Reply({"error": text, "state-lost": lost})
    if code is Code.LIMITS_FILE and error.__cause__ is not None:
        text = one_line(f"{text} ({error.__cause__})")  # what is wrong with the site's own file
    number = 1 + secrets.randbelow(errors.MOST)
    print(f"fedhet: failed (no. {number}): {text}", file=sys.stderr, flush=True)
    return Reply({"error": code.value, "log": number, "state-lost": lost, **about})


# --- the apps ----------------------------------------------------------------------------------

HANDLERS: dict[str, Handler] = {  # by kind of message
    messages.QUERY: query, messages.INTRODUCE: introduce, messages.TRAIN: train,
    messages.OWNERS: owners, messages.AGREE: sign, messages.UNMASK: open_shares,
    messages.EVALUATE: evaluate, messages.CONFUSION: confusion,
}  # fmt: skip


def make_app(own: OwnSite | None = None) -> ClientApp:
    """Return a ClientApp of ours, or one with somebody's ``own`` data and models."""
    made = ClientApp()
    for kind, handler in HANDLERS.items():
        name, *action = kind.split(".")
        getattr(made, name)(*action)(partial(_answered, handler, own))
    return made


app = make_app()

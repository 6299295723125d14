"""The ClientApp: message -> NumPyClient -> message, and nothing else.

In a deployment every message is a fresh process, in a simulation a client hops between Ray
actors; so nothing is kept here but per-process caches, and a failure is answered with a reason.
"""

import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhet.clients.base import MethodClient, Setup
from fedhet.config import envelope, find_method, from_run_config
from fedhet.errors import HookError, RunFailedError, UserError, brief, one_line
from fedhet.ids import check_id
from fedhet.models import build_model
from fedhet.models.names import with_weights
from fedhet.node.budget import BudgetError
from fedhet.node.context_state import ContextStore
from fedhet.node.limits import Asked, LimitError, Limits, check_run, check_upload, read_limits
from fedhet.node.public import own_copy, public_digest
from fedhet.node.site import LocalData, assigned_model, choose_device, load_local
from fedhet.node.state import FileStore, StateError, StateLostError, StateStore
from fedhet.protocol.downloads import read_arrays, read_instruction
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.messages import Instruction, answer, message_bytes
from fedhet.protocol.reasons import Refused, Word, new_number, telling
from fedhet.schema import RunConfig
from fedhet.training.denormals import without_denormals

LONGEST = 400  # characters of an error's text; the server cuts a reason at 500
# What may happen without a mistake in any program, and the word for it: a line says all of it.
KNOWN: dict[type[Exception], Word] = {
    StateLostError: Word.STATE_LOST,
    StateError: Word.STATE,
    BudgetError: Word.BUDGET,
    RunFailedError: Word.NOT_FINITE,
    torch.OutOfMemoryError: Word.MEMORY,
    MemoryError: Word.MEMORY,
    UserError: Word.CONFIGURATION,
    HookError: Word.METHOD,
}
app = ClientApp()
shown: set[tuple[object, ...]] = set()  # places of which this process has printed a traceback


@lru_cache(maxsize=4)
def _parsed(text: str) -> RunConfig:
    """The run's configuration, parsed once per process."""
    return from_run_config({"config": text})[0]


def _set_process(config: RunConfig) -> None:
    """Set what belongs to the process, for every message: another run's may have come between."""
    # The same bits from cuBLAS every time. Not at import: a fork of the warm server has imported
    # this module before it got its environment.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    torch.backends.cudnn.deterministic = True
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _config(context: Context) -> RunConfig:
    text = str(context.run_config.get("config", ""))
    if not text:  # plain `flwr run`: the scalars are the configuration
        text = envelope(from_run_config(context.run_config)[0], {})
    config = _parsed(text)
    _set_process(config)
    return config


def _store(
    config: RunConfig, context: Context, what: Instruction, client: str, *, simulated: bool
) -> StateStore:
    if config.state_backend == "context":
        return ContextStore(context.state, client)
    for name in (what.experiment, client):
        check_id(name)
    home = Path.home() / ".fedhet" / "state"
    root = what.state_dir if simulated else str(context.node_config.get("state-dir") or home)
    return FileStore(Path(root) / what.experiment / client, sync=not simulated)


def _out_of_memory() -> str:
    """How many actors would fit on this GPU, by what this one had at its peak."""
    free, total = torch.cuda.mem_get_info()
    peak = torch.cuda.max_memory_reserved()
    fit = max(1, int(total * 0.95 // max(1, peak)))
    return (
        f"out of GPU memory: this process had {peak / 2**30:.1f} GiB of {total / 2**30:.1f} GiB, "
        f"{free / 2**30:.1f} GiB are free: {fit} actor(s) of this size would fit; set actors={fit} "
        "or a smaller batch-size"
    )


def _answered(message: Message, handler: Callable[[], Message]) -> Message:
    """Run ``handler``; whatever it raises becomes a reply that names the reason."""
    try:
        with without_denormals():
            return handler()
    except Exception as error:  # a client's fault must reach the server as one line
        return _failure(message, error)


def _failure(message: Message, error: Exception) -> Message:
    """The reply to what could not be done: a word and where to look, or, simulated, the text."""
    known = isinstance(error, (Refused, *KNOWN)) and not isinstance(error, HookError)
    if not known:
        _show(error)
    text = brief(error)[:LONGEST] + ("" if known else _where(error))
    if isinstance(error, torch.OutOfMemoryError):
        text = _out_of_memory()
    lost = isinstance(error, StateLostError)
    if is_simulated():
        return answer(message, {"error": text, "state-lost": lost})
    if isinstance(error, LimitError) and error.__cause__ is not None:
        text = one_line(f"{text} ({error.__cause__})")  # what is wrong with the site's own file
    number = new_number()
    print(f"fedhet: failed (no. {number}): {text}", file=sys.stderr, flush=True)
    return answer(message, {"error": word_of(error).value, "log": number, "state-lost": lost})


def word_of(error: Exception) -> Word:
    """What a deployed node says of an error."""
    if isinstance(error, Refused | UserError) and error.word:
        return Word(error.word)
    return next((word for kind, word in KNOWN.items() if isinstance(error, kind)), Word.UNEXPECTED)


def _show(error: Exception) -> None:
    """Print the traceback, unless one of the same error in the same place was printed before."""
    frames = traceback.extract_tb(error.__traceback__)
    key = (type(error), *((frame.filename, frame.lineno) for frame in frames))
    if key not in shown:
        shown.add(key)
        traceback.print_exception(error)


def _say(text: Callable[[], str]) -> None:
    """A line for the owner of a node, which `fedhet node` finds in what Flower prints."""
    if os.environ.get("FEDHET_NODE"):
        print(f"fedhet: {text()}", file=sys.stderr, flush=True)


def _where(error: Exception) -> str:
    """The last line of ours or the user's that an error came through, as ``(x.py:7)``."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    last = (own or frames)[-1]
    return f" ({Path(last.filename).name}:{last.lineno})"


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this node is: client id, classes and images, model, device."""

    def handler() -> Message:
        config, simulated = _config(context), is_simulated()
        what = _asked(message, config, _allowed(config, context.node_config))
        if what.refused:
            _say(lambda: f"this run does without this node: {one_line(what.refused)}")
            return answer(message, {})
        with telling(Word.DATA):
            data = load_local(config, context.node_config, simulated=simulated)
        counts = data.class_counts()
        method = find_method(config.method)
        hidden = not method.client.reveals_classes(config, config.params)
        _check_own_choices(config, context.node_config, data, hidden=hidden)
        public = {}
        if method.strategy.public_set == "everybody":
            with telling(Word.PUBLIC):
                own = own_copy(config, context.node_config, simulated=simulated)
                public["public"] = public_digest(own)
        with telling(Word.DEVICE):
            device = choose_device(config, context.node_config)
        with telling(Word.MODEL):
            model = assigned_model(config, context.node_config, data, simulated=simulated)
        return answer(
            message,
            {
                "client": data.client,
                "clients": data.clients,
                "classes": list(data.dataset.classes),
                "seen": [] if hidden else list(counts),
                "images": [] if hidden else list(counts.values()),
                "train-images": sum(counts.values()),
                "model": with_weights(model)[0],
                "device": str(device),
                **public,
                "inputs": data.dataset.inputs.text(),
            },
        )

    return _answered(message, handler)


def _asked(message: Message, config: RunConfig, limits: Limits) -> Instruction:
    """What a message asks for, once it is small enough and makes sense."""
    limits.check_download_size(message_bytes(message))
    return read_instruction(message, config)


def _allowed(config: RunConfig, node: Mapping[str, Any]) -> Limits:
    """The site's limits; LimitError if this run breaks one."""
    limits, method = read_limits(node), find_method(config.method).client
    asked = Asked(method.shares_model, method.reveals_classes(config, config.params))
    check_run(limits, config, asked)
    return limits


def _check_own_choices(
    config: RunConfig, node: Mapping[str, Any], data: LocalData, *, hidden: bool
) -> None:
    """Refuse in the handshake what would fail in every round; raises with the reason."""
    if hidden and node.get("data-dir") and not config.classes:
        raise Refused(
            "hide-classes needs `classes` in the run's configuration: without it, the names of "
            "this node's folders would be its class list",
            Word.CLASSES,
        )
    kind = data.dataset.inputs.kind
    refuses = find_method(config.method).strategy.refuses
    if kind in refuses:
        raise UserError(f"method: '{config.method}' does not work with {kind}: {refuses[kind]}")
    if node.get("model"):
        with telling(Word.MODEL), torch.random.fork_rng(devices=[]):
            build_model(
                str(node["model"]),
                classes=len(data.dataset.classes),
                d=config.representation,
                inputs=data.dataset.inputs,
            )


def _client(
    what: Instruction, config: RunConfig, limits: Limits, context: Context
) -> tuple[MethodClient[Any], LocalData]:
    simulated = is_simulated()
    with telling(Word.DATA):
        data = load_local(config, context.node_config, simulated=simulated)
    with telling(Word.DEVICE):
        device = choose_device(config, context.node_config)
    setup = Setup(
        config=own_copy(config, context.node_config, simulated=simulated),
        data=data,
        classes=what.classes,
        model=assigned_model(config, context.node_config, data, simulated=simulated),
        device=device,
        store=_store(config, context, what, data.client, simulated=simulated),
        simulated=simulated,
        limits=limits,
    )
    return find_method(config.method).client(setup), data


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    started = time.monotonic()

    def handler() -> Message:
        config = _config(context)
        limits = _allowed(config, context.node_config)
        what = _asked(message, config, limits)
        client, data = _client(what, config, limits, context)
        arrays, images, metrics = client.fit(
            read_arrays(message),
            {
                "round": what.round,
                "generation": what.generation,
                "state": what.state,
                "evaluate": what.evaluate,
            },
        )
        check_upload(limits, sum(array.nbytes for array in arrays))
        numbers = {"num-examples": float(images)} | {k: float(v) for k, v in metrics.items()}
        info = {"client": data.client, "round": what.round, "state": client.saved}
        reply = answer(message, info, numbers, arrays)
        seconds, accuracy = time.monotonic() - started, numbers.get("test_accuracy", math.nan)
        _say(
            lambda: (
                f"round {what.round}: test accuracy {accuracy:.2f} %, {seconds:.1f} s, "
                f"{message_bytes(message):,} bytes received, {message_bytes(reply):,} sent"
            )
        )
        return reply

    return _answered(message, handler)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of a client that did not train in this round."""

    def handler() -> Message:
        config = _config(context)
        limits = _allowed(config, context.node_config)
        what = _asked(message, config, limits)
        client, data = _client(what, config, limits, context)
        _, images, metrics = client.evaluate(
            [], {"generation": what.generation, "state": what.state}
        )
        numbers = {"num-examples": float(images)} | {k: float(v) for k, v in metrics.items()}
        return answer(message, {"client": data.client, "round": what.round}, numbers)

    return _answered(message, handler)

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
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhet.clients.base import round_config
from fedhet.errors import HookError, RunFailedError, UserError, brief, one_line
from fedhet.models import build_model
from fedhet.models.names import with_weights
from fedhet.protocol.checks import read_arrays
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.messages import Reply, answer, message_bytes
from fedhet.protocol.reasons import Refused, Word, new_number, telling
from fedhet.request import Request
from fedhet.site.budget import BudgetError
from fedhet.site.limits import LimitError, check_upload
from fedhet.site.local_data import LocalData
from fedhet.site.public_set import own_copy, public_digest
from fedhet.site.state import StateError, StateLostError
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
        asked = Request(message, context)
        what, config = asked.what, asked.config
        if what.refused:
            _say(lambda: f"this run does without this node: {one_line(what.refused)}")
            return answer(message, {})
        data = asked.data()
        _check_own_choices(asked, data)
        public = {}
        if asked.method.strategy.public_set == "everybody":
            with telling(Word.PUBLIC):
                own = own_copy(config, asked.node, simulated=asked.simulated)
                public["public"] = public_digest(own)
        return answer(
            message,
            {
                "client": data.client,
                "clients": data.clients,
                "classes": list(data.dataset.classes),
                **_told(asked, data),
                "model": with_weights(asked.model(data))[0],
                "device": str(asked.device()),
                **public,
                "inputs": data.dataset.inputs.text(),
            },
        )

    return _answered(message, handler)


def _told(asked: Request, data: LocalData) -> dict[str, Any]:
    """Which classes a client has, and how many images of each; with sums its key instead."""
    if asked.config.summed:
        return dict(_sums().own_key(asked, data.client))
    asked.store(data.client)  # refused where the run began with masked sums
    counts = data.class_counts()
    images = list(counts.values())
    return {"seen": list(counts), "images": images, "train-images": sum(images)}


def _check_own_choices(asked: Request, data: LocalData) -> None:
    """Refuse in the handshake what would fail in every round; raises with the reason."""
    config, node = asked.config, asked.node
    if config.summed and node.get("data-dir") and not config.classes:
        raise Refused(
            "secure-sum needs `classes` in the run's configuration: without it, the names of "
            "this node's folders would be its class list",
            Word.CLASSES,
        )
    kind = data.dataset.inputs.kind
    refuses = asked.method.strategy.refuses
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


def _sums() -> ModuleType:
    """The part of runs with sums, which no other needs to import."""
    return import_module("fedhet.sums.client")


@app.query("introduce")
def introduce(message: Message, context: Context) -> Message:
    """Keep the keys of those with whom there will be sums."""

    def handler() -> Message:
        return answer(message, _sums().introduce(Request(message, context)))

    return _answered(message, handler)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    started = time.monotonic()

    def handler() -> Message:
        asked = Request(message, context)
        reply, own = _sums().train(asked) if asked.config.summed else _trained(asked)
        check_upload(asked.limits, sum(array.nbytes for array in reply.arrays))
        sent = answer(message, reply.info, reply.metrics, reply.arrays)
        seconds, accuracy = time.monotonic() - started, own.get("test_accuracy", math.nan)
        _say(
            lambda: (
                f"round {asked.what.round}: test accuracy {accuracy:.2f} %, {seconds:.1f} s, "
                f"{message_bytes(message):,} bytes received, {message_bytes(sent):,} sent"
            )
        )
        return sent

    return _answered(message, handler)


def _trained(asked: Request) -> tuple[Reply, Mapping[str, float]]:
    """The upload and all the numbers, for the server's eyes."""
    client, what = asked.client(), asked.what
    arrays, images, metrics = client.fit(read_arrays(asked.message), round_config(what))
    numbers = {"num-examples": float(images)} | {k: float(v) for k, v in metrics.items()}
    info = {"client": client.setup.data.client, "round": what.round, "state": client.saved}
    return Reply(info, numbers, arrays), numbers


@app.train("owners")
def owners(message: Message, context: Context) -> Message:
    """Say, in a sum, which classes this client has."""

    def handler() -> Message:
        reply = _sums().owners(Request(message, context))
        return answer(message, reply.info, {}, reply.arrays)

    return _answered(message, handler)


@app.train("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Hand over what makes the round's sum readable, and nothing else."""

    def handler() -> Message:
        return answer(message, _sums().unmask(Request(message, context)))

    return _answered(message, handler)


@app.evaluate("confusion")
def confusion(message: Message, context: Context) -> Message:
    """After the last round: how often each class was taken for each other one."""

    def handler() -> Message:
        asked = Request(message, context)
        if asked.config.summed:
            reply = _sums().confusion(asked)
            return answer(message, reply.info, {}, reply.arrays)
        client, what = asked.client(), asked.what
        matrix = client.finish(what.generation, what.state)
        places = matrix.nonzero()
        cells = torch.cat([places, matrix[tuple(places.T)][:, None]], dim=1)
        info = {"client": client.setup.data.client, "round": what.round}
        return answer(message, {**info, "confusion": cells.flatten().tolist()})

    return _answered(message, handler)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of a client that did not train in this round."""

    def handler() -> Message:
        asked = Request(message, context)
        if asked.config.summed and asked.config.sum_metrics:
            raise Refused("an accuracy of one client alone is not told", Word.INSTRUCTION)
        client, what = asked.client(), asked.what
        _, images, metrics = client.evaluate(
            [], {"generation": what.generation, "state": what.state}
        )
        numbers = {k: float(v) for k, v in metrics.items()}
        if not asked.config.summed:
            numbers["num-examples"] = float(images)
        info = {"client": client.setup.data.client, "round": what.round}
        return answer(message, info, numbers)

    return _answered(message, handler)

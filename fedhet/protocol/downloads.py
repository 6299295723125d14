"""Checks of what comes down, before anything is built from it: the client's twin of ``checks``.

A server is not believed. A message is measured before it is decoded (``Limits``), its instruction
has exactly the keys that there are, of their types and within bounds, and a payload is held against
what the client's own method says must come (``expect_download`` and ``check_download``). What fails
is refused with one line, and the client's state stays as it was.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from fedhet.config.schema import RunConfig
from fedhet.files import is_id
from fedhet.protocol.checks import Rejected, check_shapes
from fedhet.protocol.identity import MAX_TEXT
from fedhet.protocol.messages import (
    INTRODUCE,
    OWNERS,
    TRAIN,
    UNMASK,
    Instruction,
    arrays_of,
    instruction,
)
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.reasons import Refused, Word

BLOCK = 1 << 16  # floats that are float64 at a time: they stay in the cache
DIGEST = r"[0-9a-f]{64}"
NUMBERS = {np.dtype(code) for code in "?bhilBHILefd"}


def read_instruction(message: Message, config: RunConfig) -> Instruction:
    """The instruction of a request; Refused, in one line, if any part of it is not plausible."""
    kind = message.metadata.message_type
    try:
        what = instruction(message)
        if kind != TRAIN and message.content.array_records:
            raise ValueError(f"arrays came with a message of kind '{kind}'")
        masked = config.secure_sum == "masked"
        sums = {TRAIN: config.summed, OWNERS: config.summed, INTRODUCE: masked, UNMASK: masked}
        summed = sums.get(kind, False)
        if ("sum" in message.content) != summed:
            raise ValueError(f"a message of kind '{kind}' with{'out' * summed} a sum")
        _check_numbers(what, kind, config)
        _check_names(what, config)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    return what


def _check_numbers(what: Instruction, kind: str, config: RunConfig) -> None:
    """A round of this run, and a generation that it may start from, named by its digest."""
    if what.refused and kind != "query":
        raise ValueError(f"a refusal came with a message of kind '{kind}'")
    if kind in {"query", INTRODUCE, UNMASK} and (what.generation or what.state):
        raise ValueError(f"generation {what.generation} in a message of kind '{kind}'")
    if kind not in {TRAIN, "evaluate", OWNERS, UNMASK}:
        if what.round:
            raise ValueError(f"round {what.round} in a query")
        return
    if not 1 <= what.round <= config.rounds:
        raise ValueError(f"round {what.round} is none from 1 to {config.rounds}")
    if kind == UNMASK:
        return
    if not what.classes:
        raise ValueError("no classes are named")
    most = what.round - (kind in {TRAIN, OWNERS})
    if not 0 <= what.generation <= most:
        raise ValueError(f"generation {what.generation} in round {what.round}: 0 to {most} may be")
    if not re.fullmatch(DIGEST if what.generation else "", what.state):
        raise ValueError(
            f"generation {what.generation} comes "
            + ("without its digest" if what.generation else "with a digest, and has none")
        )


def _check_names(what: Instruction, config: RunConfig) -> None:
    """An experiment's id, and distinct classes: those of the configuration, if it has any."""
    if not is_id(what.experiment):
        raise ValueError("the experiment's id is not allowed")
    if len(what.classes) > max(config.max_classes, len(config.classes)):
        raise ValueError(f"{len(what.classes)} classes, max-classes is {config.max_classes}")
    if len(set(what.classes)) < len(what.classes):
        raise ValueError(f"{len(what.classes)} classes, {len(set(what.classes))} different ones")
    if any(not 1 <= len(name) <= MAX_TEXT or not name.isprintable() for name in what.classes):
        raise ValueError("a class has a name that is not allowed")
    if config.classes and what.classes and what.classes != config.classes:
        raise ValueError("the classes are not those of the run's configuration")


def read_arrays(message: Message) -> list[Array]:
    """The payload's arrays, all plain numbers; Refused for anything else.

    NumPy's reader fails in many ways on what a stranger wrote.
    """
    try:
        arrays = arrays_of(message)
    except Exception as error:
        raise Refused(f"the payload cannot be read: {type(error).__name__}: {error}") from error
    for i, array in enumerate(arrays):
        if array.dtype not in NUMBERS:
            raise Refused(f"array {i} is {array.dtype}: no plain numbers")
    return arrays


def check_dtypes(payload: Payload) -> None:
    """Every array has the dtype that the payload's class names, if it does; Refused otherwise."""
    for i, (array, dtype) in enumerate(zip(payload.flat, payload.dtypes(), strict=True)):
        if dtype is not None and array.dtype != dtype:
            raise Refused(f"array {i} is {array.dtype}, expected {dtype}")


def check_forms(payload: Payload, expected: Payload | None) -> None:
    """Shapes and dtypes are those that are expected, if any are; Refused otherwise.

    An expectation of another class is none: what it says is not about this payload.
    """
    if expected is not None and isinstance(payload, type(expected)):
        try:
            check_shapes(payload.flat, expected.flat)
        except Rejected as error:
            raise Refused(str(error)) from error


def finite_norm(arrays: Sequence[Array]) -> float:
    """L2 norm of all floats; Refused if one is NaN or infinite.

    One pass in float64, block by block: no array is copied whole.
    """
    total = 0.0
    for i, array in enumerate(arrays):
        if array.dtype.kind != "f":
            continue
        flat = array.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK].astype(np.float64)
            total += float(block @ block)
        if not math.isfinite(total):
            raise Refused(f"array {i} holds NaN, infinity or numbers near it")
    return math.sqrt(total)


def check_ids(ids: Array, allowed: Array) -> None:
    """Class ids, ascending, each once and each of those that may come; Refused otherwise."""
    if (np.diff(ids) <= 0).any() or not np.isin(ids, allowed).all():
        raise Refused(f"classes {ids[:20].tolist()}: not ascending ones of {allowed[:20].tolist()}")

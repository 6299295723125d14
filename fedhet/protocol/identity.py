"""Who a client says it is. What it declares here bounds what it may upload later.

Nothing of it is believed as it stands: a declaration is read whole, and only one that makes sense
in every part admits a client.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhet.data.inputs import Inputs, load_inputs
from fedhet.errors import one_line
from fedhet.files import is_id
from fedhet.protocol.messages import Reply
from fedhet.sums.messages import SumKey, key_of

EXACT = 2**53  # counts below are exact as floats, too
MAX_TEXT = 255  # characters of a class's name, as of a file's on most systems
MAX_CLIENTS = 1_000_000
_MODEL = r"[A-Za-z0-9_.:/-]{1,200}"  # a name of ours, or module:factory
_DEVICE = r"[a-z]{1,16}(:\d{1,4})?"


@dataclass(frozen=True)
class Terms:
    """What a run allows its clients to declare."""

    max_images: int = 1_000_000
    max_classes: int = 1_000
    hidden: bool = False  # its clients tell neither their classes nor how many images they have
    masked: bool = False  # they tell a key for sums (secure-sum) instead
    public: str = ""  # what everybody must have as the public data set; empty: clients use none


@dataclass(frozen=True)
class ClientInfo:
    """What a client declared.

    Where it hides its classes ``seen`` and ``images`` are empty, and ``train_images`` is 0.
    """

    client: str
    classes: tuple[str, ...]
    seen_names: tuple[str, ...]
    images: tuple[int, ...]
    train_images: int
    model: str
    device: str
    seen: tuple[int, ...] = ()  # ids in the global class list
    inputs: Inputs | None = None  # what its examples are; None in records older than the question


@dataclass(frozen=True)
class Declaration:
    """One answer of the handshake: the client, and how many it says there are (0: unsaid).

    ``key`` is the client's for sums, where the run has masks; ``warm``: whether messages find a
    process with torch at the node, None if it says nothing.
    """

    info: ClientInfo
    clients: int
    key: SumKey | None = None
    warm: bool | None = None


def read_declaration(reply: Reply, terms: Terms) -> Declaration:
    """A query reply; ValueError with the reason, in one line, if any part makes no sense.

    Classes are distinct names; what the client has seen of them is told with a positive number of
    images each, adding up to its training images, or, where the run hides classes, nothing of it.
    """
    info = reply.info
    client = info.get("client")
    if not isinstance(client, str) or not is_id(client):
        raise ValueError(f"client id {_shown(client)} is not allowed")
    classes = _names(info, "classes", terms)
    if terms.hidden and info.keys() & {"seen", "images", "train-images"}:
        raise ValueError(f"client '{client}' tells its classes or counts, which this run hides")
    seen = () if terms.hidden else _names(info, "seen", terms)
    images = () if terms.hidden else _counts(info, "images", terms)
    given = [] if terms.hidden else [info.get("train-images")]
    total = sum(_counts({"train-images": given}, "train-images", terms))
    who = f"client '{client}'"
    if not classes:
        raise ValueError(f"{who} declares no classes")
    if unknown := sorted(set(seen) - set(classes)):
        raise ValueError(f"{who} has seen class '{unknown[0]}', which is not in its own list")
    if terms.public and info.get("public") != terms.public:
        raise ValueError(
            f"{who} has another public data set: {_shown(info.get('public'))}, the server has "
            f"'{terms.public}'; give both the same images"
        )
    if not terms.hidden and (len(images) != len(seen) or sum(images) != total):
        raise ValueError(
            f"{who} declares {total} training images, but {sum(images)} in {len(images)} counts "
            f"of {len(seen)} classes"
        )
    return Declaration(
        ClientInfo(
            client=client,
            classes=classes,
            seen_names=seen,
            images=images,
            train_images=total,
            model=_matching(info, "model", _MODEL),
            device=_matching(info, "device", _DEVICE),
            inputs=load_inputs(info.get("inputs")),
        ),
        _clients(info.get("clients", 0)),
        key_of(info) if terms.masked else None,
        warm if isinstance(warm := info.get("warm"), bool) else None,
    )


def _matching(info: Any, key: str, pattern: str) -> str:
    value = info.get(key)
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f"{key}: {_shown(value)} is not allowed")
    return value


def _names(info: Any, key: str, terms: Terms) -> tuple[str, ...]:
    """Distinct printable texts, not too many and none too long."""
    names = _sequence(info, key)
    if len(names) > terms.max_classes:
        raise ValueError(f"{key}: {len(names)} names, but max-classes is {terms.max_classes}")
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_TEXT or not name.isprintable():
            raise ValueError(f"{key}: {_shown(name)} is not the name of a class")
    if len(set(names)) < len(names):
        raise ValueError(f"{key}: {len(names)} names, {len(set(names))} different ones")
    return tuple(names)


def _counts(info: Any, key: str, terms: Terms) -> tuple[int, ...]:
    """Positive integers up to max-images."""
    most = min(terms.max_images, EXACT - 1)
    counts = _sequence(info, key)
    for count in counts:
        if type(count) is not int or not 1 <= count <= most:
            raise ValueError(
                f"{key}: {_shown(count)} is not a number of examples from 1 to {most} (max-images)"
            )
    return tuple(counts)


def _clients(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_CLIENTS:
        raise ValueError(f"clients: {_shown(value)} is not a number from 0 to {MAX_CLIENTS}")
    return value


def _sequence(info: Any, key: str) -> Sequence[Any]:
    value = info.get(key)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}: {_shown(value)} is not a list")
    return value


def _shown(value: object) -> str:
    """A stranger's value for a message; never a whole number of a million digits."""
    return f"'{one_line(str(value)[:80] if isinstance(value, str) else repr(value)[:80])}'"

"""Answers messages of a simulation in this process: by the ClientApp, for each node its context."""

import pickle
from collections.abc import Mapping
from importlib import import_module
from io import BytesIO
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any

from flwr.app import Context, Message, RecordDict

from fedhet import client_app
from fedhet.config.schema import RunConfig
from fedhet.errors import UserError, brief
from fedhet.plugins import given, giving, look_here, named
from fedhet.protocol.flower import be_one_process, simulating

FIRST_NODE = 100  # first node id; no code may confuse node ids with client ids


def contexts_of(text: str, nodes: int) -> dict[int, Context]:
    """Return Flower's context of each node, by its id; ``text`` is the run's envelope."""
    be_one_process()
    contexts = {}
    for k in range(nodes):
        about: dict[str, Any] = {"partition-id": k, "num-partitions": nodes}
        config: dict[str, Any] = {"config": text}
        contexts[FIRST_NODE + k] = Context(1, FIRST_NODE + k, about, RecordDict(), config, 0)
    return contexts


def answered(
    contexts: Mapping[int, Context], message: Message, *, simulated: bool = True
) -> Message:
    """Return the ClientApp's reply to a message; not ``simulated``: as a deployed node's."""
    with simulating(simulated):
        return client_app.app(message, contexts[message.metadata.dst_node_id])


def answer_all(connection: Connection, order: Mapping[str, Any]) -> None:
    """Answer messages in a worker until the connection is closed."""
    look_here()
    contexts = contexts_of(order["text"], order["nodes"])
    with giving(unpacked_objects(order["objects"])):
        while True:
            connection.send(answered(contexts, connection.recv()))


def packed_objects(config: RunConfig) -> bytes:
    """Return the objects that the configuration stands for, for a worker of this program's.

    Examples are none of them: workers map the cache. Raise UserError for what cannot be sent.
    """
    objects = given(name for name in named(config.flat()) if name != config.dataset)
    try:
        return _pickled(objects) if objects else b""
    except Exception as error:
        raise UserError(
            f"{', '.join(objects)}: cannot be sent to another process ({brief(error)}): use "
            "engine=inline, or leave open files, locks and the like out of it"
        ) from error


def unpacked_objects(packed: bytes) -> dict[str, Any]:
    """Return what :func:`packed_objects` gave, in a worker of the same program."""
    return dict(pickle.loads(packed)) if packed else {}


def _pickled(objects: Mapping[str, Any]) -> bytes:
    """Return the objects by cloudpickle, but with the files of their code, for tracebacks."""
    kind = import_module("cloudpickle").CloudPickler  # only where there are objects

    class Pickler(kind):  # type: ignore[misc, valid-type]
        def reducer_override(self, thing: Any) -> Any:
            if not isinstance(thing, CodeType):
                return super().reducer_override(thing)
            make, parts = self.dispatch_table[CodeType](thing)
            return make, tuple(thing.co_filename if p == "<dynamic-code>" else p for p in parts)

    Pickler(file := BytesIO()).dump(objects)
    return file.getvalue()

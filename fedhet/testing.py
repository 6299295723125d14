"""For tests of methods, models and data sets, ours and other people's.

:func:`small` makes a configuration that trains in a second, :func:`simulate` runs it inline, where
``tamper`` may replace replies as a hostile client would. :func:`make_client` and
:func:`make_strategy` make one half of a method, for rounds that are worked out by hand.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Error, Message

from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import build_config, envelope
from fedhet.config.registry import Method, find_method
from fedhet.config.schema import RunConfig
from fedhet.engines.grid import Inline
from fedhet.engines.launch import FIRST_NODE, Launch, answered, contexts_of
from fedhet.plugins import giving, name_of
from fedhet.protocol.flower import NO_REPLY, NodeInfo, is_simulated
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.protocol.messages import QUERY
from fedhet.protocol.payload import Payload
from fedhet.records.run_folder import RunFolder
from fedhet.server_app import run
from fedhet.site.local_data import assigned_model, load_local
from fedhet.site.state import FileStore
from fedhet.strategies.base import MethodStrategy, Upload

Tamper = Callable[[int, Message, Message], Message | None]


class LocalGrid(Inline):
    """The inline engine's grid, with nodes that go offline; ``sent`` keeps all messages.

    ``tamper`` gets the client's number, the message and its reply, and returns the reply that the
    server is to see, or None if it is lost.
    """

    def __init__(self, text: str, nodes: int, tamper: Tamper | None = None) -> None:
        super().__init__(lambda message: self.answer(message), nodes)  # noqa: PLW0108  (tests set it)
        self.contexts = contexts_of(text, nodes)
        self.simulated = True
        self.tamper = tamper
        self.identities: dict[int, tuple[str, bytes]] = {}
        self.online = set(self.contexts)
        self.sent: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        """Those that are online."""
        return sorted(self.online)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """As a SuperLink knows them; ``identities`` are names and keys (PEM), by node."""
        for node in self.get_node_ids():
            name, key = self.identities.get(node, ("", b""))
            yield NodeInfo(node_id=node, name=name, public_key=key)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the inline engine's, and remembered."""
        self.sent += (given := list(messages))
        return super().push_messages(given)

    def answer(self, message: Message) -> Message | None:
        """Return the reply that the server is to see."""
        node = message.metadata.dst_node_id
        if node not in self.online:
            return Message(Error(code=5, reason="node gone"), reply_to=message)
        reply = answered(self.contexts, message, simulated=self.simulated)
        if self.tamper is None:
            return reply
        seen = self.tamper(node - FIRST_NODE, message, reply)
        if seen is None and is_simulated(self) and message.metadata.message_type != QUERY:
            return Message(Error(code=NO_REPLY, reason="no reply"), reply_to=message)
        return seen


def small(tmp_path: Path, **changes: Any) -> RunConfig:
    """Three clients with CNN-5 on a few digits, two rounds; keys in snake_case."""
    values: dict[str, Any] = {
        "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
        "rounds": 2, "local_epochs": 1, "batch_size": 16, "out": str(tmp_path / "runs"), **changes,
    }  # fmt: skip
    return build_config({key.replace("_", "-"): value for key, value in values.items()})


def make_client(
    config: RunConfig, index: int, folder: Path, round_: int = 1, device: str = "cpu"
) -> MethodClient[Any]:
    """Client ``index`` of a configuration, restored to generation 0 as in message ``round_``."""
    node = {"partition-id": index, "num-partitions": config.clients}
    data = load_local(config, node, simulated=True)
    setup = Setup(
        config, data, data.dataset.classes, assigned_model(config, {}, data), torch.device(device),
        FileStore(folder / data.client, sync=False),
    )  # fmt: skip
    client = find_method(config.method).client(setup)
    client.round = round_
    client.restore(0)
    return client


def make_strategy(
    config: RunConfig, seen: Sequence[Sequence[int]], images: Sequence[int], classes: int
) -> MethodStrategy[Any]:
    """Return a strategy whose clients declared these classes and numbers of images."""
    roster = Roster()
    roster.classes = tuple(str(label) for label in range(classes))
    for k, (ids, total) in enumerate(zip(seen, images, strict=True)):
        names = tuple(str(label) for label in ids)
        counts = tuple([total // len(ids)] * len(ids))
        roster.infos[str(k)] = ClientInfo(
            str(k), roster.classes, names, counts, total, "cnn-5", "cpu", tuple(ids)
        )
        roster.generations[str(k)] = 0
    strategy = find_method(config.method).strategy(config, roster)
    strategy.initialise()
    return strategy


def uploads_of(strategy: MethodStrategy[Any], payloads: Mapping[str, Payload]) -> list[Upload]:
    """Return accepted uploads with weights n_k / n."""
    infos = strategy.roster.infos
    total = sum(infos[client].train_images for client in payloads)
    return [
        Upload(infos[client], payload, infos[client].train_images / total, {})
        for client, payload in payloads.items()
    ]


def simulate(
    config: RunConfig,
    *,
    tamper: Tamper | None = None,
    folder: RunFolder | None = None,
    before: Callable[[LocalGrid], None] | None = None,
    simulated: bool = True,
) -> tuple[RunFolder, LocalGrid]:
    """Run (or, given a folder, resume) a configuration; return its folder and the grid.

    ``before`` may change the grid before anything is sent. Without ``simulated`` the clients
    behave as on deployed nodes.
    """
    resume = folder is not None
    folder = folder or RunFolder.create(config, "test")
    grid = LocalGrid(envelope(config, {}), config.clients, tamper)
    grid.simulated = simulated
    if before is not None:
        before(grid)
    run(grid, Launch(config, folder, resume), Roster())
    return folder, grid


def cut_and_resume(config: RunConfig, round_: int, tamper: Tamper | None = None) -> RunFolder:
    """Run a configuration that dies at the first reply of ``round_``, and resume it to its end."""
    folder = RunFolder.create(config, "cut")

    def die(node: int, message: Message, reply: Message) -> Message | None:
        if message.content.config_records["config"]["round"] == round_:
            raise KeyboardInterrupt
        return reply if tamper is None else tamper(node, message, reply)

    with contextlib.suppress(KeyboardInterrupt):
        simulate(config, tamper=die, folder=folder)
    return simulate(config, tamper=tamper, folder=folder)[0]


FEDERATION: dict[str, Any] = {  # client 0 is never sampled, 1 and 3 twice
    "clients": 4, "fraction": 0.5, "rounds": 3, "seed": 3, "dataset": "synthetic:200x10",
    "classes_per_client": 4, "models": ["cnn-4", "cnn-5"], "batch_size": 8,
}  # fmt: skip


def check_method(method: str | Method, tmp_path: Path, **changes: Any) -> RunFolder:
    """Check what holds for every method, in ``tmp_path``; AssertionError names what does not.

    Four clients with two architectures, three rounds of two clients each: every reply is accepted,
    a client that was never sampled is evaluated as initialised, and a run that dies in round 3 and
    is resumed has the same hash. ``changes`` are keys in snake_case. Return the whole run's folder.
    """
    if isinstance(method, Method):
        with giving({name_of(method): method}):
            return check_method(name_of(method), tmp_path, **changes)
    values = FEDERATION | {"method": method} | changes
    whole, _ = simulate(small(tmp_path, **values, name="whole"))
    records = whole.read_rounds()
    left_out = [failure for record in records for failure in record["failures"]]
    assert not left_out, left_out
    assert records[-1]["evaluated_clients"] == values["clients"], records[-1]
    resumed = cut_and_resume(small(tmp_path, **values, name="resumed"), 3)
    hashes = [run.read_summary()["run_sha256"] for run in (whole, resumed)]
    assert hashes[0] == hashes[1], (
        f"{method}: a resumed run differs: return all that the strategy keeps in `arrays`, and "
        "all that the client keeps in the modules of `build`"
    )
    return whole

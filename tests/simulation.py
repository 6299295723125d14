"""A federation inside the test's process: real ServerApp code, real ClientApp, no Ray, no network.

Messages are answered in the order in which they are pulled; ``order`` may reverse it, and
``tamper`` may change or replace a reply, as a hostile client or a broken network would.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clients.base import MethodClient, Setup
from fedhet import client_app
from fedhet.config import build_config, envelope
from fedhet.node.site import assigned_model, load_local
from fedhet.node.state import FileStore
from fedhet.protocol.payload import Payload
from fedhet.protocol.people import ClientInfo
from fedhet.protocol.roster import Roster
from fedhet.records.run_folder import RunFolder
from fedhet.registry import METHODS
from fedhet.schema import RunConfig
from fedhet.server_app import Job, run
from strategies.base import MethodStrategy, Upload

Tamper = Callable[[int, Message, Message], Message | None]


class LocalGrid:
    """What the round loop needs of Flower's Grid, served by the ClientApp in this process."""

    pull_interval = 0.0

    def __init__(self, text: str, nodes: int, tamper: Tamper | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.contexts = {
            100 + k: Context(
                run_id=1,
                node_id=100 + k,
                node_config={"partition-id": k, "num-partitions": nodes},
                state=RecordDict(),
                run_config={"config": text},
                series_id=0,
            )
            for k in range(nodes)
        }
        self.tamper = tamper
        self.online = set(self.contexts)
        self.waiting: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.reverse = False

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            identity = str(uuid4())
            message.metadata.__dict__["_message_id"] = identity
            self.waiting[identity] = message
            self.sent.append(message)
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        chosen = [self.waiting.pop(i) for i in list(message_ids) if i in self.waiting]
        if self.reverse:
            chosen.reverse()
        replies = [self._answer(message) for message in chosen]
        return [reply for reply in replies if reply is not None]

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node not in self.online:
            return Message(Error(code=5, reason="node gone"), reply_to=message)
        reply = client_app.app(message, self.contexts[node])
        if self.tamper is not None:
            return self.tamper(node - 100, message, reply)
        return reply


def small(tmp_path: Path, **changes: Any) -> RunConfig:
    """Three clients with CNN-5 on a few digits, two rounds; keys in snake_case."""
    values: dict[str, Any] = {
        "method": "fedssa",
        "dataset": "synthetic:240x4",
        "clients": 3,
        "models": ["cnn-5"],
        "rounds": 2,
        "local_epochs": 1,
        "batch_size": 16,
        "out": str(tmp_path / "runs"),
    } | changes
    return build_config({key.replace("_", "-"): value for key, value in values.items()})


def make_client(config: RunConfig, index: int, folder: Path, round_: int = 1) -> MethodClient:
    """Client ``index`` of a configuration, restored to generation 0 as in message ``round_``."""
    data = load_local(
        config, {"partition-id": index, "num-partitions": config.clients}, simulated=True
    )
    setup = Setup(
        config=config,
        data=data,
        classes=data.dataset.classes,
        model=assigned_model(config, {}, data),
        device=torch.device("cpu"),
        store=FileStore(folder / data.client, sync=False),
    )
    client = METHODS[config.method].client(setup)
    client.round = round_
    client.restore(0)
    return client


def make_strategy(
    config: RunConfig, seen: Sequence[Sequence[int]], images: Sequence[int], classes: int
) -> MethodStrategy:
    """A strategy whose clients "0", "1", ... declared these classes and numbers of images."""
    roster = Roster()
    roster.classes = tuple(str(label) for label in range(classes))
    for k, (own, total) in enumerate(zip(seen, images, strict=True)):
        names = tuple(str(label) for label in own)
        counts = tuple([total // len(own)] * len(own))
        roster.infos[str(k)] = ClientInfo(
            str(k), roster.classes, names, counts, total, "cnn-5", "cpu", tuple(own)
        )
        roster.generations[str(k)] = 0
    folder = RunFolder.create(config, "strategy")
    return METHODS[config.method].strategy(config, roster, folder)


def uploads_of(strategy: MethodStrategy, payloads: Mapping[str, Payload]) -> list[Upload]:
    """Accepted uploads with weights n_k / n."""
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
    """Run (or, given a folder, resume) a configuration; returns its folder and the grid."""
    resume = folder is not None
    folder = folder or RunFolder.create(config, "test")
    grid = LocalGrid(envelope(config, {}), config.clients, tamper)
    if before is not None:
        before(grid)
    context = pytest.MonkeyPatch.context()
    with context as patch:
        patch.setattr(client_app, "is_simulated", lambda: simulated)
        run(grid, Job(config, folder, resume), Roster())  # type: ignore[arg-type]
    return folder, grid


def cut_and_resume(config: RunConfig, round_: int) -> RunFolder:
    """A run that dies at the first reply of ``round_`` and is then resumed to its end."""
    folder = RunFolder.create(config, "cut")

    def die(node: int, message: Message, reply: Message) -> Message:
        if message.content.config_records["config"]["round"] == round_:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        simulate(config, tamper=die, folder=folder)
    return simulate(config, folder=folder)[0]

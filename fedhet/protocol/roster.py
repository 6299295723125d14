"""Who takes part: maps Flower's random node ids to clients and remembers what was agreed.

A ``query`` phase asks every unknown node for its client id, classes, images, model and device.
What a client declares here bounds what it may upload later.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedhet.errors import RunFailedError
from fedhet.ids import client_order, is_id
from fedhet.protocol.mail import Mail, poll_interval
from fedhet.protocol.messages import QUERY, Instruction, Reply, one_line, read_reply, request
from fedhet.rng import generator

log = logging.getLogger("fedhet")

QUERY_PATIENCE = 30.0  # seconds that a round waits for a node that has just been asked
QUERY_TTL = 600.0  # seconds in which an answer still counts: a large private folder takes long
QUERY_TRIES = 3
# Flower's SuperLink drops replies while its database is busy ("database is locked"): who has not
# answered after so many seconds is asked again, then after twice as many, and so on.
REMIND_AFTER = 60.0
SETTLE_SECONDS = 10.0  # with clients=0 on a network: no new node for this long means "all here"


@dataclass(frozen=True)
class ClientInfo:
    """What a client declared; ``seen`` and ``images`` are empty where it hides its classes."""

    client: str
    classes: tuple[str, ...]
    seen_names: tuple[str, ...]
    images: tuple[int, ...]
    train_images: int
    model: str
    device: str
    seen: tuple[int, ...] = ()  # ids in the global class list


def read_info(reply: Reply) -> ClientInfo:
    """A query reply as ClientInfo; ValueError with a reason if it makes no sense."""
    info = reply.info
    client = str(info["client"])
    if not is_id(client):
        raise ValueError(f"client id '{client[:80]}' is not allowed")
    declared = ClientInfo(
        client=client,
        classes=tuple(map(str, info["classes"])),
        seen_names=tuple(map(str, info["seen"])),
        images=tuple(map(int, info["images"])),
        train_images=int(info["train-images"]),
        model=str(info["model"]),
        device=str(info["device"]),
    )
    if not 1 <= declared.train_images <= 10**9 or len(declared.images) != len(declared.seen_names):
        raise ValueError(f"client '{client}' declares impossible numbers of images")
    return declared


class Roster:
    """Clients by id, their nodes while online, and the generation last accepted from each."""

    def __init__(self) -> None:
        self.infos: dict[str, ClientInfo] = {}
        self.nodes: dict[str, int] = {}
        self.generations: dict[str, int] = {}
        self.classes: tuple[str, ...] = ()
        self.refused: dict[int, str] = {}
        self._expected = 0
        self._mail: Mail | None = None
        self._online: set[int] = set()
        self._asked: dict[int, float] = {}  # nodes that have not answered yet, and since when
        self._tries: Counter[int] = Counter()
        self._reminded: Counter[int] = Counter()

    @property
    def ids(self) -> list[str]:
        """All clients ever known, in client order."""
        return sorted(self.infos, key=client_order)

    def sample(self, seed: int, round_: int, cohort: int) -> list[str]:
        """The clients of a round: depends on (seed, round) and the ids only, for every method."""
        ids = self.ids
        chosen = generator(seed, "sample", round_=round_).choice(
            len(ids), size=min(cohort, len(ids)), replace=False
        )
        return [ids[i] for i in sorted(chosen)]

    def wait(self, grid: Grid, experiment: str, clients: int, timeout: float) -> None:
        """Query nodes until ``clients`` are known, or the time is up.

        With ``clients = 0`` the nodes say how many partitions there are; if they do not, the
        federation counts as complete once no new node has come for a while.
        Raises RunFailedError if nobody came.
        """
        deadline = time.monotonic() + timeout
        last_news = time.monotonic()
        while True:
            if self.query(grid, experiment, patience=0.0) or self._asked:
                last_news = time.monotonic()
            expected = clients or self._expected
            if self.nodes and expected and len(self.nodes) >= expected:
                break
            settled = time.monotonic() - last_news > SETTLE_SECONDS
            if (self.nodes and not expected and settled) or time.monotonic() > deadline:
                break
            time.sleep(poll_interval(grid))
        if not self.nodes:
            reasons = "; ".join(sorted(set(self.refused.values()))) or "no node is online"
            raise RunFailedError(f"no client within start-timeout={timeout:g} s: {reasons}")
        if expected and len(self.nodes) < expected:
            log.warning("starting with %d of %d clients", len(self.nodes), expected)

    def query(self, grid: Grid, experiment: str, patience: float = QUERY_PATIENCE) -> list[str]:
        """Ask unknown nodes who they are; forget nodes that are gone. Returns new clients.

        A node that has not answered ``patience`` seconds after it was first asked is not waited
        for; its answer counts when it comes, and on a network it is reminded now and then.
        """
        mail = self._mail = self._mail or Mail(grid)
        online = set(grid.get_node_ids())
        if self._online - online:
            self.refused.clear()  # what a vanished node held may be free now: ask again
            self._tries.clear()
            self._reminded.clear()
        self._online = online
        self.nodes = {client: node for client, node in self.nodes.items() if node in online}
        self._asked = {node: since for node, since in self._asked.items() if node in online}
        strangers = sorted(online - {*self.nodes.values(), *self.refused, *self._asked})
        silent = [] if mail.simulated else self._silent()
        self._reminded.update(silent)
        self._asked |= dict.fromkeys(strangers, time.monotonic())
        what = Instruction(experiment=experiment)
        mail.add([request(QUERY, node, what, QUERY_TTL) for node in (*strangers, *silent)])
        new = []
        while mail:
            new += [name for pair in mail.poll() for name in self._answered(*pair)]
            if not self._asked or time.monotonic() > max(self._asked.values()) + patience:
                break
            mail.pause()
        return new

    def _silent(self) -> list[int]:
        """Nodes that are to be asked once more."""
        now = time.monotonic()
        return sorted(
            node
            for node, since in self._asked.items()
            if now - since > REMIND_AFTER * 2 ** self._reminded[node]
        )

    def _answered(self, asked: Message, message: Message) -> list[str]:
        """Take in one answer; returns the id of the new client, if it is one."""
        node, reply = asked.metadata.dst_node_id, read_reply(message)
        if self._asked.pop(node, None) is None:
            return []  # it has gone since, or has answered a reminder
        self._tries[node] += 1
        if message.has_error() and self._tries[node] < QUERY_TRIES:
            return []  # the node restarted, or the message expired: it is asked again
        try:
            if reply.error:
                raise ValueError(reply.error)
            info = read_info(reply)
            if info.client in self.nodes:
                raise ValueError(f"client id '{info.client}' is already taken by another node")
            self._admit(info)
            self._expected = max(self._expected, int(reply.info.get("clients", 0)))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            log.warning("node %d is refused: %s", node, one_line(error))
            self.refused[node] = one_line(error)
            return []
        self.nodes[info.client] = node
        return [info.client]

    def _admit(self, info: ClientInfo) -> None:
        """Add a client, or check that a returning one declares what it declared before."""
        before = self.infos.get(info.client)
        if self.classes:
            info = self._with_ids(info)
        if before is not None and before != info:
            raise ValueError(f"client '{info.client}' declares other data or another model now")
        self.infos[info.client] = info
        self.generations.setdefault(info.client, 0)

    def fix_classes(self, configured: Sequence[str]) -> None:
        """Settle the global class list: configured, or what all clients agree on, or their union.

        Clients with a class that is not in the list are dropped, with a warning.
        """
        lists = {info.classes for info in self.infos.values()}
        union = sorted({name for names in lists for name in names})
        self.classes = tuple(configured or (next(iter(lists)) if len(lists) == 1 else union))
        for client in self.ids:
            try:
                self.infos[client] = self._with_ids(self.infos[client])
            except ValueError as error:
                log.warning("%s", error)
                self.refused[self.nodes.pop(client)] = str(error)
                del self.infos[client], self.generations[client]

    def _with_ids(self, info: ClientInfo) -> ClientInfo:
        strange = sorted(set(info.seen_names) - set(self.classes))
        if strange:
            raise ValueError(
                f"client '{info.client}' has class '{strange[0]}', which is not in this run's list"
            )
        own = zip(info.seen_names, info.images, strict=True)
        rows = sorted((self.classes.index(name), name, count) for name, count in own)
        seen, names, images = tuple(zip(*rows, strict=True)) or ((), (), ())
        return replace(info, seen=seen, seen_names=names, images=images)

    def counts(self) -> list[tuple[str, list[int]]]:
        """Training images per (client, class of the global list), for ``partition.csv``."""
        table = []
        for client in self.ids:
            info = self.infos[client]
            row = [0] * len(self.classes)
            for label, count in zip(info.seen, info.images, strict=True):
                row[label] = count
            table.append((client, row))
        return table

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "classes": list(self.classes),
            "infos": {client: vars(info) for client, info in self.infos.items()},
            "generations": self.generations,
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`; nodes are found again by :meth:`query`."""
        self.classes = tuple(kept["classes"])
        self.infos = {client: ClientInfo(**_tuples(info)) for client, info in kept["infos"].items()}
        self.generations = dict(kept["generations"])


def _tuples(info: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's lists back to the tuples of a ClientInfo."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in info.items()}

"""The handshake: ask every unknown node who it is, and admit or refuse it.

A client declares its id, classes, model and form of examples, which limit what it may upload later.
The roster holds the clients, their nodes and what was agreed. Flower draws node ids at random, so
this package identifies a client by its id.

Client ids are bound to the keys of the nodes that use them. A SuperNode signs every request to the
SuperLink with its own key, and the SuperLink gives a message only to its addressee. So what Flower
says of a node needs no further proof. Flower does not check who sends a *reply*: any node that
knows a message's id may answer it, and the id is a hash of the content. So the content carries a
nonce (:mod:`fedhet.protocol.messages`) that only the addressee sees.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from pydantic import Field, StrictBytes, StrictInt, StrictStr
from pydantic.dataclasses import dataclass as wired

from fedhet.config.schema import OFF, REGISTERED, RunConfig
from fedhet.data.inputs import Inputs, load_inputs
from fedhet.errors import RunFailed, distinct, one_line
from fedhet.files import client_order
from fedhet.protocol.flower import NodeInfo
from fedhet.protocol.mail import REMIND_AFTER, Mail
from fedhet.protocol.messages import (
    LONGEST_TEXT,
    QUERY,
    WIRE,
    Id,
    Instruction,
    Name,
    Reply,
    SumRecord,
    from_wire,
    read_reply,
    request,
)
from fedhet.rng import generator
from fedhet.sums.masks import SumKey

# --- what a client declares -------------------------------------------------------------------


EXACT = 2**53  # counts below are exact as floats, too
Count = Annotated[StrictInt, Field(ge=1, lt=EXACT)]


@wired(frozen=True, config=WIRE)
class Declaration:
    """One answer of the handshake, each value of its type and within bounds.

    ``clients`` is how many the client says there are (0: unsaid). Where the run hides classes,
    ``seen``, ``images`` and ``train_images`` are absent. ``sum_key`` are the fields of a
    :class:`~fedhet.sums.masks.SumKey`, where the run has masks.
    """

    client: Id
    classes: Annotated[tuple[Name, ...], Field(min_length=1)]
    model: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,200}$")]  # or module:factory
    device: Annotated[StrictStr, Field(pattern=r"^[a-z]{1,16}(:\d{1,4})?$")]
    inputs: StrictStr
    clients: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    seen: tuple[Name, ...] | None = None
    images: tuple[Count, ...] | None = None
    train_images: Count | None = None
    sum_key: tuple[StrictBytes, ...] | None = None


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


def read_declaration(reply: Reply, config: RunConfig) -> tuple[ClientInfo, Declaration]:
    """Return a client's declaration; raise a one-line ValueError if any part is invalid.

    Class names must be distinct. Each seen class needs a positive number of images, and these must
    add up to the training images. In a run with sums none of these may be declared.
    """
    declared = from_wire(Declaration, reply.info)
    who = f"client '{declared.client}'"
    if config.summed and {declared.seen, declared.images, declared.train_images} != {None}:
        raise ValueError(f"{who} sends its classes or counts, which this run hides")
    seen, images, total = declared.seen or (), declared.images or (), declared.train_images or 0
    for key, names in {"classes": declared.classes, "seen": seen}.items():
        if len(names) > config.max_classes:
            raise ValueError(f"{key}: {len(names)} names, max-classes is {config.max_classes}")
        if len(set(names)) < len(names):
            raise ValueError(f"{key}: {len(names)} names, {len(set(names))} different ones")
    if max((*images, total)) > config.max_images:
        raise ValueError(f"{who} declares more images than max-images={config.max_images}")
    if unknown := sorted(set(seen) - set(declared.classes)):
        raise ValueError(f"{who} has seen class '{unknown[0]}', which is not in its own list")
    fits = len(images) == len(seen) and sum(images) == total > 0
    if not config.summed and not fits:
        raise ValueError(
            f"{who} declares {total} training images, but {sum(images)} in {len(images)} counts "
            f"of {len(seen)} classes"
        )
    inputs = load_inputs(declared.inputs)
    about = declared.classes, seen, images, total, declared.model, declared.device, (), inputs
    return ClientInfo(declared.client, *about), declared


def check_name(policy: str, client: str, node: int, online: Mapping[int, NodeInfo]) -> None:
    """Raise ValueError unless ``node`` may be ``client``, by ``client-keys``.

    The SuperLink knows of a node its public key (PEM) and the name that this was registered under,
    empty where there is none.
    """
    registered = online.get(node, NodeInfo()).name
    if policy == OFF or registered == client:
        return
    wrong = ""
    if registered:
        wrong = f"is not allowed: this node's key is registered under the name '{registered}'"
    elif policy == REGISTERED:
        wrong = "is not allowed: this node's key is not registered under a name"
    elif client in {one.name for one in online.values()}:
        wrong = "is the name of another node's key"
    if wrong:
        raise ValueError(f"client id '{client}' {wrong} (client-keys={policy})")


# --- who takes part ---------------------------------------------------------------------------


log = logging.getLogger("fedhet")


class Roster:
    """Clients by id, their nodes while online, and the generation last accepted from each."""

    def __init__(self) -> None:
        self.infos: dict[str, ClientInfo] = {}
        self.nodes: dict[str, int] = {}
        self.generations: dict[str, int] = {}
        self.digests: dict[str, str] = {}  # of that generation's state, once there is one
        self.lost: dict[str, dict[str, Any]] = {}  # whose state is gone: since when, and why
        self.keys: dict[str, SumKey] = {}  # for sums, where the run has masks
        self.classes: tuple[str, ...] = ()
        self.inputs: Inputs | None = None  # of the run, or of most clients
        self.refused: dict[int, str] = {}  # reason by node
        self._unbooked: list[tuple[str, str]] = []  # refusals that stand in no round yet

    @property
    def ids(self) -> list[str]:
        """Return all clients ever known, in client order."""
        return sorted(self.infos, key=client_order)

    def sample(self, seed: int, round_: int, cohort: int) -> list[str]:
        """Return the clients of a round, by (seed, round) and the ids alone."""
        ids = self.ids
        chosen = generator(seed, "sample", round_=round_).choice(
            len(ids), size=min(cohort, len(ids)), replace=False
        )
        return [ids[i] for i in sorted(chosen)]

    def refuse(self, node: int, reason: str) -> None:
        """Refuse a node, with the reason. Its declared name is not recorded: it may be false."""
        log.warning("node %d is refused: %s", node, reason)
        self.refused[node] = reason
        self._unbooked.append((f"node {node}", reason))

    def refusals(self) -> list[tuple[str, str]]:
        """Return who was refused, and why, since this was last asked."""
        found, self._unbooked = self._unbooked, []
        return found

    def admit(self, info: ClientInfo, key: SumKey | None = None) -> None:
        """Add a client, or check that a returning one declares what it declared before."""
        before = self.keys.get(info.client, key)
        if key is not None and before is not None:
            if before.public != key.public:
                raise ValueError(
                    f"client '{info.client}' has lost its key for the sums of this run, and the "
                    "others know that one only"
                )
            others = (one for client, one in self.keys.items() if client != info.client)
            if any(key.public == one.public for one in others):
                raise ValueError(f"client '{info.client}' tells another client's key")
        if difference := self._differs(info):
            raise ValueError(difference)
        if self.classes:
            info = self._with_ids(info)
        if self.infos.get(info.client, info) != info:
            raise ValueError(f"client '{info.client}' declares other data or another model now")
        self.infos[info.client] = info
        self.generations.setdefault(info.client, 0)
        if key is not None:
            self.keys[info.client] = key

    def accept(self, client: str, round_: int, digest: str) -> None:
        """Record that a client goes on from its state of this round, which has this digest."""
        self.generations[client] = round_
        self.digests[client] = digest
        self.lost.pop(client, None)

    def lose(self, client: str, round_: int, reason: str) -> None:
        """Record that a client's state is gone; it is asked again, since a copy may come back."""
        self.lost.setdefault(client, {"round": round_, "reason": reason})

    def losses(self) -> list[dict[str, Any]]:
        """Return clients whose state is gone, in client order."""
        return [{"client": c, **self.lost[c]} for c in sorted(self.lost, key=client_order)]

    def fix_classes(self, configured: Sequence[str], most: int = sys.maxsize) -> None:
        """Set the global class list: configured, what all clients agree on, or their union.

        Refused are, in this order, clients whose examples have another form than those of most;
        while the union has more than ``most`` classes, those with most of their own; and those with
        a class outside the list. Raises RunFailed if no client is left.
        """
        forms = Counter(own for client in self.ids if (own := self.infos[client].inputs))
        if self.inputs is None and forms:
            self.inputs = forms.most_common(1)[0][0]
        for client in self.ids:
            if difference := self._differs(self.infos[client]):
                self._drop(client, difference)
        if not configured:
            self._bound_union(most)
        lists = {info.classes for info in self.infos.values()}
        union = sorted({name for names in lists for name in names})
        self.classes = tuple(configured or (next(iter(lists)) if len(lists) == 1 else union))
        for client in self.ids:
            try:
                self.infos[client] = self._with_ids(self.infos[client])
            except ValueError as error:
                self._drop(client, str(error))
        if not self.infos:
            raise RunFailed(f"no client is left: {'; '.join(sorted(self.refused.values()))}")

    def _differs(self, info: ClientInfo) -> str:
        known, own = self.inputs, info.inputs
        difference = known.differs(own) if known is not None and own is not None else ""
        return f"client '{info.client}': its {difference}" if difference else ""

    def _bound_union(self, most: int) -> None:
        owners = Counter(name for info in self.infos.values() for name in info.classes)
        while len(owners) > most:
            alone = {c: sum(owners[n] == 1 for n in self.infos[c].classes) for c in self.ids}
            client = max(self.ids, key=lambda c: (alone[c], len(self.infos[c].classes)))
            owners = +(owners - Counter(self.infos[client].classes))
            self._drop(
                client,
                f"client '{client}' has {alone[client]} classes that no other client has, and with "
                f"them the run has more than max-classes={most}",
            )

    def _drop(self, client: str, reason: str) -> None:
        if (node := self.nodes.pop(client, None)) is not None:
            self.refuse(node, reason)
        else:  # it has gone since it declared itself
            self._unbooked.append((client, reason))
        del self.infos[client], self.generations[client]
        self.keys.pop(client, None)

    def _with_ids(self, info: ClientInfo) -> ClientInfo:
        strange = sorted(set(info.seen_names) - set(self.classes))
        if strange:
            raise ValueError(
                f"client '{info.client}' has class '{strange[0]}', which the run does not name"
            )
        own = zip(info.seen_names, info.images, strict=True)
        rows = sorted((self.classes.index(name), name, count) for name, count in own)
        seen, names, images = tuple(zip(*rows, strict=True)) or ((), (), ())
        return replace(info, seen=seen, seen_names=names, images=images)

    def counts(self) -> list[tuple[str, list[int]]]:
        """Return training images per client and class of the global list, none where untold."""
        table, every = [], range(len(self.classes))
        for client in self.ids:
            own = dict(zip(self.infos[client].seen, self.infos[client].images, strict=True))
            table.append((client, [own.get(label, 0) for label in every if own]))
        return table

    def dump(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "classes": list(self.classes),
            "infos": {
                client: {
                    key: value.dump() if isinstance(value, Inputs) else value
                    for key, value in vars(info).items()
                    if key != "inputs" or value not in (None, self.inputs)
                }
                for client, info in self.infos.items()
            },
            "inputs": self.inputs.dump() if self.inputs is not None else None,
            "generations": self.generations,
            "states": self.digests,
            "lost": self.lost,
            **({"keys": keys} if (keys := {c: key.dump() for c, key in self.keys.items()}) else {}),
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """Take up what :meth:`dump` gave; nodes are found again by the handshake."""
        self.classes = tuple(kept["classes"])
        self.inputs = load_inputs(kept["inputs"]) if kept.get("inputs") else None
        for client, info in kept["infos"].items():
            plain: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in info.items()}
            inputs = load_inputs(info["inputs"]) if "inputs" in info else self.inputs
            self.infos[client] = ClientInfo(**plain | {"inputs": inputs})
        self.generations = dict(kept["generations"])
        self.digests, self.lost = dict(kept["states"]), dict(kept["lost"])
        self.keys = {client: SumKey.load(key) for client, key in kept.get("keys", {}).items()}


# --- the query phase --------------------------------------------------------------------------


QUERY_PATIENCE = 30.0  # seconds that a round waits for a node that has just been asked
QUERY_TTL = 600.0  # seconds in which an answer still counts: a large private folder takes long
QUERY_TRIES = 3
PATIENT = 5.0  # seconds of waiting without a message
HEARD = 10.0  # seconds for nodes to fetch why they are refused, before a run without any ends
SETTLE_SECONDS = 10.0  # with clients=0 on a network: without a new node for this long all are there


class Handshake:
    """Keeps a roster's nodes up to date; remembers who was asked, and how often."""

    def __init__(
        self,
        grid: Grid,
        experiment: str,
        roster: Roster,
        config: RunConfig | None = None,
        state_dir: str = "",
    ) -> None:
        """Take a ``state_dir`` of simulated clients."""
        self.grid, self.experiment, self.roster = grid, experiment, roster
        self.config, self.state_dir = config or RunConfig(), state_dir
        self._mail = Mail(grid)
        self._expected = 0
        self._online: dict[int, NodeInfo] = {}
        self._asked: dict[int, float] = {}  # nodes that have not answered yet, and since when
        self._tries: Counter[int] = Counter()
        self._informed: set[int] = set()  # nodes that know why they are refused
        self._notices = Mail(grid)  # what tells them

    def instruction(self, **values: Any) -> Instruction:
        """Return an instruction of this run with these values."""
        return Instruction(self.experiment, state_dir=self.state_dir, **values)

    def message(
        self,
        kind: str,
        client: str,
        round_: int,
        arrays: ArrayRecord | None = None,
        about: SumRecord | None = None,
    ) -> Message:
        """Return a request to a client, which names the generation that it must go on from."""
        config, roster = self.config, self.roster
        what = self.instruction(
            round=round_, generation=roster.generations[client],
            digest=roster.digests.get(client, ""), evaluate=config.evaluates(round_),
            classes=roster.classes,
        )  # fmt: skip
        node, ttl = roster.nodes[client], config.round_timeout
        return request(kind, node, what, ttl, arrays, about=about)

    def wait(
        self, clients: int, timeout: float, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """Query nodes until ``clients`` are known, or the time is up.

        ``tell`` is called with what is waited for, whenever that changes, and at the end with "",
        or with how many of how many have come. With ``clients = 0`` the nodes say how many
        partitions there are; if they do not, the federation counts as complete once no new node has
        come for a while.
        Raises RunFailed if nobody came, or, on a network, fewer than any round needs.
        """
        last = ""
        try:
            last = self._wait(clients, timeout, tell)
        finally:
            tell(last)

    def _wait(self, clients: int, timeout: float, tell: Callable[[str], None]) -> str:
        config, begun = self.config, time.monotonic()
        last_news = begun
        since, last_text = f"{datetime.now():%H:%M:%S}", ""
        while True:
            if self.query(patience=0.0) or self._asked:
                last_news = time.monotonic()
            nodes = self.roster.nodes
            expected = clients or self._expected
            reasons = distinct(self.roster.refused.values())
            refused = f" (refused: {reasons})" if reasons else ""
            if self._asked and not self._mail.simulated:
                busy = (
                    f"{len(self._asked)} online, without an answer yet: starting, or in another run"
                )
                reasons, refused = "; ".join(filter(None, (reasons, busy))), f"{refused} ({busy})"
            away = [client for client in self.roster.ids if client not in nodes]  # of a resumed run
            missing = f" (without {', '.join(away)})" if away else ""
            if nodes and expected and len(nodes) >= expected:
                break
            settled = time.monotonic() - last_news > SETTLE_SECONDS
            working = self._mail.simulated and bool(self._asked)  # however long it takes
            late = time.monotonic() > begun + timeout and not working
            alone = nodes and not expected and settled
            if late or alone or self._final(expected, settled=settled):
                break
            come = f"{len(nodes)} of {expected} have" if expected else f"{len(nodes)} have"
            until = "" if self._mail.simulated else f"; start-timeout={timeout:g} s"
            text = f"waiting for clients since {since}: {come} come{missing}{until}{refused}"
            if text != last_text and time.monotonic() >= begun + min(PATIENT, timeout / 2):
                last_text = text
                log.info("%s", text)
                tell(text)
            time.sleep(self._mail.interval)
        if not nodes:
            deadline = time.monotonic() + HEARD  # Flower drops the reason at the end of the run
            while self._notices and time.monotonic() < deadline:
                self._notices.poll()
                if self._notices:
                    self._notices.pause()
            reasons = reasons or "no node is online"
            if self._final(expected, settled=True):
                raise RunFailed(f"no node can take part in this run: {reasons}")
            raise RunFailed(f"no client joined within start-timeout={timeout:g} s: {reasons}")
        summed, least = config.summed, config.sum_min if config.summed else config.min_replies
        came = f"{len(nodes)} of {expected or least} clients{missing}"
        if len(nodes) < least and not self._mail.simulated:  # every round would be lost
            needed = f"{'sum-min' if summed else 'min-replies'}={least} are needed"
            raise RunFailed(f"{came} came within start-timeout={timeout:g} s{refused}, {needed}")
        if not expected or len(nodes) >= expected:
            return ""
        log.warning("starting with %s%s", came, refused)
        return f"starting with {came}{refused}"

    def _final(self, expected: int, *, settled: bool) -> bool:
        """Return whether all of a simulation, or nodes that are all refused, have answered."""
        nodes, refused = len(self.roster.nodes), len(self.roster.refused)
        if self._mail.simulated and expected and nodes + refused >= expected:
            return True
        everybody = refused >= expected if expected else settled
        return bool(refused and everybody and not nodes and not self._asked)

    def query(self, patience: float = QUERY_PATIENCE) -> list[str]:
        """Ask unknown nodes who they are; forget nodes that are gone; return new clients.

        A node that has not answered ``patience`` seconds after it was first asked is not waited
        for; its answer counts when it comes, and on a network it is reminded now and then.
        """
        mail, roster = self._mail, self.roster
        # Nodes of a simulation are the user's own processes and have no keys.
        if mail.simulated:
            now = dict.fromkeys(self.grid.get_node_ids(), NodeInfo())
        else:
            now = {info.node_id: info for info in self.grid.get_nodes()}
        online = set(now)
        if self._online.keys() - online:
            roster.refused.clear()  # what a vanished node held may be free now: ask again
            self._tries.clear()
            self._informed.clear()
        self._online = now
        roster.nodes = {client: node for client, node in roster.nodes.items() if node in online}
        self._asked = {node: since for node, since in self._asked.items() if node in online}
        strangers = sorted(online - {*roster.nodes.values(), *roster.refused, *self._asked})
        self._asked |= dict.fromkeys(strangers, time.monotonic())
        mail.waiting.extend([request(QUERY, n, self.instruction(), QUERY_TTL) for n in strangers])
        mail.remind(2 * REMIND_AFTER)
        new = []
        while mail:
            new += [name for pair in mail.poll() for name in self._answered(*pair)]
            if not self._asked or time.monotonic() > max(self._asked.values()) + patience:
                break
            mail.pause()
        self._inform_refused()
        return new

    def _inform_refused(self) -> None:
        """Tell nodes on a network, once, why the run does without them; no answer is waited for."""
        refused = self.roster.refused
        new = [node for node in refused if node in self._online and node not in self._informed]
        self._informed.update(new)
        if new and not self._mail.simulated:
            whys = {node: self.instruction(refused=refused[node][:LONGEST_TEXT]) for node in new}
            self._notices.waiting.extend(
                request(QUERY, node, why, QUERY_TTL) for node, why in whys.items()
            )
            self._notices.poll()

    def _answered(self, asked: Message, message: Message) -> list[str]:
        """Take in one answer; return the id of the new client, if it is one."""
        node, reply = asked.metadata.dst_node_id, read_reply(message)
        if self._asked.pop(node, None) is None:
            return []  # it has gone since, or has answered a reminder
        self._tries[node] += 1
        if message.has_error() and self._tries[node] < QUERY_TRIES:
            return []  # the node restarted, or the message expired: it is asked again
        try:
            if reply.error:
                self._informed.add(node)  # it says so itself
                raise ValueError(reply.error)
            info, declared = read_declaration(reply, self.config)
            client, key = info.client, None
            if self.config.summed:
                key = SumKey.of_fields(declared.sum_key)
            if not self._mail.simulated:
                check_name(self.config.client_keys, client, node, self._online)
            if client in self.roster.nodes:
                raise ValueError(f"client id '{client}' is already taken by another node")
            self.roster.admit(info, key)
        except ValueError as error:
            name = self._online.get(node, NodeInfo()).name  # which its key is registered under
            self.roster.refuse(node, f"{name}: {one_line(error)}" if name else one_line(error))
            return []
        self._expected = max(self._expected, declared.clients)
        self.roster.nodes[client] = node
        return [client]

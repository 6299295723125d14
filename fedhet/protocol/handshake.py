"""The handshake: ask every unknown node who it is, and admit or refuse it.

A client declares its id, classes, model and form of examples, which limit what it may upload later.
Flower draws node ids at random, so this package identifies a client by its id.

Client ids are bound to the keys of the nodes that use them: a SuperNode signs every request, and
the SuperLink gives a message only to its addressee. But whoever knows a message's id, a hash of its
content, may *answer* it. So the content carries a nonce that only the addressee sees.
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
from fedhet.protocol import messages
from fedhet.protocol.flower import NodeInfo
from fedhet.protocol.mail import REMIND_AFTER, Mail
from fedhet.protocol.messages import WIRE, Id, Instruction, Name, Reply, from_wire
from fedhet.rng import generator
from fedhet.sums.masks import SumKey

log = logging.getLogger("fedhet")
EXACT = 2**53  # counts below are exact as floats, too
Count = Annotated[StrictInt, Field(ge=1, lt=EXACT)]


@wired(frozen=True, config=WIRE)
class Declaration:
    """One answer of the handshake; ``clients`` is how many it says there are (0: unsaid).

    Where the run hides classes, ``seen``, ``images`` and ``train_images`` are absent, and
    ``sum_key`` holds the fields of a :class:`~fedhet.sums.masks.SumKey`.
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
    """What a client declared; of one that hides its classes no ``seen``, ``images`` or total."""

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
    """Return a client's declaration; raise a one-line ValueError if any part is invalid."""
    sent = from_wire(Declaration, reply.info)
    who = f"client '{sent.client}'"
    if config.summed and {sent.seen, sent.images, sent.train_images} != {None}:
        raise ValueError(f"{who} sends its classes or counts, which this run hides")
    seen, images, total = sent.seen or (), sent.images or (), sent.train_images or 0
    check_names("classes", sent.classes, config.max_classes)
    check_names("seen", seen, config.max_classes)
    if max((*images, total)) > config.max_images:
        raise ValueError(f"{who} declares more images than max-images={config.max_images}")
    if unknown := sorted(set(seen) - set(sent.classes)):
        raise ValueError(f"{who} has seen class '{unknown[0]}', which is not in its own list")
    if not config.summed and not (len(images) == len(seen) and sum(images) == total > 0):
        counts = f"{sum(images)} in {len(images)} counts of {len(seen)} classes"
        raise ValueError(f"{who} declares {total} training images, but {counts}")
    about = sent.classes, seen, images, total, sent.model, sent.device, (), load_inputs(sent.inputs)
    return ClientInfo(sent.client, *about), sent


def check_names(what: str, names: Sequence[str], most: int) -> None:
    """Raise ValueError, which calls them ``what``, for too many class names or for one twice."""
    if len(names) > most:
        raise ValueError(f"{what}: {len(names)} names, max-classes is {most}")
    if len(set(names)) < len(names):
        raise ValueError(f"{what}: {len(names)} names, {len(set(names))} different ones")


def check_name(policy: str, client: str, node: int, online: Mapping[int, NodeInfo]) -> None:
    """Raise ValueError unless ``node`` may be ``client``, by ``client-keys``."""
    # The SuperLink knows the name under which a node's key was registered, if there is one.
    registered, wrong = online.get(node, NodeInfo()).name, ""
    if registered not in {"", client}:
        wrong = f"is not allowed: this node's key is registered under the name '{registered}'"
    elif policy == REGISTERED and not registered:
        wrong = "is not allowed: this node's key is not registered under a name"
    elif not registered and client in {one.name for one in online.values()}:
        wrong = "is the name of another node's key"
    if wrong and policy != OFF:
        raise ValueError(f"client id '{client}' {wrong} (client-keys={policy})")


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
        draw, size = generator(seed, "sample", round_=round_), min(cohort, len(ids))
        return [ids[i] for i in sorted(draw.choice(len(ids), size=size, replace=False))]

    def refuse(self, node: int, reason: str) -> None:
        """Refuse a node, with the reason. Its declared name is not recorded: it may be false."""
        log.warning("node %d is refused: %s", node, reason)
        self.refused[node] = reason
        self._unbooked.append((f"node {node}", reason))

    def refusals(self) -> list[tuple[str, str]]:
        """Return who was refused, and why, since this was last asked."""
        reasons, self._unbooked = self._unbooked, []
        return reasons

    def admit(self, info: ClientInfo, key: SumKey | None = None) -> None:
        """Add a client, or check that a returning one declares what it declared before."""
        if key is not None:
            if self.keys.get(info.client, key).public != key.public:
                lost = "has lost the key that the others know for the sums of this run"
                raise ValueError(f"client '{info.client}' {lost}")
            owners = {client for client, one in self.keys.items() if one.public == key.public}
            if owners - {info.client}:
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

        Refused are, in this order, clients with examples of another form than most; those with most
        classes of their own, while there are more than ``most``; and those with a class outside the
        list. Raises RunFailed if no client is left.
        """
        forms = Counter(form for client in self.ids if (form := self.infos[client].inputs))
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
            text = "classes that no other client has, and with them the run has more than"
            self._drop(client, f"client '{client}' has {alone[client]} {text} max-classes={most}")

    def _drop(self, client: str, reason: str) -> None:
        if (node := self.nodes.pop(client, None)) is not None:
            self.refuse(node, reason)
        else:  # it has gone since it declared itself
            self._unbooked.append((client, reason))
        del self.infos[client], self.generations[client]
        self.keys.pop(client, None)

    def _with_ids(self, info: ClientInfo) -> ClientInfo:
        if strange := sorted(set(info.seen_names) - set(self.classes)):
            text = f"has class '{strange[0]}', which the run does not name"
            raise ValueError(f"client '{info.client}' {text}")
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
        infos = {client: dict(vars(info)) for client, info in self.infos.items()}
        for info in infos.values():
            if (inputs := info.pop("inputs")) not in (None, self.inputs):
                info["inputs"] = inputs.dump()
        return {
            "classes": list(self.classes), "infos": infos,
            "inputs": self.inputs.dump() if self.inputs is not None else None,
            "generations": self.generations, "states": self.digests, "lost": self.lost,
            "keys": {client: key.dump() for client, key in self.keys.items()},
        }  # fmt: skip

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


QUERY_PATIENCE = 30.0  # seconds that a round waits for a node that has just been asked
QUERY_TTL = 600.0  # seconds in which an answer still counts: a large private folder takes long
QUERY_TRIES = 3
PATIENT = 5.0  # seconds of waiting without a message
HEARD = 10.0  # seconds for nodes to fetch why they are refused, before a run without any ends
SETTLE_SECONDS = 10.0  # with clients=0 on a network: without a new node for this long all are there


class Handshake:
    """Keeps a roster's nodes up to date; remembers who was asked, and how often."""

    def __init__(
        self, grid: Grid, experiment: str, roster: Roster, config: RunConfig | None = None,
        state_dir: str = "",
    ) -> None:  # fmt: skip
        self.grid, self.experiment, self.roster = grid, experiment, roster
        self.config, self.state_dir = config or RunConfig(), state_dir
        self._mail, self._expected = Mail(grid), 0
        self._online: dict[int, NodeInfo] = {}
        self._asked: dict[int, float] = {}  # nodes that have not answered yet, and since when
        self._tries: Counter[int] = Counter()
        self._informed: set[int] = set()  # nodes that know why they are refused
        self._notices = Mail(grid)  # what tells them

    def instruction(self, **values: Any) -> Instruction:
        """Return an instruction of this run with these values."""
        return Instruction(self.experiment, state_dir=self.state_dir, **values)

    def message(
        self, kind: str, client: str, round_: int, arrays: ArrayRecord | None = None,
        about: Any = None,
    ) -> Message:  # fmt: skip
        """Return a request to a client, which names the generation that it must go on from."""
        config, roster = self.config, self.roster
        what = self.instruction(
            round=round_, generation=roster.generations[client],
            digest=roster.digests.get(client, ""), evaluate=config.evaluates(round_),
            classes=roster.classes,
        )  # fmt: skip
        node, ttl = roster.nodes[client], config.round_timeout
        return messages.request(kind, node, what, ttl, arrays, about)

    def wait(
        self, clients: int, timeout: float, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """Query nodes until ``clients`` are known, or ``timeout`` seconds are over.

        ``tell`` is called with what is waited for, whenever that changes, and at the end with "",
        or with how many of how many have come. With ``clients = 0`` the nodes say how many there
        are, or all are there once no new one has come for a while. Raises RunFailed if nobody came,
        or, on a network, fewer than any round needs.
        """
        last = ""
        try:
            last = self._wait(clients, timeout, tell)
        finally:
            tell(last)

    def _wait(self, clients: int, timeout: float, tell: Callable[[str], None]) -> str:
        config, roster, simulated = self.config, self.roster, self._mail.simulated
        begun = news = time.monotonic()
        since, last_text = f"{datetime.now():%H:%M:%S}", ""
        within = f"start-timeout={timeout:g} s"
        while True:
            if self.query(patience=0.0) or self._asked:
                news = time.monotonic()
            expected, come = clients or self._expected, len(roster.nodes)
            reasons = distinct(roster.refused.values())
            refused = f" (refused: {reasons})" if reasons else ""
            if self._asked and not simulated:
                count = len(self._asked)
                busy = f"{count} online, without an answer yet: starting, or in another run"
                reasons, refused = "; ".join(filter(None, (reasons, busy))), f"{refused} ({busy})"
            away = [client for client in roster.ids if client not in roster.nodes]  # if resumed
            missing = f" (without {', '.join(away)})" if away else ""
            now = time.monotonic()
            late = now > begun + timeout and not (simulated and self._asked)  # that may take long
            if late or self._over(expected, settled=now - news > SETTLE_SECONDS):
                break
            of = f"{come} of {expected} have" if expected else f"{come} have"
            until = "" if simulated else f"; {within}"
            text = f"waiting for clients since {since}: {of} come{missing}{until}{refused}"
            if text != last_text and now >= begun + min(PATIENT, timeout / 2):
                last_text = text
                log.info("%s", text)
                tell(text)
            time.sleep(self._mail.interval)
        if not come:
            deadline = time.monotonic() + HEARD  # Flower drops the reason at the end of the run
            while self._notices and time.monotonic() < deadline:
                self._notices.poll()
                self._notices.pause()
            final = self._over(expected, settled=True)
            none = "no node can take part in this run"
            none = none if final else f"no client joined within {within}"
            raise RunFailed(f"{none}: {reasons or 'no node is online'}")
        least = config.sum_min if config.summed else config.min_replies
        came = f"{come} of {expected or least} clients{missing}"
        if come < least and not simulated:  # every round would be lost
            needed = f"{'sum-min' if config.summed else 'min-replies'}={least} are needed"
            raise RunFailed(f"{came} came within {within}{refused}, {needed}")
        if not expected or come >= expected:
            return ""
        log.warning("starting with %s%s", came, refused)
        return f"starting with {came}{refused}"

    def _over(self, expected: int, *, settled: bool) -> bool:
        """Return whether all have come, or all are refused; in a simulation each is one of both."""
        nodes, refused = len(self.roster.nodes), len(self.roster.refused)
        come = nodes + refused if self._mail.simulated or not nodes else nodes
        every = come >= expected if expected else settled
        return bool(come and every and (nodes or not self._asked))

    def query(self, patience: float = QUERY_PATIENCE) -> list[str]:
        """Ask unknown nodes who they are, for ``patience`` seconds; return new clients.

        A late answer counts as well. Nodes that are gone are forgotten.
        """
        mail, roster = self._mail, self.roster
        # Nodes of a simulation are the user's own processes and have no keys.
        if mail.simulated:
            online = dict.fromkeys(self.grid.get_node_ids(), NodeInfo())
        else:
            online = {info.node_id: info for info in self.grid.get_nodes()}
        if self._online.keys() - online.keys():
            roster.refused.clear()  # what a vanished node held may be free now: ask again
            self._tries.clear()
            self._informed.clear()
        self._online = online
        roster.nodes = {client: node for client, node in roster.nodes.items() if node in online}
        self._asked = {node: since for node, since in self._asked.items() if node in online}
        strangers = sorted(online.keys() - {*roster.nodes.values(), *roster.refused, *self._asked})
        self._asked |= dict.fromkeys(strangers, time.monotonic())
        self._ask(mail, dict.fromkeys(strangers, ""))
        mail.remind(2 * REMIND_AFTER)
        new = []
        while mail:
            new += [name for pair in mail.poll() for name in self._answered(*pair)]
            if not self._asked or time.monotonic() > max(self._asked.values()) + patience:
                break
            mail.pause()
        # Nodes on a network are told, once, why the run does without them; nobody waits for it.
        ignorant = roster.refused.keys() & online.keys() - self._informed
        untold = {node: roster.refused[node] for node in sorted(ignorant)}
        self._informed.update(untold)
        if untold and not mail.simulated:
            self._ask(self._notices, untold)
            self._notices.poll()
        return new

    def _ask(self, mail: Mail, refused: Mapping[int, str]) -> None:
        for node, why in refused.items():
            what = self.instruction(refused=why[: messages.LONGEST_TEXT])
            mail.waiting.append(messages.request(messages.QUERY, node, what, QUERY_TTL))

    def _answered(self, asked: Message, message: Message) -> list[str]:
        node, reply = asked.metadata.dst_node_id, messages.read_reply(message)
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
            key = SumKey.of_fields(declared.sum_key) if self.config.summed else None
            if not self._mail.simulated:
                check_name(self.config.client_keys, info.client, node, self._online)
            if info.client in self.roster.nodes:
                raise ValueError(f"client id '{info.client}' is already taken by another node")
            self.roster.admit(info, key)
        except ValueError as error:
            name = self._online.get(node, NodeInfo()).name  # which its key is registered under
            self.roster.refuse(node, f"{name}: {one_line(error)}" if name else one_line(error))
            return []
        self._expected = max(self._expected, declared.clients)
        self.roster.nodes[info.client] = node
        return [info.client]

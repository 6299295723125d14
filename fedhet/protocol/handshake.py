"""The handshake: a ``query`` phase asks every unknown node who it is, and admits or refuses it."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime

from flwr.app import Message
from flwr.serverapp import Grid

from fedhet.errors import RunFailedError, one_line
from fedhet.protocol.delivery import Mail
from fedhet.protocol.identity import Terms, read_declaration
from fedhet.protocol.keys import Badge, Names, badges
from fedhet.protocol.messages import QUERY, Instruction, read_reply, request
from fedhet.protocol.reasons import distinct
from fedhet.protocol.roster import Roster

log = logging.getLogger("fedhet")

QUERY_PATIENCE = 30.0  # seconds that a round waits for a node that has just been asked
QUERY_TTL = 600.0  # seconds in which an answer still counts: a large private folder takes long
QUERY_TRIES = 3
# Flower's SuperLink drops replies while its database is busy ("database is locked"): who has not
# answered after so many seconds is asked again, then after twice as many, and so on.
REMIND_AFTER = 60.0
PATIENT = 5.0  # seconds of waiting that nobody needs to be told of
HEARD = 10.0  # seconds for nodes to fetch why they are refused, before a run without any ends
SETTLE_SECONDS = 10.0  # with clients=0 on a network: no new node for this long means "all here"


class _Waiting:
    """Says who is waited for, and since when, once that has lasted a while, and when it changes."""

    def __init__(self, tell: Callable[[str], None], timeout: float) -> None:
        self.tell, self.timeout = tell, timeout
        self.begun, self.since = time.monotonic(), f"{datetime.now():%H:%M:%S}"
        self.told = ""

    def say(self, known: int, expected: int, refused: Iterable[str]) -> None:
        """How many clients are known, of how many (0: nobody said)."""
        if time.monotonic() - self.begun < min(PATIENT, self.timeout / 2):
            return
        of = f"{expected - known} of {expected} clients" if expected else "clients"
        reasons = "; ".join(sorted(set(refused)))
        text = f"waiting for {of} since {self.since}, until start-timeout={self.timeout:g} s"
        text += f" (refused: {reasons})" if reasons else ""
        if text != self.told:
            self.told = text
            log.info("%s", text)
            self.tell(text)


class Handshake:
    """Keeps a roster's nodes up to date; remembers who was asked, and how often."""

    def __init__(
        self,
        grid: Grid,
        experiment: str,
        roster: Roster,
        terms: Terms = Terms(),  # noqa: B008  (frozen)
        names: Names | None = None,
        state_dir: str = "",
    ) -> None:
        """``state_dir`` is where simulated clients keep their notes."""
        self.grid = grid
        self.experiment = experiment
        self.roster = roster
        self.terms = terms
        self.state_dir = state_dir
        self._mail = Mail(grid)
        self._names = names or Names()
        self._expected = 0
        self._online: dict[int, Badge] = {}
        self._asked: dict[int, float] = {}  # nodes that have not answered yet, and since when
        self._tries: Counter[int] = Counter()
        self._reminded: Counter[int] = Counter()
        self._told: set[int] = set()  # nodes that know why they are refused
        self._notices = Mail(grid)  # what tells them

    def wait(
        self, clients: int, timeout: float, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """Query nodes until ``clients`` are known, or the time is up.

        ``tell`` is called with what is waited for, whenever that changes, and with "" at the end.
        With ``clients = 0`` the nodes say how many partitions there are; if they do not, the
        federation counts as complete once no new node has come for a while.
        Raises RunFailedError if nobody came.
        """
        try:
            self._wait(clients, timeout, _Waiting(tell, timeout))
        finally:
            tell("")

    def _wait(self, clients: int, timeout: float, waiting: "_Waiting") -> None:
        deadline = time.monotonic() + timeout
        last_news = time.monotonic()
        while True:
            if self.query(patience=0.0) or self._asked:
                last_news = time.monotonic()
            nodes = self.roster.nodes
            expected = clients or self._expected
            if nodes and expected and len(nodes) >= expected:
                break
            settled = time.monotonic() - last_news > SETTLE_SECONDS
            if self._final(expected) or self._all_refuse(expected, settled=settled):
                break
            if (nodes and not expected and settled) or time.monotonic() > deadline:
                break
            waiting.say(len(nodes), expected, self.roster.refused.values())
            time.sleep(self._mail.interval)
        if not nodes:
            self._until_heard()
            reasons = distinct(self.roster.refused.values()) or "no node is online"
            if self._all_refuse(expected, settled=True):
                raise RunFailedError(f"no node can take part in this run: {reasons}")
            raise RunFailedError(f"no client within start-timeout={timeout:g} s: {reasons}")
        if expected and len(nodes) < expected:
            reasons = distinct(self.roster.refused.values())
            refused = f" (refused: {reasons})" if reasons else ""
            log.warning("starting with %d of %d clients%s", len(nodes), expected, refused)

    def _final(self, expected: int) -> bool:
        """Whether everybody of a simulation has answered: nobody else will come."""
        answered = len(self.roster.nodes) + len(self.roster.refused)
        return self._mail.simulated and bool(expected) and answered >= expected

    def _all_refuse(self, expected: int, *, settled: bool) -> bool:
        """Whether everybody has answered, and nobody can take part: waiting changes nothing."""
        refused = len(self.roster.refused)
        if self.roster.nodes or self._asked or not refused:
            return False
        return refused >= expected if expected else settled

    def query(self, patience: float = QUERY_PATIENCE) -> list[str]:
        """Ask unknown nodes who they are; forget nodes that are gone. Returns new clients.

        A node that has not answered ``patience`` seconds after it was first asked is not waited
        for; its answer counts when it comes, and on a network it is reminded now and then.
        """
        mail, roster = self._mail, self.roster
        # Nodes of a simulation are the user's own processes and have no keys.
        ids = self.grid.get_node_ids() if mail.simulated else []
        now = dict.fromkeys(ids, Badge()) if mail.simulated else badges(self.grid)
        online = set(now)
        if self._online.keys() - online:
            roster.refused.clear()  # what a vanished node held may be free now: ask again
            self._tries.clear()
            self._reminded.clear()
            self._told.clear()
        self._online = now
        roster.nodes = {client: node for client, node in roster.nodes.items() if node in online}
        self._asked = {node: since for node, since in self._asked.items() if node in online}
        strangers = sorted(online - {*roster.nodes.values(), *roster.refused, *self._asked})
        silent = [] if mail.simulated else self._silent()
        self._reminded.update(silent)
        self._asked |= dict.fromkeys(strangers, time.monotonic())
        what = Instruction(experiment=self.experiment, state_dir=self.state_dir)
        mail.add([request(QUERY, node, what, QUERY_TTL) for node in (*strangers, *silent)])
        new = []
        while mail:
            new += [name for pair in mail.poll() for name in self._answered(*pair)]
            if not self._asked or time.monotonic() > max(self._asked.values()) + patience:
                break
            mail.pause()
        self._tell_refused()
        return new

    def _tell_refused(self) -> None:
        """Tell nodes on a network, once, why the run does without them; no answer is waited for."""
        refused = self.roster.refused
        new = [node for node in refused if node in self._online and node not in self._told]
        self._told.update(new)
        if new and not self._mail.simulated:
            whys = [Instruction(self.experiment, refused=refused[node]) for node in new]
            pairs = zip(new, whys, strict=True)
            self._notices.add(request(QUERY, *pair, QUERY_TTL) for pair in pairs)
            self._notices.poll()

    def _until_heard(self) -> None:
        """Wait until the refused know why: with the run Flower drops what they have not fetched."""
        deadline = time.monotonic() + HEARD
        while self._notices and time.monotonic() < deadline:
            self._notices.poll()
            if self._notices:
                self._notices.pause()

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
                self._told.add(node)  # it says so itself
                raise ValueError(reply.error)
            declared = read_declaration(reply, self.terms)
            client = declared.info.client
            if not self._mail.simulated:
                self._names.check(client, node, self._online)
            if client in self.roster.nodes:
                raise ValueError(f"client id '{client}' is already taken by another node")
            self.roster.admit(declared.info, declared.key)
        except ValueError as error:
            self.roster.refuse(node, one_line(error))
            return []
        self._expected = max(self._expected, declared.clients)
        self.roster.nodes[client] = node
        if declared.warm is not None:
            self.roster.warm[client] = declared.warm
        return [client]

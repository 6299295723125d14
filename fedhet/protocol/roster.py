"""Who takes part: clients, the nodes that speak for them, and what was agreed.

Node ids are Flower's and random; everything here goes by client id.
"""

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedhet.data.inputs import Inputs, load_inputs
from fedhet.errors import RunFailedError
from fedhet.files import client_order
from fedhet.protocol.identity import ClientInfo
from fedhet.rng import generator
from fedhet.sums.messages import SumKey

log = logging.getLogger("fedhet")


class Roster:
    """Clients by id, their nodes while online, and the generation last accepted from each."""

    def __init__(self) -> None:
        self.infos: dict[str, ClientInfo] = {}
        self.nodes: dict[str, int] = {}
        self.generations: dict[str, int] = {}
        self.states: dict[str, str] = {}  # digest of that generation, once there is one
        self.lost: dict[str, dict[str, Any]] = {}  # whose state is gone: since when, and why
        self.keys: dict[str, SumKey] = {}  # for sums, where the run has masks
        self.warm: dict[str, bool] = {}  # as nodes on a network say when they come
        self.classes: tuple[str, ...] = ()
        self.inputs: Inputs | None = (
            None  # what examples are: the run's word, or that of most clients
        )
        self.refused: dict[int, str] = {}  # reason by node
        self._unbooked: list[tuple[str, str]] = []  # refusals that stand in no round yet

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

    def refuse(self, node: int, reason: str) -> None:
        """Keep a node out, with the reason; what it is called does not matter: it may lie."""
        log.warning("node %d is refused: %s", node, reason)
        self.refused[node] = reason
        self._unbooked.append((f"node {node}", reason))

    def refusals(self) -> list[tuple[str, str]]:
        """Who was refused, and why, since this was last asked."""
        found, self._unbooked = self._unbooked, []
        return found

    def admit(self, info: ClientInfo, key: SumKey | None = None) -> None:
        """Add a client, or check that a returning one declares what it declared before."""
        if key is not None:
            self._check_key(info.client, key)
        if self.inputs is not None and info.inputs is not None:
            difference = self.inputs.differs(info.inputs)
            if difference:
                raise ValueError(f"client '{info.client}': its {difference}")
        before = self.infos.get(info.client)
        if self.classes:
            info = self._with_ids(info)
        if before is not None and before.inputs is None:  # of a run older than the question
            before = replace(before, inputs=info.inputs)
        if before is not None and before != info:
            raise ValueError(f"client '{info.client}' declares other data or another model now")
        self.infos[info.client] = info
        self.generations.setdefault(info.client, 0)
        if key is not None:
            self.keys[info.client] = key

    def _check_key(self, client: str, key: SumKey) -> None:
        before = self.keys.get(client)
        if before is not None and before.public != key.public:
            raise ValueError(
                f"client '{client}' has lost its key for the sums of this run, and the others know "
                "that one only"
            )
        if any(key.public == one.public for other, one in self.keys.items() if other != client):
            raise ValueError(f"client '{client}' tells another client's key")

    def accept(self, client: str, round_: int, state: str) -> None:
        """A client's reply counts: its state of this round is the one to go on from."""
        self.generations[client] = round_
        self.states[client] = state
        self.lost.pop(client, None)

    def lose(self, client: str, round_: int, reason: str) -> None:
        """A client says that its state is gone; it is asked again, since a copy may come back."""
        self.lost.setdefault(client, {"round": round_, "reason": reason})

    def losses(self) -> list[dict[str, Any]]:
        """Clients whose state is gone, in client order."""
        return [{"client": c, **self.lost[c]} for c in sorted(self.lost, key=client_order)]

    def fix_classes(self, configured: Sequence[str], most: int = sys.maxsize) -> None:
        """Settle the global class list: configured, or what all clients agree on, or their union.

        Clients with a class that is not in the list are refused, and of a union of more than
        ``most`` classes those that bring most of what nobody else has; and before that those whose
        examples are others than most clients have.
        Raises RunFailedError if no client is left.
        """
        self._fix_inputs()
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
            raise RunFailedError(f"no client is left: {'; '.join(sorted(self.refused.values()))}")

    def _fix_inputs(self) -> None:
        """Where the run does not say what examples are: what most clients have, not the first."""
        said = Counter(info.inputs for client in self.ids if (info := self.infos[client]).inputs)
        if self.inputs is None and said:
            self.inputs = said.most_common(1)[0][0]
        for client in self.ids:
            own = self.infos[client].inputs
            if self.inputs and own and (difference := self.inputs.differs(own)):
                self._drop(client, f"client '{client}': its {difference}")

    def _bound_union(self, most: int) -> None:
        owners = Counter(name for info in self.infos.values() for name in info.classes)
        while len(owners) > most:
            own = {c: sum(owners[n] == 1 for n in self.infos[c].classes) for c in self.ids}
            client = max(self.ids, key=lambda c: (own[c], len(self.infos[c].classes)))
            owners = +(owners - Counter(self.infos[client].classes))
            self._drop(
                client,
                f"client '{client}' brings {own[client]} classes that nobody else has, and with "
                f"them there are more than max-classes={most}",
            )

    def _drop(self, client: str, reason: str) -> None:
        node = self.nodes.pop(client, None)
        if node is not None:
            self.refuse(node, reason)
        else:  # it has gone since it declared itself
            self._unbooked.append((client, reason))
        del self.infos[client], self.generations[client]
        self.keys.pop(client, None)

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
            "infos": {client: _plain(info) for client, info in self.infos.items()},
            "inputs": self.inputs.dump() if self.inputs is not None else None,
            "generations": self.generations,
            "states": self.states,
            "lost": self.lost,
            **({"keys": keys} if (keys := {c: key.dump() for c, key in self.keys.items()}) else {}),
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`; nodes are found again by the handshake."""
        self.classes = tuple(kept["classes"])
        self.infos = {client: ClientInfo(**_tuples(info)) for client, info in kept["infos"].items()}
        inputs = kept.get("inputs")
        self.inputs = load_inputs(inputs) if inputs is not None else None
        for client, info in self.infos.items():
            self.infos[client] = replace(info, inputs=self.inputs)
        self.generations = dict(kept["generations"])
        self.states, self.lost = dict(kept["states"]), dict(kept["lost"])
        self.keys = {client: SumKey.load(key) for client, key in kept.get("keys", {}).items()}


def _plain(info: ClientInfo) -> dict[str, Any]:
    """As plain values; what examples are is the same for everybody and kept once."""
    return {key: value for key, value in vars(info).items() if key != "inputs"}


def _tuples(info: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's lists back to the tuples of a ClientInfo."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in info.items()}

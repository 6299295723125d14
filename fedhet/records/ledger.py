"""What a round leaves: its line, its link of the hash chain, and the server's checkpoint.

The ledger counts what a round cost, who failed and why, and how good every client is.

The checkpoint is one safetensors file, replaced in one step after every round. A round's link in
the hash chain covers the previous link, the accepted uploads, the clients' metrics and the global
arrays after the round. Arrays enter with name, dtype, shape and bytes, in client order. Durations
and the evaluation metrics other than accuracy are left out. Runs of the same configuration have the
same ``run_sha256``.
"""

import hashlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedhet import files
from fedhet.config.schema import METRICS, is_beside, is_score
from fedhet.errors import Damaged, one_line
from fedhet.protocol.handshake import Roster
from fedhet.protocol.messages import Reply
from fedhet.protocol.payload import Array, Payload
from fedhet.records.formats import COUNTS, Meta
from fedhet.records.summary import participants_mean

log = logging.getLogger("fedhet")

# Numbers in every reply. The record has them under other names, or omits them.
COMMON = {"num-examples", "train_loss", "train_flops", "seconds", "epsilon_spent"}
_COUNTED = (*COUNTS, "train_flops")


@dataclass
class Round:
    """What one round adds up to; becomes a line of ``rounds.jsonl``."""

    number: int = 0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    losses: list[float] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    own: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # value, images
    scored: set[str] = field(default_factory=set)
    trained: list[Mapping[str, float]] = field(default_factory=list)  # metrics right after training
    epsilon_spent: dict[str, float] = field(default_factory=dict)
    late: list[dict[str, Any]] = field(default_factory=list)  # replies to earlier rounds' messages
    under_way: list[str] = field(default_factory=list)  # clients that were not waited for

    def carry(self, way: str, payload: Payload, message_bytes: int) -> None:
        """Count one message, ``uplink`` or ``downlink``."""
        self.counts[f"{way}_floats"] += payload.floats
        self.counts[f"{way}_bytes"] += payload.bytes
        self.counts[f"{way}_message_bytes"] += message_bytes


class Ledger:
    """Scores of all clients, the hash chain, and the round that is being written up."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.chain = Chain()
        self.scores: dict[str, dict[str, Any]] = {}  # last evaluations: generation and metrics
        self.round = Round()
        self.pace: dict[str, float] = {}  # seconds per training image, by model

    def fail(self, client: str, reason: str) -> None:
        """Leave a client out of the round, with the reason."""
        reason = one_line(reason)
        log.warning("round %d: client %s is left out: %s", self.round.number, client, reason)
        self.round.failures.append({"client": client, "reason": reason})

    def skip(self, reason: str) -> None:
        """Record why the round was skipped, without naming a client."""
        log.warning("round %d is skipped: %s", self.round.number, one_line(reason))
        self.round.failures.append({"client": files.NOBODY, "reason": one_line(reason)})

    def online(self, clients: Iterable[str]) -> list[str]:
        """Return those of ``clients`` that are online; record the others as offline."""
        names = list(clients)
        for client in (name for name in names if name not in self.roster.nodes):
            self.round.counts["offline"] += 1
            self.fail(client, "offline")
        return [name for name in names if name in self.roster.nodes]

    def reject(self, client: str, reason: str, reply: Reply) -> None:
        """Leave out a reply. Its bytes count as traffic, its floats do not."""
        self.fail(client, reason)
        self.round.counts["uplink_bytes"] += sum(array.nbytes for array in reply.arrays)
        self.round.counts["uplink_message_bytes"] += reply.message_bytes

    def accept(self, client: str, round_: int, payload: Payload, reply: Reply) -> None:
        """Book an accepted reply: the client goes on from its state of this round."""
        metrics = reply.metrics
        self.roster.accept(client, round_, reply.digest)
        self.round.counts["replied"] += 1
        self.round.counts["train_flops"] += metrics.get("train_flops", 0.0)
        self.round.carry("uplink", payload, reply.message_bytes)
        info = self.roster.infos[client]
        images = info.train_images or 1  # where nobody tells, all weigh 1
        self.pace[info.model] = metrics.get("seconds", 0.0) / images
        for name, value in metrics.items():
            if name not in COMMON and not is_score(name):
                self.round.own.setdefault(name, []).append((value, images))
        if "train_loss" in metrics:
            self.round.losses.append(metrics["train_loss"])
        self.chain.add("upload", client, metrics, payload.flat)
        if "test_accuracy" in metrics:
            self.score(client, metrics)
            self.round.trained.append(metrics)

    def late(self, client: str, asked: int, weight: float) -> None:
        """Book that an accepted reply is to the message of round ``asked``, with the factor."""
        self.round.late.append({"client": client, "round": asked, "weight": weight})
        self.chain.add("late", client, {"round": float(asked)})

    def spend(self, client: str, metrics: Mapping[str, float]) -> None:
        """Record the epsilon that a client has spent so far, if it adds noise."""
        if "epsilon_spent" in metrics:
            self.round.epsilon_spent[client] = metrics["epsilon_spent"]

    def score(self, client: str, metrics: Mapping[str, float]) -> None:
        """Book an evaluation of the client's current generation."""
        scores = {name: value for name, value in metrics.items() if is_score(name)}
        generation = self.roster.generations[client]
        self.scores[client] = {"generation": generation, "metrics": scores}
        self.round.scored.add(client)
        self.chain.add("score", client, scores)

    def unevaluated(self, *, everybody: bool) -> list[str]:
        """Online clients whose current state has no accuracy yet.

        Without ``everybody`` those that never took part are left out.
        """
        current = self.roster.generations
        return [
            client for client in self.roster.ids
            if client in self.roster.nodes and (everybody or current[client] > 0)
            and self.scores.get(client, {}).get("generation") != current[client]
        ]  # fmt: skip

    def spread(self, metric: str) -> dict[str, float]:
        """Mean, std, p10 and min of a metric over all clients that have it, unweighted."""
        ordered = sorted(self.scores.items(), key=lambda score: files.client_order(score[0]))
        v = np.array([one["metrics"][metric] for _, one in ordered if metric in one["metrics"]])
        figures = [v.mean(), v.std(), np.percentile(v, 10), v.min()] if v.size else [math.nan] * 4
        return dict(zip(("mean", "std", "p10", "min"), map(float, figures), strict=True))

    def record(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Close the round: its line of ``rounds.jsonl``."""
        now = self.round
        kinds = Counter(name for score in self.scores.values() for name in score["metrics"])
        record: dict[str, Any] = {"round": now.number}
        record |= {f"test_accuracy_{k}": v for k, v in self.spread("test_accuracy").items()}
        record["val_accuracy_mean"] = self.spread("val_accuracy")["mean"]
        for kind in sorted(kinds.keys() - {"test_accuracy", "val_accuracy"}):
            record[f"{kind}_mean"] = self.spread(kind)["mean"]
            if is_beside(kind):
                record[f"{kind}_clients"] = kinds[kind]
        for name in METRICS:
            figures = [m[f"test_{name}"] for m in now.trained if f"test_{name}" in m]
            if figures or name == "accuracy":
                record[participants_mean(name)] = float(np.mean(figures)) if figures else math.nan
                record[f"participants_test_{name}_clients"] = len(figures)
        record |= {
            "train_loss": float(np.mean(now.losses)) if now.losses else math.nan,
            "failed": len(now.failures),
            "evaluated_clients": kinds["test_accuracy"],
            **now.counts,
            **now.numbers,
        }
        for name in sorted(set(now.own) - set(record)):  # a client's metrics replace none of these
            values, images = zip(*now.own[name], strict=True)
            record[name] = float(np.average(values, weights=images))
        if now.epsilon_spent:
            record["epsilon_spent"] = now.epsilon_spent
        if now.late or now.under_way:
            record |= {"late": now.late, "under_way": now.under_way}
        record["lost"] = self.roster.losses()
        record["failures"] = sorted(now.failures, key=lambda f: files.client_order(f["client"]))
        record["sha256"] = self.chain.close(now.number, arrays)
        return record

    def client_rows(self) -> list[dict[str, Any]]:
        """Lines of ``clients.csv``: the clients evaluated in this round."""
        return [
            {"round": self.round.number, "client": client,
             "model": self.roster.infos[client].model,
             "generation": self.scores[client]["generation"], **self.scores[client]["metrics"]}
            for client in sorted(self.round.scored, key=files.client_order)
        ]  # fmt: skip

    def dump(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"sha256": self.chain.digest, "scores": self.scores}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`."""
        self.chain, self.scores = Chain(kept["sha256"]), dict(kept["scores"])


# --- checkpoint and hash chain -------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """The strategy's arrays, in its order, and the metadata of the round that they belong to."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """One safetensors file with the arrays and, as metadata, everything else.

    A digest of both lies beside them.
    """
    data = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    text = json.dumps({"names": list(data), **checkpoint.meta})  # a file has an order of its own
    with files.replacing(path, private=True, synced=True) as temporary:
        save_file(data, temporary, metadata={"json": text, "sha256": _digest(text, data)})


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Return the state after the last finished round; None if no round was ever begun.

    Raises Damaged if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        arrays, metadata = files.read_tensors(path, "numpy")
    except OSError as error:
        raise Damaged(f"'{path}' cannot be read: {error}") from error
    text = metadata.get("json", "")
    if metadata.get("sha256") != _digest(text, arrays):
        raise Damaged(f"'{path}' is damaged, or an older fedhet wrote it")
    source = f"'{path}'"
    meta = files.parse_object(text, source, "metadata")
    files.shaped(Meta, meta, source, "metadata")
    names = meta.pop("names")
    if sorted(names) != sorted(arrays):
        raise Damaged.at(source, "metadata: names", "not those of the arrays")
    return Checkpoint({name: arrays[name] for name in names}, meta)


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        hash_array(found, name, arrays[name])
    return found.hexdigest()


def next_attempt(path: Path) -> int:
    """Return the number of the next attempt at a sum, once it is in the file, on the disk.

    Raise Damaged if the file holds no number.
    """
    text = files.read_bytes(path).decode(errors="replace").strip() if path.exists() else "0"
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise Damaged(f"'{path}' is damaged: it holds no number")
    files.write_text(path, f"{int(text) + 1}\n", synced=True, private=True)
    return int(text) + 1


class Chain:
    """Collects one round's material and closes it into the next link."""

    def __init__(self, digest: str = "") -> None:
        self.digest = digest
        self._parts: dict[tuple[str, str], tuple[Sequence[Array], Mapping[str, float]]] = {}

    def add(
        self, kind: str, client: str, metrics: Mapping[str, float], arrays: Sequence[Array] = ()
    ) -> None:
        """Something that a client contributed to the round; the order of calls is irrelevant."""
        self._parts[kind, client] = (arrays, metrics)

    def close(self, round_: int, arrays: Mapping[str, Array]) -> str:
        """Return the round's link, as a hex digest."""
        link = hashlib.sha256(f"{self.digest}|{round_}".encode())
        for kind, client in sorted(
            self._parts, key=lambda part: (part[0], files.client_order(part[1]))
        ):
            uploaded, metrics = self._parts[kind, client]
            link.update(f"|{kind}|{client}".encode())
            for i, array in enumerate(uploaded):
                hash_array(link, str(i), array)
            for name in sorted(n for n in set(metrics) - {"seconds"} if not is_beside(n)):
                link.update(f"|{name}".encode() + np.float64(metrics[name]).tobytes())
        for name in sorted(arrays):
            hash_array(link, name, arrays[name])
        self._parts.clear()
        self.digest = link.hexdigest()
        return self.digest


def hash_array(link: "hashlib._Hash", name: str, array: Array) -> None:
    """Feed an array with its name, dtype and shape into a hash."""
    link.update(f"|{name}|{array.dtype.str}|{array.shape}".encode())
    link.update(np.ascontiguousarray(array).tobytes())

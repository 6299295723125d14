r"""What the server spends per client, per message and per byte, without any client behind it.

An in-memory grid answers every message at once with a prepared reply; all of the server's own
work is done as in a run: handshake, sampling, requests, decoding, checks, aggregation, metrics,
files and checkpoint. FedSSA sends 5,010 floats, FedMRL 465,658. `FedSSA` gives the cost per
message; the difference of the two, the cost per MiB that arrives and is sent.

    python -m benchmarks.scale [--clients 100 1000 10000]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message

from benchmarks.common import emit, median
from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs
from fedhet.engines.launch import Launch
from fedhet.protocol.flower import be_task, posted
from fedhet.protocol.handshake import Roster
from fedhet.protocol.messages import QUERY, Reply, answer, instruction
from fedhet.records.run_folder import RunFolder
from fedhet.server_app import run

ROUNDS = 5
CLASSES = [str(label) for label in range(10)]


class Echo:
    """Every node answers at once, with the payload that it was sent."""

    pull_interval = 0.0  # what marks a simulation's grid

    def __init__(self, clients: int) -> None:
        be_task()
        self.clients = clients
        self.waiting: dict[str, Message] = {}
        self.requests = 0

    def get_node_ids(self) -> Iterable[int]:
        """All of them, always."""
        return range(1, self.clients + 1)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take requests; they are answered when pulled."""
        found = []
        for message in messages:
            found.append(posted(message))
            self.waiting[found[-1]] = message
        self.requests += len(found)
        return found

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        """Return the replies."""
        return [self._reply(self.waiting.pop(i)) for i in identities if i in self.waiting]

    def _reply(self, message: Message) -> Message:
        client = str(message.metadata.dst_node_id - 1)
        if message.metadata.message_type == QUERY:
            info = {
                "client": client, "clients": self.clients, "classes": CLASSES, "seen": CLASSES,
                "images": [10] * 10, "train-images": 100, "model": "cnn-5", "device": "cpu",
                "inputs": json.dumps(Inputs.image(32).dump()),
            }  # fmt: skip
            return answer(message, Reply(info))
        numbers = {"num-examples": 100.0, "test_accuracy": 50.0, "val_accuracy": 50.0,
                   "train_loss": 1.0, "train_flops": 1.0, "seconds": 1.0}  # fmt: skip
        what = {"client": client, "round": instruction(message).round, "digest": "0" * 64}
        reply = answer(message, Reply(what, numbers))
        if "arrays" in message.content:  # not in the message after the last round
            reply.content["arrays"] = message.content["arrays"]  # as it came: encoded already
        return reply


def measure(method: str, clients: int) -> None:
    """One run in this process; prints its line."""
    with tempfile.TemporaryDirectory() as out:
        config = build_config(
            {"method": method, "dataset": "digits", "models": ["cnn-5"], "clients": clients,
             "rounds": ROUNDS, "out": out}
        )  # fmt: skip
        folder = RunFolder.create(config, "scale")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        run(Echo(clients), Launch(config, folder), Roster())  # type: ignore[arg-type]
        total = time.perf_counter() - started
        rounds = [record["seconds"] for record in folder.read_rounds()]
        record = folder.read_rounds()[-1]
        checkpoint = folder.checkpoint.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sent = record["uplink_bytes"] + record["downlink_bytes"]
    emit(
        "scale", method=method, clients=clients, seconds_per_round=median(rounds),
        milliseconds_per_client_round=round(1e3 * median(rounds) / clients, 3),
        handshake_milliseconds_per_client=round(1e3 * (total - sum(rounds)) / clients, 3),
        mebibytes_per_round=round(sent / 2**20, 1), peak_memory_mebibytes=round(peak / 2**10),
        checkpoint_bytes_per_client=round(checkpoint / clients),
    )  # fmt: skip


def main() -> None:
    """Measure every case in a process of its own, so that peaks do not mix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--method", choices=["fedssa", "fedmrl"], help="one case, in this process")
    chosen = parser.parse_args()
    if chosen.method:
        measure(chosen.method, chosen.clients[0])
        return
    for method in ("fedssa", "fedmrl"):
        for clients in chosen.clients:
            if method == "fedmrl" and clients > 1000:
                continue  # 1.9 MB each way: 10,000 of them are 37 GB
            command = [sys.executable, "-m", "benchmarks.scale", "--method", method]
            root = Path(__file__).resolve().parents[1]
            subprocess.run([*command, "--clients", str(clients)], check=True, cwd=root)


if __name__ == "__main__":
    main()

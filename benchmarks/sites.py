"""Six sites with their own photographs and architectures, as real processes and as a simulation.

Office-Caltech at 64 x 64: each site is a ``fedhet node`` with a folder of its own, its own split
and its own model (CNN-1 to CNN-5, ResNet-18) behind ``fedhet server`` with TLS, keys and the fence.
For each method the run is disturbed if asked for (one node leaves and returns, one is killed, the
SuperLink is killed and the run resumed) and must end with the bytes of the simulation on the
partition file that loses the same replies. Prints one line a method.

    python -m benchmarks.sites ZIP PARTITION [--methods fedssa fedmrl pfedes] [--rounds 8]
        [--epochs 2] [--disturb]
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Error, Message

from benchmarks.common import emit
from fedhet.config.load import build_config
from fedhet.engines.process_groups import environment, free_ports, script
from fedhet.engines.signals import interruptible
from fedhet.protocol.messages import instruction
from fedhet.reading.structured import read_jsonl
from fedhet.testing import simulate

MODELS = ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5", "resnet18"]
METHODS = ["standalone", "fedssa", "fedmrl", "pfedes"]
PATIENCE = 1800.0  # seconds for anything; a bound on a hang


def until(what: Callable[[], object], reason: str) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited too long: {reason}")
        time.sleep(0.5)


def lay_out(zipped: Path, partition: Path, out: Path) -> dict[str, list[str]]:
    """A folder and a split file per site below ``out``; returns each site's lines of the table."""
    with partition.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with zipfile.ZipFile(zipped) as archive:
        top = archive.namelist()[0].split("/")[0]
        for row in rows:
            to = out / row["client"] / row["path"]
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(archive.read(f"{top}/{row['path']}"))
    lines: dict[str, list[str]] = {}
    for row in rows:
        lines.setdefault(row["client"], []).append(f"{row['path']},{row['client']},{row['split']}")
    for site, own in lines.items():
        (out / f"{site}.csv").write_text("\n".join(["path,client,split", *own]) + "\n")
    return lines


class Deployment:
    """The commands, started as a person would."""

    def __init__(
        self, folder: Path, models: Mapping[str, str], data: Callable[[str], Sequence[str]]
    ) -> None:
        """``models`` by site; ``data``: the words of ``fedhet node`` for what a site has."""
        self.folder, self.data = folder, data
        self.models = dict(models)
        sites = list(models)
        self.env = environment({"HOME": str(folder)})
        (self.port,) = free_ports(1)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        names = [word for site in sites for word in ("--client", site)]
        self.do("certs", "--out", "tls", "--server", "127.0.0.1", *names)
        self.start("server", "server", "tls", "--host", "127.0.0.1", "--port", str(self.port))
        for site in sites:
            self.join(site)
        for site in sites:
            until(partial(self._is_admitted, site), f"{site} is admitted")

    def _is_admitted(self, site: str) -> bool:
        return "admitted" in self.said(site)

    def do(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [script("fedhet"), *words], env=self.env, cwd=self.folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def start(self, name: str, *words: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a command that stays; ``before`` it stand words such as ``nice``."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*before, script("fedhet"), *words], env=self.env, cwd=self.folder, stdout=log,
                stderr=log,
            )  # fmt: skip
        return self.running[name]

    def join(self, site: str) -> None:
        """Start a site's node."""
        self.start(
            site, "node", f"tls/clients/{site}", "--server", f"127.0.0.1:{self.port}",
            *self.data(site), "--model", self.models[site],
            before=("nice", "-n", "2"),  # the SuperLink never waits for its clients' training
        )  # fmt: skip

    def said(self, name: str) -> str:
        """The log of a command."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def program(self, of: str, name: str) -> psutil.Process:
        """A program of Flower's below a command."""
        below = psutil.Process(self.running[of].pid).children(recursive=True)
        return next(p for p in below if any(Path(w).name == name for w in p.cmdline()[:2]))

    def all_are_back(self) -> bool:
        """Whether the server answers and every node is online."""
        done = self.do("status", "--json")
        nodes = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
        return bool(nodes) and all(node["status"] == "online" for node in nodes)

    def stop(self) -> None:
        """End everything."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait(120)


def disturb(place: Deployment, run: subprocess.Popen[bytes], rounds: Path) -> None:
    """One site leaves and returns, another is killed, and so is the SuperLink."""

    def reached(count: int) -> Callable[[], bool]:
        return lambda: (
            run.poll() is not None or (rounds.exists() and len(read_jsonl(rounds)) >= count)
        )

    leaver, victim = list(place.models)[:2]
    until(reached(1), "round 1")
    place.running[leaver].send_signal(signal.SIGTERM)
    place.running[leaver].wait(120)
    place.program(victim, "flower-supernode").kill()  # its command starts it again
    until(reached(2), "round 2")
    place.join(leaver)
    until(reached(4), "round 4")
    place.program("server", "flower-superlink").kill()
    place.running["server"].wait(120)
    run.wait()
    place.start("server", "server", "tls", "--host", "127.0.0.1", "--port", str(place.port))


def deployed(place: Deployment, config: Mapping[str, Any], *, disturbed: bool) -> dict[str, Any]:
    """Run it on the sites; returns the summary."""
    name = str(config["method"])
    lines = [f"{key}: {value}\n" for key, value in config.items()]
    (place.folder / f"{name}.yaml").write_text("".join(lines))
    folder = place.folder / "runs" / name
    run = place.start("run", "run", f"{name}.yaml", f"name={name}", "--superlink", "tls")
    if disturbed:
        disturb(place, run, folder / "rounds.jsonl")
    run.wait()
    if run.returncode not in {0, 3}:
        raise SystemExit(place.said("run"))
    while run.returncode:
        until(place.all_are_back, "all are back")
        done = place.do("resume", str(folder), "--superlink", "tls")
        run.returncode = done.returncode
        if done.returncode not in {0, 3}:
            raise SystemExit(done.stderr)
    del place.running["run"]
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    with (folder / "clients.csv").open(newline="") as file:
        last = {row["client"]: float(row["test_accuracy"]) for row in csv.DictReader(file)}
    return found | {"sites": {site: round(last[site], 1) for site in place.models}}


def simulated(config: Mapping[str, Any], sites: Sequence[str], lost: set[tuple[int, str]]) -> str:
    """The run_sha256 of the simulation on the partition file, without the replies in ``lost``."""

    def lose(node: int, message: Message, reply: Message) -> Message:
        gone = message.metadata.message_type == "train" and (
            (instruction(message).round, sites[node]) in lost
        )
        return Message(Error(code=1, reason="lost"), reply_to=message) if gone else reply

    folder, _ = simulate(build_config(config), tamper=lose)
    return str(json.loads(folder.summary.read_text())["run_sha256"])


def compare(
    place: Deployment, config: Mapping[str, Any], more: Mapping[str, Any], *, disturbed: bool
) -> dict[str, Any]:
    """Run it on the sites and, with ``more`` keys, as a simulation: what is printed of both."""
    started = time.perf_counter()
    found = deployed(place, config, disturbed=disturbed)
    seconds = time.perf_counter() - started
    lost = {(f["round"], f["client"]) for f in found["failures"]}
    out = {"out": str(place.folder / "simulated" / str(config["method"]))}
    same = simulated({**config, **more, **out}, list(place.models), lost) == found["run_sha256"]
    return {
        "method": config["method"], "rounds": config["rounds"],
        "same_bytes_as_the_simulation": same, "lost": sorted(lost), "seconds": round(seconds),
        "accuracy": round(found["test_accuracy_mean"], 2), "sites": found["sites"],
        "load": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    """Measure and print; a signal ends everything that was started."""
    with interruptible():
        _main()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("zip", type=Path)
    parser.add_argument("partition", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--disturb", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lines = lay_out(chosen.zip, chosen.partition, folder / "sites")
        sites = sorted(lines)
        classes = sorted({line.split("/")[0] for own in lines.values() for line in own})
        place = Deployment(
            folder,
            dict(zip(sites, MODELS, strict=False)),
            lambda site: ("--data", f"sites/{site}", "--split", f"sites/{site}.csv"),
        )
        try:
            for method in chosen.methods:
                config = {
                    "method": method, "dataset": "image-folder", "clients": len(sites),
                    "classes": ",".join(classes), "image-size": 64, "rounds": chosen.rounds,
                    "local-epochs": chosen.epochs, "round-timeout": PATIENCE,
                    "start-timeout": PATIENCE,
                }  # fmt: skip
                more = {
                    "data-path": str(chosen.zip.absolute()), "partition": "file",
                    "partition-file": str(chosen.partition.absolute()), "models": MODELS,
                }  # fmt: skip
                emit(
                    "sites", epochs=chosen.epochs,
                    **compare(place, config, more, disturbed=chosen.disturb),
                )  # fmt: skip
        finally:
            place.stop()


if __name__ == "__main__":
    main()

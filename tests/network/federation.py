"""A federation on 127.0.0.1 as its members type it, with ``fedhet`` commands.

Everything lives in one temporary folder; everything started is ended by its pid.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from flwr.app import Error, Message
from helpers.pace import PATIENCE
from helpers.programs import Process, wait_for

from fedhet.config.load import build_config
from fedhet.deploy.control import ServerFolder
from fedhet.engines.system import environment, free_ports, script
from fedhet.errors import RunFailed
from fedhet.protocol.messages import instruction
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"  # "installed" on every node
HOST = "127.0.0.2"  # loopback, but not what a proxy is never asked for
TRAINS = "multiprocessing.spawn"  # in the command line of a node's process with torch
PRESET = {
    "method": "fedssa", "dataset": "synthetic:300x4", "models": "cnn-5", "clients": 3, "rounds": 3,
    "local-epochs": 1,
}  # fmt: skip


class Commands:
    """``fedhet`` in one folder, with HOME in it."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.modules = folder, folder / "modules"  # a module there is "installed"
        self.modules.mkdir(exist_ok=True)
        modules = [str(EXAMPLES), str(self.modules), os.environ.get("PYTHONPATH", "")]
        self.env = environment(
            {"HOME": str(folder), "FLWR_HOME": str(folder / "flwr"),
             "FEDHET_CACHE": os.environ.get("FEDHET_CACHE", ""),
             "PYTHONPATH": os.pathsep.join(filter(None, modules)), **env}
        )  # fmt: skip
        self.started: list[Process] = []

    def start(self, name: str, *words: str) -> Process:
        made = Process([script("fedhet"), *words], self.folder / f"{name}.log", self.env)
        self.started.append(made.start())
        return made

    def do(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script("fedhet"), *words], env=env or self.env, cwd=self.folder, capture_output=True,
            text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip

    def stop(self) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.end()


class Federation(Commands):
    """``fedhet server`` and nodes ``0..n-1``, with shares of a data set unless told otherwise."""

    def __init__(self, folder: Path, nodes: int, **env: str) -> None:
        super().__init__(folder, **env)
        self.size, self.names = nodes, [str(k) for k in range(nodes)]
        (self.port,) = free_ports(1)
        self.tls = ServerFolder(folder / "tls")
        words = [word for name in self.names for word in ("--client", name)]
        done = self.do("certs", "--out", "tls", "--server", HOST, *words)
        assert done.returncode == 0, done.stderr
        self.server = self._process("server", "server", "tls", *self.at("--host", "--port"))
        self.nodes: dict[int, Process] = {}

    def _process(self, name: str, *words: str) -> Process:
        return Process([script("fedhet"), *words], self.folder / f"{name}.log", self.env)

    def at(self, *options: str) -> tuple[str, ...]:
        """Where the server is, as one option or two."""
        if len(options) == 1:
            return options[0], f"{HOST}:{self.port}"
        return options[0], HOST, options[1], str(self.port)

    def whole(self, own: Mapping[int, Sequence[str]] | None = None) -> "Federation":
        """Server up and all nodes online, with their share or with these options."""
        if not self.server.running():
            self.start_server()
        started = []
        for k in range(self.size):
            words = self.node_words(k, (own or {}).get(k))
            before = self.nodes.get(k)
            if before is None or before.words[1:] != words or not before.running():
                if before is not None:
                    before.end()
                started.append(self.start_node(k, words))
        for node, times in started:
            wait_for(lambda n=node, t=times: n.said("admitted by") > t, f"{node.words} is let in")
        wait_for(lambda: self.online() == self.size, f"{self.size} nodes are online", pause=1.0)
        return self

    def start_server(self) -> None:
        times = self.server.said("clients reach")
        self.server.start()
        wait_for(lambda: self.server.said("clients reach") > times, "the server is there")

    def start_node(self, k: int, words: Sequence[str] = ()) -> tuple[Process, int]:
        """Start a node; with how often it was let in before."""
        self.nodes[k] = self._process(f"node-{k}", *(words or self.nodes[k].words[1:]))
        times = self.nodes[k].said("admitted by")
        return self.nodes[k].start(), times

    def node_words(self, k: int, own: Sequence[str] | None = None) -> list[str]:
        given = list(own or ("--partition", f"{k}/{self.size}"))
        if "--state" not in given:
            given += ["--state", str(self.state_dir(k))]
        return ["node", f"tls/clients/{self.names[k]}", *self.at("--server"), *given]

    def tidy(self) -> None:
        """End what a test started beside the nodes."""
        super().stop()
        self.started.clear()

    def stop(self) -> None:
        for process in (*self.nodes.values(), self.server):
            process.terminate()
        for process in (*self.nodes.values(), self.server):
            process.end()
        self.tidy()

    def memory(self) -> dict[str, float]:
        """MiB that the SuperLink and its ServerApp hold."""
        found = {name: self.server.child(name) for name in ("flower-superlink", "flwr-serverapp")}
        return {name: one.memory_info().rss / 2**20 for name, one in found.items() if one}

    def state_dir(self, k: int) -> Path:
        return self.folder / "state" / self.names[k]

    def log(self, k: int) -> Path:
        """What Flower says at node k."""
        return self.state_dir(k) / "node.log"

    def state(self, run: "Run", k: int, generation: int) -> Path:
        """Where node k saves that generation."""
        experiment = RunFolder(run.folder).experiment
        return self.state_dir(k) / experiment / str(k) / f"{generation:08}.safetensors"

    def training(self, k: int) -> int:
        """How many train messages node k's SuperNode has received and not answered."""
        _, _, text = self.log(k).read_text(errors="replace").rpartition("Starting Flower SuperNode")
        return text.count("Receiving: train message") - text.count("Sending: train message")

    def caught(self, run: "Run", k: int) -> psutil.Process | None:
        """Node k's process with torch, stopped before it has saved the running round's state."""
        worker = self.nodes[k].child(TRAINS)
        if worker is None or not self.training(k):
            return None
        worker.suspend()  # first, and looked at then: no training need be long for that
        if self.training(k) and not self.state(run, k, len(run.rounds()) + 1).exists():
            return worker
        worker.resume()
        return None

    def online(self) -> int:
        """How many nodes are online; a SuperLink that is busy is asked again, but not for ever."""
        with contextlib.closing(self.tls.connect()) as control:
            for pause in (1.0, 2.0, 4.0, 8.0, 16.0):
                with contextlib.suppress(RunFailed):
                    return sum(node.status == "online" for node in control.nodes())
                time.sleep(pause)
            return sum(node.status == "online" for node in control.nodes())

    def run(self, name: str, **changes: object) -> "Run":
        """Start ``fedhet run --superlink`` with the preset and these changes (snake_case)."""
        values = PRESET | {key.replace("_", "-"): value for key, value in changes.items()}
        config = self.folder / f"{name}.yaml"
        config.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
        return self._run(self.folder / "runs" / name, "run", str(config), f"name={name}")

    def resume(self, run: "Run") -> "Run":
        return self._run(run.folder, "resume", str(run.folder))

    def _run(self, folder: Path, *words: str) -> "Run":
        process = self.start(f"fedhet-{len(self.started)}", *words, "--superlink", "tls")
        return Run(folder, process)


class Run:
    """A run that was submitted, and its folder."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder, self.process = folder, process

    def rounds(self) -> list[dict]:
        path = self.folder / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_rounds(self, count: int) -> None:
        self.wait_for_round(lambda record: record["round"] >= count)

    def wait_for_round(self, wanted: Callable[[dict], bool]) -> None:
        """Until the last finished round is such, however many rounds that takes."""
        rounds = -1
        while not any(map(wanted, self.rounds()[-1:])):
            assert self.process.running(), self.process.log.read_text()
            rounds = self._next_round(rounds)

    def catch(self, federation: Federation, k: int, pause: float = 0.02) -> psutil.Process:
        """Node k's process, stopped while it trains; ``pause`` is shorter than that lasts."""
        held: list[psutil.Process | None] = []

        def stopped() -> bool:
            assert self.process.running(), self.process.log.read_text()
            held[:] = [federation.caught(self, k)]
            return held[0] is not None

        wait_for(stopped, f"node {k} trains", pause)
        assert held[0] is not None
        return held[0]

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        assert self.process.popen is not None
        self.process.popen.send_signal(signal.SIGINT)
        wait_for(lambda: not self.process.running(), "an interrupted command ends")
        return int(self.process.popen.returncode)

    def result(self, code: int = 0) -> dict:
        """Wait for its end, however long it takes while rounds are finished; its summary."""
        rounds = -1
        while self.process.running():
            rounds = self._next_round(rounds)
        assert self.process.popen is not None
        assert self.process.popen.returncode == code, self.process.log.read_text()
        return self.summary()

    def _next_round(self, rounds: int) -> int:
        """Wait until more rounds than that are finished, or the command is; how many now."""
        wait_for(
            lambda: not self.process.running() or len(self.rounds()) > rounds,
            f"round {rounds + 1} of {shlex.join(self.process.words)}",
        )
        return len(self.rounds())

    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())


def simulated_hash(tmp_path: Path, without: set[tuple[int, str]] = frozenset(), **changes) -> str:
    """The run_sha256 of a simulation in which these (round, client) replies are lost."""
    values = PRESET | {key.replace("_", "-"): value for key, value in changes.items()}
    config = build_config(values | {"out": str(tmp_path / "simulated")})

    def lose(node, message, reply):
        lost = (instruction(message).round, str(node)) in without
        if lost and message.metadata.message_type == "train":
            return Message(Error(code=1, reason="lost"), reply_to=message)
        return reply

    folder, _ = simulate(config, tamper=lose)
    return json.loads(folder.summary.read_text())["run_sha256"]

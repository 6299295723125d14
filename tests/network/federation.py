"""A real federation on 127.0.0.1: TLS, authenticated SuperNodes, one process tree each.

Everything lives in one temporary folder; everything started is ended by its pid.
"""

import contextlib
import functools
import json
import os
import shlex
import signal
import ssl
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from flwr.app import Error, Message
from network.programs import Process, Supervisor, wait_for

from fedhet.config.load import build_config
from fedhet.deploy.certs import Credentials, make
from fedhet.deploy.control_api import Control
from fedhet.deploy.node import TASK_POLL
from fedhet.deploy.warm import Warm
from fedhet.engines.process_groups import environment, free_ports, script
from fedhet.protocol.messages import instruction
from fedhet.testing import simulate

CONNECTION = "net"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"  # "installed" on every node
PRESET = {
    "method": "fedssa",
    "dataset": "synthetic:300x4",
    "models": "cnn-5",
    "clients": 3,
    "rounds": 3,
    "local-epochs": 1,
}


class Federation:
    """SuperLink and SuperNodes ``0..n-1``; clients of a partition unless configured otherwise."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.size = folder, nodes
        self.home = folder / "flwr"
        self.home.mkdir(parents=True)
        self.port, *self.ports = free_ports(nodes + 6)
        self.names = [str(k) for k in range(nodes)]  # a key's name is its client's id
        self.tls: Credentials = make(folder / "tls", ["127.0.0.1"], self.names)
        modules = [str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
        self.env = environment(
            {"FLWR_HOME": str(self.home), "FEDHET_CACHE": os.environ.get("FEDHET_CACHE", ""),
             "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": TASK_POLL,
             "PYTHONPATH": os.pathsep.join(filter(None, modules))}
        )  # fmt: skip
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.tls.ca}"\n'
        )
        self.superlink = Process(
            [script("flower-superlink"), "--ssl-ca-certfile", str(self.tls.ca),
             "--ssl-certfile", str(self.tls.certificate), "--ssl-keyfile", str(self.tls.key),
             "--enable-supernode-auth", "--database", str(folder / "superlink.db"),
             "--host", "127.0.0.1", "--port", str(self.port),
             "--disable-runtime-dependency-installation"],
            folder / "superlink.log", self.env,
        )  # fmt: skip
        # Messages are forks, as with `fedhet node`.
        self.warm = Warm(self.env)
        self.node_env = self.env | {"PATH": f"{self.warm.programs()}:{self.env['PATH']}"}
        self.control = Control(f"127.0.0.1:{self.port}", self.tls.ca)
        self.nodes: dict[int, Process] = {}
        self.others: list[Process] = []
        self.supervisors: list[Supervisor] = []

    # --- life ----------------------------------------------------------------------------------

    def whole(self, configs: Mapping[int, str] | None = None) -> "Federation":
        """SuperLink up and all nodes online, with their partition or with these configurations.

        Only what differs is started (again). A node that was killed is refused, again and again,
        until its last heartbeat has expired.
        """
        if not self.warm.held():
            self.warm.hold()
        if not self.superlink.running():
            self.start_superlink()
        if not self.nodes:
            for name in self.names:
                self.control.register(name, Path(f"{self.tls.client(name)}.pub"))
        wanted = {k: self.node_words(k, (configs or {}).get(k, "")) for k in range(self.size)}
        others = {
            k: words
            for k, words in wanted.items()
            if k not in self.nodes
            or not self.nodes[k].running()
            or self.nodes[k].words != words
            or self.nodes[k].stale()
        }
        self.end_nodes(*others)
        for k, words in others.items():
            log = self.folder / f"node-{k}.log"
            self.nodes[k] = Process(words, log, self.node_env)
        before = {k: self.nodes[k].said("SuperNode ID") for k in others}
        for k in others:
            self.supervise(k)
        for k, times in before.items():
            let_in = functools.partial(self._let_in, k, times)
            wait_for(let_in, f"node {k} is let in")
        self.unsupervise()
        self.wait_online(self.size)
        return self

    def _let_in(self, k: int, before: int) -> bool:
        return self.nodes[k].said("SuperNode ID") > before

    def end_nodes(self, *which: int) -> None:
        """End those of these nodes that run, all at once: each takes seconds to say good-bye."""
        ended = [self.nodes[k] for k in which if k in self.nodes]
        for node in ended:
            node.terminate()
        for node in ended:
            node.end()

    def start_superlink(self) -> None:
        self.superlink.start()
        context = ssl.create_default_context(cafile=str(self.tls.ca))

        def answers() -> bool:
            assert self.superlink.running(), self.superlink.log.read_text()
            with contextlib.suppress(OSError):
                address = f"https://127.0.0.1:{self.port}/health"
                with urllib.request.urlopen(address, context=context, timeout=2) as answer:
                    return bool(answer.status == 200)
            return False

        wait_for(answers, "the SuperLink answers")

    def node_words(self, k: int, config: str = "") -> list[str]:
        text = config or f"partition-id={k} num-partitions={self.size}"
        if "state-dir" not in text:
            text += f' state-dir="{self.state_dir(k)}"'
        return [
            # As if on a machine of its own: the SuperLink never waits for its clients' training.
            "nice", script("flower-supernode"), "--root-certificates", str(self.tls.ca),
            "--superlink", f"127.0.0.1:{self.port}", "--port", str(self.ports[k]),
            "--auth-supernode-private-key", str(self.tls.client(self.names[k])),
            "--node-config", text,
        ]  # fmt: skip

    def extra(self, words: Sequence[str], name: str) -> Process:
        """A further program, ended with the federation."""
        self.others.append(Process(words, self.folder / f"{name}.log", self.env).start())
        return self.others[-1]

    def supervise(self, k: int) -> Supervisor:
        self.supervisors.append(Supervisor(self.nodes[k]))
        return self.supervisors[-1]

    def unsupervise(self) -> None:
        for supervisor in self.supervisors:
            supervisor.stop()
        self.supervisors.clear()

    def tidy(self) -> None:
        """End what a test started beside the nodes."""
        self.unsupervise()
        for process in self.others:
            process.end()

    def stop(self) -> None:
        self.tidy()
        self.end_nodes(*self.nodes)
        self.superlink.end()
        self.control.close()
        self.warm.release()

    def memory(self) -> dict[str, float]:
        """MiB that the SuperLink and its ServerApp hold."""
        assert self.superlink.popen is not None
        app = self.superlink.child("flwr-serverapp")
        assert app is not None
        found = {"superlink": psutil.Process(self.superlink.popen.pid), "serverapp": app}
        return {name: one.memory_info().rss / 2**20 for name, one in found.items()}

    def state_dir(self, k: int) -> Path:
        return self.folder / "state" / self.names[k]

    # --- commands ------------------------------------------------------------------------------

    def online(self) -> int:
        return sum(node.status == "online" for node in self.control.nodes())

    def wait_online(self, count: int) -> None:
        wait_for(lambda: self.online() == count, f"{count} SuperNodes are online", pause=1.0)

    def command(self, *words: str) -> Process:
        """A ``fedhet`` command; its log is what it prints."""
        name = f"fedhet-{len(self.others)}"
        return self.extra([script("fedhet"), *words], name)

    def run(self, name: str, **changes: object) -> "Run":
        """Start ``fedhet run --superlink`` with the preset and these changes (snake_case)."""
        values = PRESET | {key.replace("_", "-"): value for key, value in changes.items()}
        config = self.folder / f"{name}.yaml"
        config.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
        words = ["run", str(config), f"out={self.folder / 'runs'}", f"name={name}"]
        return Run(self, self.folder / "runs" / name,
                   self.command(*words, "--superlink", CONNECTION))  # fmt: skip

    def resume(self, run: "Run") -> "Run":
        words = ("resume", str(run.folder), "--superlink", CONNECTION)
        return Run(self, run.folder, self.command(*words))

    def receiving(self, k: int, count: int) -> Callable[[], bool]:
        """Whether SuperNode k has received ``count`` train messages in its life."""
        return lambda: self.nodes[k].said("Receiving: train message") >= count


class Run:
    """A run that was submitted, and its folder."""

    def __init__(self, federation: Federation, folder: Path, process: Process) -> None:
        self.federation, self.folder, self.process = federation, folder, process

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

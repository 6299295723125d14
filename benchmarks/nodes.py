"""What deployed SuperNodes cost: CPU of the SuperLink while they idle, CPU and time of a message.

Real processes on 127.0.0.1, without TLS. What the SuperLink spends without any node is measured
first, then with nodes that have nothing to do, then a run of a few digits and CNN-5 on all of them.

    python -m benchmarks.nodes [--nodes 8] [--seconds 30] [--rounds 8]
"""

import argparse
import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.common import command, emit, median
from fedhet.records.run_folder import read_jsonl
from fedhet.runtime.superlink import CONNECTION, environment, free_ports, script

SETTLE = 12.0  # seconds for imports and the first connection
WARM_UP = 2  # rounds before the count starts
RUN = ["method=fedssa", "dataset=digits", "models=cnn-5", "local-epochs=1", "start-timeout=300"]


def cpu_seconds(processes: list[subprocess.Popen[bytes]]) -> float:
    """What they, their living descendants and those that have ended have used."""
    total = 0.0
    for process in processes:
        tree = psutil.Process(process.pid)
        for one in [tree, *tree.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:4])
    return total


def cpu_per_second(processes: list[subprocess.Popen[bytes]], seconds: float) -> float:
    """CPU seconds per second."""
    before, started = cpu_seconds(processes), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(processes) - before) / (time.perf_counter() - started)


class Home:
    """A folder with a SuperLink, its SuperNodes and what they write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment({"FLWR_HOME": str(folder)})
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a program with its log."""
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            made = subprocess.Popen(words, env=self.env, stdout=log, stderr=log)
        self.started.append(made)
        return made

    def stop(self) -> None:
        """End everything, last first."""
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(30)


def run(home: Home, nodes: int, rounds: int) -> dict[str, float]:
    """A run on all nodes; CPU seconds a message, seconds a round."""
    link, *others = home.started
    words = command(home.folder, [*RUN, f"clients={nodes}", f"rounds={rounds}"])
    job = home.start(*words, "--superlink", CONNECTION)
    lines = home.folder / "run" / "rounds.jsonl"
    marks = []
    for count in (WARM_UP, rounds - 1):
        while not lines.exists() or len(read_jsonl(lines)) < count:
            if job.poll() is not None:
                raise SystemExit((home.folder / f"{len(home.started) - 1}.log").read_text())
            time.sleep(0.05)
        marks.append((cpu_seconds(others), cpu_seconds([link])))
    job.wait()
    messages = nodes * (rounds - 1 - WARM_UP)
    measured = read_jsonl(lines)[WARM_UP:-1]
    return {
        "node_cpu_seconds_per_message": round((marks[1][0] - marks[0][0]) / messages, 2),
        "server_cpu_seconds_per_message": round((marks[1][1] - marks[0][1]) / messages, 2),
        "seconds_per_round": median([record["seconds"] for record in measured]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=8)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        port, *ports = free_ports(chosen.nodes + 1)
        (home.folder / "config.toml").write_text(
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        try:
            link = home.start(
                script("flower-superlink"), "--insecure", "--host", "127.0.0.1",
                "--port", str(port), "--disable-runtime-dependency-installation",
            )  # fmt: skip
            time.sleep(SETTLE)
            alone = cpu_per_second([link], chosen.seconds)
            for k, own in enumerate(ports):
                home.start(
                    script("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}",
                    "--port", str(own), "--node-config",
                    f'partition-id={k} num-partitions={chosen.nodes} state-dir="{folder}/state"',
                )  # fmt: skip
            time.sleep(SETTLE)
            busy = cpu_per_second([link], chosen.seconds)
            if any(process.poll() is not None for process in home.started):
                raise SystemExit("a process ended early")
            figures = run(home, chosen.nodes, chosen.rounds)
        finally:
            home.stop()
    emit(
        "nodes", nodes=chosen.nodes, superlink_cpu_share_alone=round(alone, 4),
        cpu_milliseconds_per_idle_node_and_second=round(1e3 * (busy - alone) / chosen.nodes, 2),
        **figures,
    )  # fmt: skip


if __name__ == "__main__":
    main()

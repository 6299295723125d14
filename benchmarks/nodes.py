"""What deployed nodes cost: CPU of the SuperLink while they idle, CPU and time of a message.

Real processes on 127.0.0.1 with TLS, ``fedhet server`` and ``fedhet node``. What the server spends
without any node is measured first, then with nodes that have nothing to do, then a run of a few
digits and CNN-5 on all of them.

    python -m benchmarks.nodes [--nodes 8] [--seconds 30] [--rounds 8] [--method fedssa]
"""

import argparse
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.common import command, emit, median
from fedhet.engines.system import environment, free_ports, script
from fedhet.files import read_jsonl

SETTLE = 12.0  # seconds for imports and the first connection
WARM_UP = 2  # rounds before the count starts
CONNECTION = "nodes"  # to the SuperLink, in Flower's configuration
RUN = ["dataset=digits", "models=cnn-5", "local-epochs=1", "start-timeout=300"]


def tree(pids: Sequence[int]) -> list[psutil.Process]:
    """Return these processes and their living descendants."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            found += [top, *top.children(recursive=True)]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds of these processes, their descendants and those that ended."""
    total = 0.0
    for one in tree(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(one.cpu_times()[:4])
    return total


def megabytes(pids: Sequence[int]) -> float:
    """Memory of them and their descendants; what several share counts once."""
    total = 0
    for one in tree(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total / 2**20


def cpu_per_second(pids: Sequence[int], seconds: float) -> float:
    """CPU seconds per second."""
    before, started = cpu_seconds(pids), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pids) - before) / (time.perf_counter() - started)


class Home:
    """A folder with a server, its nodes and what they write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment({"HOME": str(folder)})
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a program with its log."""
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            made = subprocess.Popen(words, env=self.env, stdout=log, stderr=log, cwd=self.folder)
        self.started.append(made)
        return made

    def server(self) -> list[int]:
        """Return the server."""
        return [self.started[0].pid]

    def nodes(self) -> list[int]:
        """Return the nodes."""
        return [process.pid for process in self.started[1:]]

    def stop(self) -> None:
        """End everything, last first."""
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(60)


def run(
    home: Home, method: str, nodes: int, rounds: int, more: Sequence[str] = (), name: str = "run"
) -> dict[str, float]:
    """Run on all nodes; return CPU seconds a message, seconds a round, replies lost.

    A message is a client's part of a round, with ``secure-sum`` its answer to the second one, too.
    """
    workers = home.nodes()
    overrides = [f"method={method}", *RUN, f"clients={nodes}", f"rounds={rounds}", *more]
    job = home.start(*command(home.folder, overrides, name), "--superlink", "tls")
    lines = home.folder / name / "rounds.jsonl"
    marks = []
    for count in (WARM_UP, rounds - 1):
        while not lines.exists() or len(read_jsonl(lines)) < count:
            if job.poll() is not None:
                raise SystemExit((home.folder / f"{len(home.started) - 1}.log").read_text())
            time.sleep(0.05)
        marks.append((cpu_seconds(workers), cpu_seconds(home.server())))
    memory = megabytes(workers)
    job.wait()
    records = read_jsonl(lines)
    messages = nodes * (rounds - 1 - WARM_UP)
    return {
        "node_cpu_seconds_per_message": round((marks[1][0] - marks[0][0]) / messages, 2),
        "server_cpu_seconds_per_message": round((marks[1][1] - marks[0][1]) / messages, 2),
        "seconds_per_round": median([record["seconds"] for record in records[WARM_UP:-1]]),
        "replies_lost": sum(record["sampled"] - record["replied"] for record in records),
        "node_megabytes_all_together": round(memory),
    }


@contextlib.contextmanager
def federation(nodes: int) -> Iterator[tuple[Home, Callable[[], None]]]:
    """Yield a settled server, and what starts that many nodes and waits for them to settle."""
    with tempfile.TemporaryDirectory() as folder:
        home, fedhet = Home(Path(folder)), script("fedhet")
        (port,) = free_ports(1)
        clients = [word for k in range(nodes) for word in ("--client", str(k))]
        certs = [fedhet, "certs", "--out", "tls", "--server", "127.0.0.1", *clients]
        subprocess.run(certs, cwd=folder, env=home.env, check=True, stdout=subprocess.DEVNULL)

        def join() -> None:
            for k in range(nodes):
                home.start(
                    fedhet, "node", f"tls/clients/{k}", "--server", f"127.0.0.1:{port}",
                    "--partition", f"{k}/{nodes}",
                )  # fmt: skip
            time.sleep(SETTLE + 3 * nodes)

        try:
            home.start(fedhet, "server", "tls", "--host", "127.0.0.1", "--port", str(port))
            time.sleep(SETTLE)
            yield home, join
        finally:
            home.stop()


def measure(method: str, nodes: int, seconds: float, rounds: int) -> None:
    """Measure everything; print its line."""
    with federation(nodes) as (home, join):
        alone = cpu_per_second(home.server(), seconds)
        join()
        busy = cpu_per_second(home.server(), seconds)
        idle = cpu_per_second(home.nodes(), seconds)
        if any(process.poll() is not None for process in home.started):
            raise SystemExit("a process ended early")
        figures = run(home, method, nodes, rounds)
    emit(
        "nodes", method=method, nodes=nodes, superlink_cpu_share_alone=round(alone, 4),
        superlink_cpu_milliseconds_per_idle_node_and_second=round(1e3 * (busy - alone) / nodes, 2),
        node_cpu_milliseconds_per_idle_node_and_second=round(1e3 * idle / nodes, 2),
        **figures,
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--method", default="fedssa")
    chosen = parser.parse_args()
    measure(chosen.method, chosen.nodes, chosen.seconds, chosen.rounds)


if __name__ == "__main__":
    main()

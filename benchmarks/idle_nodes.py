"""CPU time that a SuperLink spends on SuperNodes that have nothing to do: heartbeats and polls.

Real processes on 127.0.0.1, without TLS; what it spends without any node is measured first.

    python -m benchmarks.idle_nodes [--nodes 8] [--seconds 30]
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.common import emit
from fedhet.superlink import environment, free_ports, script

SETTLE = 12.0  # seconds for imports and the first connection


def cpu_per_second(process: subprocess.Popen[bytes], seconds: float) -> float:
    """CPU seconds per second of one process and its descendants."""
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]

    def used() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in tree)

    before, started = used(), time.perf_counter()
    time.sleep(seconds)
    return (used() - before) / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as home:
        port, *ports = free_ports(chosen.nodes + 1)
        env = environment({"FLWR_HOME": home})

        def start(name: str, *words: str) -> None:
            command = [script(words[0]), *words[1:]]
            with (Path(home) / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

        try:
            start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1",
                  "--port", str(port))  # fmt: skip
            time.sleep(SETTLE)
            alone = cpu_per_second(processes[0], chosen.seconds)
            for k, own in enumerate(ports):
                start(f"node-{k}", "flower-supernode", "--insecure", "--superlink",
                      f"127.0.0.1:{port}", "--port", str(own))  # fmt: skip
            time.sleep(SETTLE)
            busy = cpu_per_second(processes[0], chosen.seconds)
            if any(process.poll() is not None for process in processes):
                raise SystemExit("a process ended early")
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(30)
    emit(
        "idle_nodes", nodes=chosen.nodes, superlink_cpu_share_alone=round(alone, 4),
        cpu_milliseconds_per_node_and_second=round(1e3 * (busy - alone) / chosen.nodes, 2),
    )  # fmt: skip


if __name__ == "__main__":
    main()

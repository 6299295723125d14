"""A Ray cluster of several nodes on loopback, for tests that join one."""

import shutil
import tempfile

from helpers.programs import Process, wait_for

from fedhet.engines.system import environment, free_ports, script


class Cluster:
    """``ray start --head`` and further ``ray start --address``, with so many CPUs each."""

    def __init__(self, logs, *cpus):
        self.home = tempfile.mkdtemp(prefix="fh", dir="/tmp")  # sockets want a short path
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        common = ["--object-store-memory=100000000", "--block"]
        head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1",
                "--include-dashboard=false", f"--temp-dir={self.home}"]  # fmt: skip
        self.nodes = []
        for number, count in enumerate(cpus):
            words = [f"--address={self.address}"] if number else head
            command = [script("ray"), "start", *words, *common, f"--num-cpus={count}"]
            log = logs / f"ray-{number}.log"
            self.nodes.append(Process(command, log, environment()).start())
            wait_for(self._joined, f"Ray's node {number} runs")

    def _joined(self):
        node = self.nodes[-1]
        assert node.running(), node.log.read_text()
        return bool(node.said("Ray runtime started"))

    def stop(self):
        for node in reversed(self.nodes):
            node.end()
        shutil.rmtree(self.home, ignore_errors=True)

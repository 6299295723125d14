"""How long things may take here and now: no verdict depends on the machine's speed.

Bounds only end a hang: whatever can be waited for as an event is waited for.
"""

import functools
import subprocess
import sys
import time

FLOWER = 150.0  # seconds of Flower's own waits: two heartbeats of 30 s, a lease, its polls
PATIENCE = 1800.0  # seconds after which a wait in a test is a hang
ROUND = 60  # starts that a healthy client's message may take, the other nodes' beside it


@functools.cache
def start_seconds():
    """Seconds that one process took to import torch and Flower, and 3 at least."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, flwr.clientapp"], check=True)
    return max(3.0, time.perf_counter() - started)


def round_timeout(nodes=3):
    """Seconds for a round in which a node dies: no healthy client of ``nodes`` may miss it."""
    return FLOWER + ROUND * start_seconds() * max(1.0, nodes / 3)


class Clock:
    """A ``time`` that passes by sleeping alone, however busy the machine is."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

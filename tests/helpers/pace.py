"""How long things may take here and now: no verdict depends on the machine's speed.

A bound is what Flower itself waits, whatever the machine, and a multiple of what starting a
process that imports torch and Flower was just measured to take. Bounds only end a hang: whatever
can be waited for as an event is waited for.
"""

import functools
import subprocess
import sys
import time

FLOWER = 150.0  # seconds of Flower's own waits: two heartbeats of 30 s, a lease, its polls
STARTS = 200  # starts that the longest wait of a healthy test may take
ROUND = 60  # starts that a healthy client's message may take, the other nodes' beside it


@functools.cache
def start_seconds() -> float:
    """Seconds that one process took to import torch and Flower, the slower of two."""
    taken = []
    for _ in range(2):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch, flwr.clientapp"], check=True)
        taken.append(time.perf_counter() - started)
    return max(taken)


def patience() -> float:
    """Seconds after which a wait in a test is a hang."""
    return FLOWER + STARTS * start_seconds()


def round_timeout(nodes: int = 3) -> float:
    """Seconds for a round in which a node dies: no healthy client of ``nodes`` may miss it."""
    return FLOWER + ROUND * start_seconds() * max(1.0, nodes / 3)

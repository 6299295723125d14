"""FedSSA's server step on 10,000 uploads of 10 of 100 classes x 501 floats.

The yardstick is one pass at memory bandwidth over the same bytes: a copy.

    python -m benchmarks.aggregation
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import emit, median
from fedhet.config.load import build_config
from fedhet.config.registry import METHODS
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.protocol.payload import HeaderRows
from fedhet.strategies.base import Upload

UPLOADS, CLASSES, SEEN, WIDTH, REPEATS = 10_000, 100, 10, 500, 7


def uploads() -> list[Upload]:
    """Random rows of ten random classes each."""
    random = np.random.default_rng(0)
    found = []
    for k in range(UPLOADS):
        own = np.sort(random.choice(CLASSES, SEEN, replace=False)).astype(np.int64)
        weight = random.random((SEEN, WIDTH), dtype=np.float32)
        info = ClientInfo(str(k), (), (), (), 1, "cnn-5", "cpu", tuple(own.tolist()))
        found.append(Upload(info, HeaderRows(own, weight, weight[:, 0].copy()), 1 / UPLOADS, {}))
    return found


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)  # as the ServerApp does
    roster = Roster()
    roster.classes = tuple(map(str, range(CLASSES)))
    given = uploads()
    rows = np.concatenate([u.payload.to_ndarrays()[1] for u in given])
    copied = np.ones_like(rows)
    with tempfile.TemporaryDirectory() as out:
        config = build_config({"method": "fedssa", "out": out, "name": "x"})
        strategy = METHODS["fedssa"].strategy(config, roster)
        strategy.initialise()
        step, one_pass = [], []
        for _ in range(REPEATS):
            started = time.perf_counter()
            strategy.aggregate(given, 1)
            step.append(time.perf_counter() - started)
            started = time.perf_counter()
            np.copyto(copied, rows)
            one_pass.append(time.perf_counter() - started)
        assert Path(out).exists()
    emit(
        "aggregation", uploads=UPLOADS, mebibytes=round(rows.nbytes / 2**20),
        step_seconds=median(step), pass_seconds=median(one_pass),
        ratio=round(median(step) / median(one_pass), 2), target=3,
    )  # fmt: skip


if __name__ == "__main__":
    main()

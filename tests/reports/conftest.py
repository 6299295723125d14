"""What the tests of reports share."""

from pathlib import Path

import pytest
from helpers.written_runs import CLIENTS, make_run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two methods, five blocks: FedSSA is better by 1, 2, 3, 4, 5 points for every client."""
    for seed in range(5):
        base = [[0.0] * CLIENTS, [10.0, 20.0, 30.0, 40.0 + seed]]
        better = [[value + 1 + seed for value in row] for row in base]
        make_run(tmp_path / "sweep", "standalone", seed, base)
        make_run(tmp_path / "sweep", "fedssa", seed, better, flops=2e12)
    return tmp_path / "sweep"

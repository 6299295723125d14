"""What the tests of reports share."""

from pathlib import Path

import pytest
from helpers.written_runs import CLIENTS, make_run


def _sweep(folder: Path) -> Path:
    """Two methods, five blocks: FedSSA is better by 1, 2, 3, 4, 5 points for every client."""
    for seed in range(5):
        base = [[0.0] * CLIENTS, [10.0, 20.0, 30.0, 40.0 + seed]]
        better = [[value + 1 + seed for value in row] for row in base]
        make_run(folder, "standalone", seed, base)
        make_run(folder, "fedssa", seed, better, flops=2e12)
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of ten runs, for a test to change."""
    return _sweep(tmp_path / "sweep")


@pytest.fixture(scope="session")
def report():
    """The function, with matplotlib, which only the worker that runs these tests has to import."""
    from fedhet.reports.report import report  # noqa: PLC0415

    return report


@pytest.fixture(scope="session")
def reported(report, tmp_path_factory):
    """A folder with the same sweep, its report in ``out`` and their ``records``; to be read."""
    folder = tmp_path_factory.mktemp("reported")
    runs = _sweep(folder / "sweep")
    return folder, report([runs], folder / "out", models=False, records=folder / "records")


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Reports have no figures of a setting, which take most of their time."""
    monkeypatch.setattr("fedhet.reports.figures.of_setting", lambda one: [])

"""What the tests of the command line share: an empty folder, a pretended simulation."""

import json
from pathlib import Path

import pytest
from cli.refusals import SMALL
from watch.folders import line

from fedhet.cli.app import execute
from fedhet.engines import session
from fedhet.engines.launch import Launch
from fedhet.errors import RunFailed


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pretend(monkeypatch):
    """Replaces the simulation by one that reports a round and ends as it is told."""
    launches: list[Launch] = []

    def install(ending: BaseException | None = None) -> list[Launch]:
        def simulate(launch, on_rounds):
            launches.append(launch)
            on_rounds([json.loads(line(1))])
            status = "failed" if ending else "completed"
            launch.folder.write_summary(launch.config, status, 2, str(ending or ""))
            if ending:
                raise ending

        monkeypatch.setattr(session, "simulate", simulate)
        return launches

    return install


@pytest.fixture
def stopped(capsys, here, pretend) -> Path:
    """A run folder of a run that did not complete."""
    pretend(RunFailed("run failed"))
    assert execute(["run", "quickstart", *SMALL, "--name", "first"]) == 3
    capsys.readouterr()
    return here / "runs" / "first"

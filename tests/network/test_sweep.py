"""``fedhet sweep`` with real cells: killed in the middle, it ends in the same bytes."""

import json
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml
from helpers.pace import PATIENCE
from helpers.programs import wait_for

from fedhet.cli.app import execute
from fedhet.engines.system import script

pytestmark = pytest.mark.network
PRESET = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "local-epochs": 1, "batch-size": 16, "rounds": 30, "grid": {"seed": [0, 1]},
}  # fmt: skip


def start(folder: Path, name: str, preset: str = "tiny.yaml") -> subprocess.Popen[str]:
    words = [script("fedhet"), "sweep", str(folder / preset), "--out", str(folder / name)]
    return subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True)


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["run_sha256"]
        for path in folder.glob("*/summary.json")
    }


def statuses(folder: Path) -> list[str]:
    return [json.loads(path.read_text())["status"] for path in folder.glob("*/summary.json")]


def cells_in(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) > 2 for path in folder.glob("*/rounds.jsonl"))


def test_cells_end_with_a_killed_sweep_and_two_others_share_them_with_the_same_bytes(
    tmp_path,
) -> None:
    """The command alone is killed, and two sweeps go on side by side."""
    for preset in ("tiny.yaml", "other.yaml"):
        (tmp_path / preset).write_text(yaml.safe_dump(PRESET))
    killed, lines = start(tmp_path, "shared"), tmp_path / "shared"
    wait_for(lambda: cells_in(lines) > 0, "a cell is in its rounds", pause=0.02)
    cells = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.communicate()
    _, alive = psutil.wait_procs(cells, PATIENCE)
    assert cells and not alive
    assert set(statuses(lines)) == {"stopped"}

    both = [start(tmp_path, "shared", preset) for preset in ("tiny.yaml", "other.yaml")]
    ended = [json.loads(one.communicate(timeout=PATIENCE)[0])["cells"] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert [cell["state"] for cells in ended for cell in cells] == ["finished"] * 4
    whole = ["sweep", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "whole")]
    assert execute(whole) == 0
    assert len(hashes(lines)) == 2 and hashes(lines) == hashes(tmp_path / "whole")

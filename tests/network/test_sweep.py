"""``fedhet sweep`` with real cells: killed or beside another one, it ends in the same bytes."""

import json
import subprocess
from pathlib import Path

import psutil
import yaml
from helpers.pace import PATIENCE
from helpers.programs import wait_for

from fedhet.cli.app import execute
from fedhet.engines.system import script
from fedhet.sweeps.grid import read_cells
from fedhet.testing import simulate

PRESET = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "image-size": 16, "local-epochs": 1, "batch-size": 16, "rounds": 30,
}  # fmt: skip


def preset(folder: Path, name: str, *seeds: int) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(PRESET | {"grid": {"seed": list(seeds)}}))
    return path


def start(path: Path) -> subprocess.Popen[str]:
    words = [script("fedhet"), "sweep", str(path), "--out", str(path.parent / "out")]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["run_sha256"]
        for path in folder.glob("*/summary.json")
    }


def alone(path: Path) -> dict[str, str]:
    found = {}
    for cell in read_cells(path, []):
        config = cell.config.model_copy(update={"out": str(path.parent / "alone")})
        found[cell.name] = simulate(config)[0].read_summary()["run_sha256"]
    return found


def test_a_killed_sweep_ends_its_cells_and_goes_on_with_them(tmp_path) -> None:
    """The command alone is killed, while a cell is in its rounds."""
    path, out = preset(tmp_path, "tiny", 0), tmp_path / "out"
    killed = start(path)
    wait_for(
        lambda: any(len(p.read_bytes().splitlines()) > 1 for p in out.glob("*/rounds.jsonl")),
        "a cell is in its rounds", pause=0.02,
    )  # fmt: skip
    cells = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.communicate()
    _, alive = psutil.wait_procs(cells, PATIENCE)
    assert cells and not alive
    (summary,) = out.glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "stopped"
    assert execute(["sweep", str(path), "--out", str(out)]) == 0
    assert hashes(out) == alone(path)

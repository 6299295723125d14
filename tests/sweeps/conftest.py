"""Four cells of a small preset."""

import pytest
import yaml

from fedhet.sweeps.grid import read_cells


@pytest.fixture
def cells(tmp_path):
    path = tmp_path / "preset.yaml"
    grid = {"method": ["standalone", "lg_fedavg"], "seed": [0, 1]}
    path.write_text(yaml.safe_dump({"dataset": "digits", "rounds": 2, "grid": grid}))
    return read_cells(path, [])

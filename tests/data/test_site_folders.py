"""A folder of one file for each site: clients of a simulation, all of one client on a node."""

import numpy as np
import pytest

from fedhet.config.load import build_config
from fedhet.errors import UserError
from fedhet.site.local_data import load_local, load_partition


@pytest.fixture
def sites(tmp_path):
    """Write files of a folder; return the configuration of a run on it."""
    (tmp_path / "sites").mkdir()

    def write(dataset="table", path="sites", **files):
        for name, content in files.items():
            if isinstance(content, str):
                (tmp_path / "sites" / f"{name}.csv").write_text(content)
            else:
                np.savez(
                    tmp_path / "sites" / f"{name}.npz", x=content, y=np.arange(len(content)) % 2
                )
        values = {"dataset": dataset, "partition": "natural", "data-path": str(tmp_path / path)}
        return build_config(values | ({"target": "y"} if dataset == "table" else {}))

    return write


NORTH = "y,x\n" + "".join(f"{k % 2},{k}\n" for k in range(20))
SOUTH = "x,y\n" + "".join(f"{k},{k % 2}\n" for k in range(21))  # in another order
TABLES = {"north": NORTH, "south": SOUTH}
WINDOWS = {"north": np.zeros((20, 2, 4), np.float32), "south": np.ones((21, 2, 4), np.int16)}


@pytest.mark.parametrize(("dataset", "files"), [("table", TABLES), ("signals", WINDOWS)])
def test_every_file_is_a_client_and_on_a_node_all_are_one(sites, dataset, files):
    config = sites(dataset, **files)
    data, partition = load_partition(config, 0)
    assert data.site_names == partition.ids == ("north", "south")
    assert data.sites.tolist() == [0] * 20 + [1] * 21
    node = {"data-dir": config.data_path, "name": "own"}
    named = config.model_copy(update={"classes": data.classes})  # as a run over nodes must
    own = load_local(named, node, simulated=False)
    assert own.client == "own" and len(own.dataset.labels) == 41
    assert sum(map(len, (own.split.train, own.split.val, own.split.test))) == 41


WRONG = [
    ({"north": NORTH, "west": "x,z,y\n1,2,0\n"}, "table", "sites",
     r"west\.csv: column 'z' is not in all files of the folder"),
    ({**WINDOWS, "west": np.zeros((4, 2, 5))}, "signals", "sites",
     r"west\.npz: windows are \(2, 5\), and those of .*north"),
    ({"north": NORTH}, "table", "sites/north.csv", "partition natural needs the clients"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "dataset", "path", "reason"), WRONG)
def test_other_columns_or_windows_and_no_sites_are_named(sites, files, dataset, path, reason):
    with pytest.raises(UserError, match=reason):
        load_partition(sites(dataset, path, **files), 0)

"""A folder of one file for each site: clients of a simulation, all of one client on a node."""

import re

import numpy as np
import pytest

from fedhet.config.load import build_config
from fedhet.errors import UserError
from fedhet.site.local_data import load_local, load_partition


def table(folder):
    for k, name in enumerate(("north", "south")):
        columns = ("x", "y") if k else ("y", "x")  # in any order
        rows = [f"{i},{i % 2}" if k else f"{i % 2},{i}" for i in range(20 + k)]
        (folder / f"{name}.csv").write_text(f"{','.join(columns)}\n" + "\n".join(rows) + "\n")
    return {"dataset": "table", "target": "y"}


def signals(folder):
    for k, name in enumerate(("north", "south")):
        x = np.full((20 + k, 2, 4), k, np.int16 if k else np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(20 + k) % 2)
    return {"dataset": "signals"}


@pytest.fixture
def sites(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    (folder / "README.md").write_text("not read")
    return folder


@pytest.mark.parametrize("make", [table, signals])
def test_every_file_is_a_client_and_on_a_node_all_are_one(sites, make):
    values = make(sites) | {"partition": "natural", "data-path": str(sites)}
    data, partition = load_partition(build_config(values), 0)
    assert data.site_names == partition.ids == ("north", "south") and len(data.labels) == 41
    sizes = [len(c.train) + len(c.val) + len(c.test) for c in partition.clients]
    assert sizes == [20, 21] and data.sites.tolist() == [0] * 20 + [1] * 21
    node = {"data-dir": str(sites), "name": "own"}
    named = build_config(values | {"classes": list(data.classes)})  # as a run over nodes must
    own = load_local(named, node, simulated=False)
    assert own.client == "own" and len(own.dataset.labels) == 41
    assert sum(map(len, (own.split.train, own.split.val, own.split.test))) == 41


def test_other_columns_or_windows_are_named(sites):
    config = build_config(table(sites) | {"data-path": str(sites)})
    (sites / "west.csv").write_text("x,z,y\n1,2,0\n")
    with pytest.raises(UserError, match=r"west\.csv: column 'z' is not in all files of the folder"):
        load_partition(config, 2)
    config = build_config(signals(sites) | {"data-path": str(sites)})
    np.savez(sites / "west.npz", x=np.zeros((4, 2, 5), np.int16), y=np.arange(4))
    with pytest.raises(UserError, match=r"west\.npz: windows are \(2, 5\), and those of .*north"):
        load_partition(config, 2)


def test_no_site_column_is_refused(sites):
    values = table(sites) | {"partition": "natural", "data-path": str(sites / "north.csv")}
    with pytest.raises(UserError, match="partition natural needs the clients of the examples"):
        load_partition(build_config(values), 0)


@pytest.mark.parametrize(
    ("south", "said"),
    [("12" * 20, r"sites do not have the same classes .*labels={NAME: "),
     ("0" * 40 + "2", "1 classes have one example, which cannot be trained")],
)  # fmt: skip
def test_classes_that_may_be_coded_otherwise_are_named(sites, south, said):
    for name, classes in (("north", "01" * 20), ("south", south)):
        rows = "".join(f"{k * 7 % 13},{one}\n" for k, one in enumerate(classes))
        (sites / f"{name}.csv").write_text("x,y\n" + rows)
    values = {"dataset": "table", "target": "y", "data-path": str(sites), "partition": "natural"}
    _, partition = load_partition(build_config(values), 0)
    assert any(re.match(said, line) for line in partition.warnings), partition.warnings

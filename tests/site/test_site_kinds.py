"""Nodes that own a file each: rows of a table, one of them with other columns."""

import csv
import json

import numpy as np

from fedhet.testing import simulate, small


def hospital(path, columns, rows):
    path.write_text(",".join(columns) + "\n" + "\n".join(rows) + "\n")
    return str(path)


def test_nodes_bring_a_csv_each_and_who_has_other_columns_is_refused(tmp_path):
    rows = [f"{40 + k},{'' if k % 7 else 2.5},{'fm'[k % 2]},{k % 2}" for k in range(40)]
    files = [
        hospital(tmp_path / "a.csv", ("age", "ca", "sex", "num"), rows),
        hospital(tmp_path / "b.csv", ("age", "ca", "sex", "num"), rows[::-1]),
        hospital(tmp_path / "c.csv", ("ca", "age", "sex", "num"), rows),
    ]

    def give(grid):
        for k, file in enumerate(files):
            node = {"data-dir": file, "name": f"h{k}", "state-dir": str(tmp_path / f"s{k}")}
            grid.contexts[100 + k].node_config.clear()
            grid.contexts[100 + k].node_config.update(node)

    config = small(
        tmp_path, dataset="table", target="num", labels={"well": [0], "ill": [1]}, clients=3,
        categories={"sex": ["f", "m"]}, models=["mlp-5"], start_timeout=1, representation=16,
    )  # fmt: skip
    run, _ = simulate(config, before=give, simulated=False)
    clients = {row["client"] for row in csv.DictReader(run.clients.open())}
    assert clients == {"h0", "h1"}
    summary = json.loads(run.summary.read_text())
    reasons = [failure["reason"] for failure in summary["failures"]]
    assert any("column 'ca' stands where this run has 'age'" in reason for reason in reasons)
    assert run.read_rounds()[-1]["replied"] == 2


def test_who_brings_windows_of_another_shape_or_no_windows_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    for name, steps in (("a", 16), ("b", 16), ("c", 20)):
        x = rng.normal(size=(40, 2, steps)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(40) % 2)
    (tmp_path / "d.npz").write_text("x,y\n1,0\n")

    def give(grid):
        for k, name in enumerate("abcd"):
            node = {"data-dir": str(tmp_path / f"{name}.npz"), "name": name,
                    "state-dir": str(tmp_path / f"s{k}")}  # fmt: skip
            grid.contexts[100 + k].node_config.clear()
            grid.contexts[100 + k].node_config.update(node)

    config = small(
        tmp_path, dataset="signals", clients=4, models=["conv1d-5"], start_timeout=1,
        representation=16, classes="0,1", rounds=1,
    )  # fmt: skip
    run, _ = simulate(config, before=give, simulated=False)
    assert {row["client"] for row in csv.DictReader(run.clients.open())} == {"a", "b"}
    reasons = "; ".join(f["reason"] for f in json.loads(run.summary.read_text())["failures"])
    assert "examples are signal of shape (2, 20), and this run's are signal of shape (2, 16)" in (
        reasons
    )
    assert len(json.loads(run.summary.read_text())["failures"]) == 2

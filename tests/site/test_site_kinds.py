"""Nodes that own a file each: rows of a table, one of them with other columns."""

import csv
import json

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
    assert any("column 'ca' is where this run has 'age'" in reason for reason in reasons)
    assert run.read_rounds()[-1]["replied"] == 2

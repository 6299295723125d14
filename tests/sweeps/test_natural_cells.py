"""Cells whose clients are as many as their data says."""

import csv

import yaml

from fedhet.cli.app import execute
from fedhet.reading.structured import read_json


def test_a_cell_with_as_many_clients_as_the_data_has_is_finished(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    table = tmp_path / "patients.csv"
    with table.open("w", newline="") as file:
        rows = [(f"h{i % 3}", i % 7, i % 5, i % 2) for i in range(90)]
        csv.writer(file).writerows([("hospital", "age", "dose", "ill"), *rows])
    preset = tmp_path / "sites.yaml"
    keys = {
        "dataset": "table", "target": "ill", "site": "hospital", "partition": "natural",
        "clients": 0, "models": ["mlp-5"], "representation": 8, "rounds": 1, "local-epochs": 1,
        "grid": {"method": ["standalone"]},
    }  # fmt: skip
    preset.write_text(yaml.safe_dump(keys))
    command = ["sweep", str(preset), f"data-path={table}", "--out", str(tmp_path / "out")]
    assert execute(command) == 0
    (summary,) = (tmp_path / "out").glob("standalone-*/summary.json")
    assert read_json(summary)["clients"] == 3
    assert execute(command) == 0, "a finished cell is another one's the second time"

"""The run table: a line a run with documented columns, as DataFrame, CSV and Parquet."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from written_runs import edit, make_run

import fedhet
from fedhet.cli.app import execute
from fedhet.reading.structured import read_yaml
from fedhet.reports.frame import FIGURES

ROOT = Path(__file__).resolve().parents[2]


def test_a_line_a_run_with_keys_and_figures(sweep):
    make_run(sweep, "fedssa", 0, [[1.0] * 4], name="other", precision="bf16", rounds=2)
    frame = fedhet.load_sweep(sweep).frame()
    assert len(frame) == 11 and frame["run"].is_unique
    one = frame.set_index("run").loc["fedssa-s3"]
    assert (one["method"], one["seed"], one["clients"], one["mu0"]) == ("fedssa", 3, 4, 0.5)
    assert one["accuracy"] == 29.75 and one["difference"] == 4.0  # 14 24 34 47
    assert one["accuracy_worst"] == 24.0 and one["never_sampled"] == 1
    assert (one["floats_up"], one["gflops"]) == (50.0, 1000.0)
    assert one["run_sha256"] == "fedssa3" and one["models"] == "cnn-1,cnn-2,cnn-3,cnn-4,cnn-5"
    base = frame.set_index("run").loc["standalone-s3"]
    assert pd.isna(base["difference"]) and pd.isna(base["mu0"])
    means = frame.groupby("arm")["difference"].mean()
    assert means["FedSSA"] == 3.0


def test_a_variant_in_another_precision_is_a_line_as_well(sweep):
    tests = [[0.0] * 4, [10.0, 20.0, 30.0, 40.0]]
    make_run(sweep, "fedssa", 0, tests, name="low", precision="bf16")
    frame = fedhet.load_sweep(sweep).frame().set_index("run")
    assert len(frame) == 11 and frame.loc["low", "precision"] == "bf16"
    assert frame.loc["low", "setting"] == frame.loc["fedssa-s0", "setting"]


def test_csv_and_parquet_are_the_frame(sweep, tmp_path):
    words = ["report", str(sweep), "--out", str(tmp_path / "out"), "--format", "csv,parquet"]
    assert execute([*words, "--no-models"]) == 0
    frame = fedhet.load_sweep(sweep).frame()
    parquet = pd.read_parquet(tmp_path / "out" / "runs.parquet")
    assert list(parquet) == list(frame) and list(parquet["accuracy"]) == list(frame["accuracy"])
    with (tmp_path / "out" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(frame) and float(rows[3]["accuracy"]) == frame["accuracy"][3]
    assert pd.read_csv(tmp_path / "out" / "runs.csv")["difference"].notna().sum() == 5


def test_every_column_that_is_no_key_is_described(sweep):
    frame = fedhet.load_sweep(sweep).frame()
    keys = {key.replace("-", "_") for key in read_yaml(sweep / "fedssa-s0" / "config.yaml")}
    assert set(frame) - keys == set(FIGURES)
    text = (ROOT / "docs" / "report.md").read_text()
    for name, about in FIGURES.items():
        assert f"| `{name}` | {about} |" in text


def test_the_pictures_are_functions_of_it_and_show_themselves(sweep):
    runs = fedhet.load_sweep(sweep)
    assert runs.settings == ["CIFAR-100, N = 4, C = 50 %"] and "10 runs" in repr(runs)
    assert runs.verdict[0].startswith("10 runs of 2 methods")
    for picture in (runs.differences(), runs.traffic(), runs.rounds(), *runs.figures()):
        assert picture._repr_svg_().startswith("<svg")
    with pytest.raises(fedhet.UserError, match="setting: 'x' is none of: CIFAR-100"):
        runs.rounds("x")
    with pytest.raises(fedhet.UserError, match="baseline: no run has method 'fd'"):
        fedhet.load_sweep(sweep, baseline="fd")


def test_a_method_run_in_another_precision_alone_has_the_difference_of_the_page(sweep):
    make_run(sweep, "fd", 0, [[0.0] * 4, [15.0, 25.0, 35.0, 45.0]], name="low", precision="bf16")
    frame = fedhet.load_sweep(sweep).frame().set_index("run")
    assert len(frame) == 11 and frame.loc["low", "difference"] == 5.0


def test_a_server_that_learned_means_alone_leaves_the_rest_empty(sweep, tmp_path):
    path = make_run(sweep, "fedavg", 0, [[5.0] * 4], name="sums")
    absent = '{"clients": 4, "secure_sum": {"absent": ["clients.csv"]}, '
    edit(path / "summary.json", "{", absent)
    clients = (path / "clients.csv").read_text().splitlines()
    (path / "clients.csv").write_text(f"{clients[0]}\n")
    words = ["report", str(sweep), "--out", str(tmp_path / "out"), "--format", "csv"]
    assert execute([*words, "--no-models"]) == 0
    with (tmp_path / "out" / "runs.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["run"] == "sums"]
    assert row["accuracy"] == "5.0"
    known = ("sampled", "std", "p10", "worst")
    assert [row[f"accuracy_{name}"] for name in known] == [""] * 4
    assert row["never_sampled"] == "" and "nan" not in row.values()

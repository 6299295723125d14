"""Figures of a comparison, by hand: intervals, tests, costs, and which runs belong together."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.tiny import tiny
from helpers.written_runs import CLIENTS, edit, make_run, sha256_of

from fedhet import load_sweep
from fedhet.errors import UserError
from fedhet.records.formats import read_evaluations
from fedhet.reports.comparison import holm, signed_rank
from fedhet.reports.reading import pack, read_runs
from fedhet.reports.tables import of_setting
from fedhet.testing import simulate


def test_signed_ranks_of_zeros_and_of_too_few():
    assert signed_rank([0, 0, 0, 0, 0]) == 1
    assert signed_rank([0, 1, 2, 3, 4, 5]) == pytest.approx(2 / 32)
    assert math.isnan(signed_rank([1, 2, 3, 4]))


def test_holm():
    found = holm(pd.Series([0.01, np.nan, 0.04, 0.03, 0.5], index=list("abcde")))
    assert found.drop("b").tolist() == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert np.isnan(found["b"])


def test_paired_differences_over_blocks(sweep):
    (one,) = load_sweep(sweep).comparisons
    row = one.paired.loc["FedSSA"]
    half = 2.7764451051977987 * math.sqrt(2.5 / 5)
    assert row[["blocks", "mean", "low", "high"]].tolist() == pytest.approx(
        [5, 3, 3 - half, 3 + half]
    )
    assert (row["better"], row["worse"], row["sign"]) == (100, 0, 1)
    assert row["p"] == row["adjusted"] == pytest.approx(0.0625)
    assert one.best == ("FedSSA", frozenset())
    (other,) = load_sweep(sweep, baseline="FedSSA").comparisons
    assert other.paired["mean"].to_dict() == {"Standalone": pytest.approx(-3)}


def test_only_clients_and_blocks_of_both_are_paired(sweep):
    edit(sweep / "fedssa-s0" / "clients.csv", "2,3,cnn-1,2,41.0", "2,3,cnn-1,2,")
    for name in ("summary.json", "rounds.jsonl"):
        mean = '"test_accuracy_mean": {}'.format
        edit(sweep / "fedssa-s0" / name, mean(26.0), mean(21.0))
    make_run(sweep, "fedssa", 9, [[0.0] * CLIENTS, [99.0] * CLIENTS])
    (one,) = load_sweep(sweep).comparisons
    row = one.paired.loc["FedSSA"]
    assert row["blocks"] == 5 and row["mean"] == pytest.approx(3)
    assert one.levels["blocks"]["FedSSA"] == 6


def test_levels_are_of_clients_that_were_sampled(sweep):
    (one,) = load_sweep(sweep).comparisons
    level = one.levels.loc["Standalone"]
    assert level["mean"] == pytest.approx(25.5) and level["never_sampled"] == 1
    assert level["sampled"] == pytest.approx(30 + 2 / 3)  # 20, 30, 40 + seed
    assert level["worst"] == 20 and level["p10"] == pytest.approx(22)


def test_the_papers_measure_is_over_the_clients_that_trained(tmp_path):
    """Three of five train in a round; every other round is evaluated."""
    config = tiny(tmp_path, clients=5, fraction=0.6, rounds=5, evaluate_every=2, engine="inline",
                  metric="log_loss")  # fmt: skip
    folder, _ = simulate(config)
    lines, rows = folder.read_rounds(), read_evaluations(folder.clients)
    trained = {
        number: [row for row in rows if row["round"] == row["generation"] == number]
        for number in (2, 4, 5)
    }
    means = {n: np.mean([row["test_log_loss"] for row in own]) for n, own in trained.items()}
    counted = [line["participants_test_accuracy_clients"] for line in lines]
    assert counted == [len(trained.get(number, [])) for number in range(1, 6)] == [0, 3, 0, 3, 3]
    best = min(means, key=means.get)
    expected = [means[5], np.mean(list(means.values())), means[best], best]
    kinds = ("last", "last_50", "best", "best_round")
    summary, columns = folder.read_summary(), [f"participants_{kind}" for kind in kinds]
    assert [summary[f"participants_test_log_loss_{k}"] for k in kinds] == pytest.approx(expected)
    frame = load_sweep(folder.path).frame()
    assert frame[columns].iloc[0].tolist() == pytest.approx(expected)
    older = [{k: v for k, v in line.items() if not k.startswith("participants")} for line in lines]
    folder.rounds.write_text("".join(json.dumps(line) + "\n" for line in older))
    from_clients = load_sweep(folder.path).frame()  # what an older fedhet wrote
    assert from_clients[columns].iloc[0].tolist() == pytest.approx(expected)


def test_the_papers_measure_of_older_records_where_it_can_be_known(sweep, tmp_path):
    (one,) = load_sweep(sweep).comparisons
    assert one.participants.empty  # two of four clients replied, three have the round's generation
    for path in sweep.glob("*/rounds.jsonl"):
        path.write_text(path.read_text().replace('"replied": 2', '"replied": 4'))
        edit(path.parent / "summary.json", '"status"', '"clients": 4, "status"')
    pack(read_runs([sweep])[0], tmp_path)  # everybody trains: they are all clients
    for place in (sweep, tmp_path):
        (one,) = load_sweep(place).comparisons
        assert one.participants.loc["FedSSA"].tolist() == [28.5, 15.75, 28.5, 2]
    table = {table.title: table for table in of_setting(one)}["By the papers' measure"]
    assert table.shown.iloc[0].tolist() == ["Standalone", "25.50", "25.50", "12.75", "25.50", "2.0"]


def test_costs_and_accuracy_at_equal_compute(sweep):
    (one,) = load_sweep(sweep).comparisons
    cost = one.costs.loc["FedSSA"]
    # Two of four clients reply in each of two rounds; FedSSA's rounds cost twice the FLOPs.
    assert cost[["floats_up", "floats_down", "gflops"]].tolist() == [50, 30, 1000]
    assert cost["relative"] == 2 and cost["equal_round"] == 1
    assert cost["equal_figure"] == pytest.approx(3)
    hit = one.reached(27.0)
    assert hit.loc["FedSSA", ["blocks", "round", "floats"]].tolist() == [4, 2, 320]


def test_settings_variants_and_blocks(tmp_path):
    tests = [[1.0, 2.0, 3.0, 4.0]]
    make_run(tmp_path, "fedssa", 0, tests, name="a", device="cpu", tracker="none")
    make_run(tmp_path, "fedssa", 1, tests, name="b", actors=2)
    make_run(tmp_path, "fedssa", 1, tests, name="c", partition_seed=0)
    make_run(tmp_path, "fedssa", 0, tests, name="d", mu0=0.3)
    make_run(tmp_path, "fedssa", 0, tests, name="e", lr=0.1)
    runs = load_sweep(tmp_path)
    frame = runs.frame().set_index("run")
    assert frame["variant"].to_dict() == dict.fromkeys("abce", "FedSSA") | {"d": "FedSSA (mu0=0.3)"}
    assert frame["block"].to_dict() == {"a": "0/0", "b": "1/1", "c": "0/1", "d": "0/0", "e": "0/0"}
    assert frame["setting_id"]["a"] == frame["setting_id"]["d"] != frame["setting_id"]["e"]
    assert runs.frame()["setting"].unique().tolist() == [
        "CIFAR-100, N = 4, C = 50 %, lr = 0.01",
        "CIFAR-100, N = 4, C = 50 %, lr = 0.1",
    ]


def test_what_was_searched_for_each_method_is_one_setting(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path, "fedssa", seed, [[1.0]], lr=0.1, mu0=0.3, tuned=["lr", "mu0"])
        make_run(tmp_path, "standalone", seed, [[1.0]], lr=0.03, tuned=["lr"])
    (one,) = load_sweep(tmp_path).comparisons
    assert one.variants == ["Standalone", "FedSSA"]
    assert one.setting.title.endswith(", tuned") and "lr = tuned" in one.setting.conditions


def test_several_precisions_are_one_setting_in_that_of_most_runs(tmp_path):
    for seed in range(3):
        make_run(tmp_path, "standalone", seed, [[1.0] * 4])
        make_run(tmp_path, "fedssa", seed, [[2.0] * 4])
    make_run(tmp_path, "fedssa", 0, [[9.0] * 4], name="low", precision="bf16")
    make_run(tmp_path, "fd", 0, [[3.0] * 4], name="only", precision="bf16")
    runs = load_sweep(tmp_path)
    (one,) = runs.comparisons
    assert one.precision == {"Standalone": "fp32", "FD": "bf16", "FedSSA": "fp32"}
    assert one.paired["mean"].to_dict() == {"FD": 2.0, "FedSSA": 1.0}
    assert runs.frame().set_index("run")["compared"].loc[["low", "only"]].tolist() == [False, True]


def test_a_second_run_of_a_cell_is_left_out_and_said(sweep):
    make_run(sweep, "fedssa", 0, [[0.0] * 4, [0.0] * 4], name="same")
    make_run(sweep, "fedssa", 1, [[9.0] * 4, [9.0] * 4], name="zother")
    make_run(sweep, "fml", 7, [[0.0] * 4] * 2, status="failed")
    for name in ("summary.json", "rounds.jsonl", "rounds.jsonl"):
        edit(sweep / "zother" / name, sha256_of("fedssa", 1), "ab")
    runs = load_sweep(sweep)
    assert runs.comparisons[0].variants == ["Standalone", "FedSSA"]  # a failed run hides no other
    left_out = {one.name: one.reason for one in runs.left_out}
    assert left_out["fml-s7"] == "failed: not finite"
    assert left_out["same"] == "a second run of one cell, with the same result as 'fedssa-s0'"
    assert "with ANOTHER result than 'fedssa-s1'" in left_out["zother"]


def test_the_metric_of_a_run_is_the_headline_and_another_stands_beside(tmp_path):
    values = {"standalone": (0.5, 0.7), "fd": (0.4, 0.6)}
    for method, losses in values.items():
        for seed, loss in enumerate(losses):
            path = make_run(tmp_path, method, seed, [[50.0] * 4], metric="log_loss")
            rows = (path / "clients.csv").read_text().splitlines()
            more = "test_balanced_accuracy,test_log_loss,other"
            rows = [
                rows[0].replace("other", more),
                *(f"{row[:-1]},40.0,{loss}," for row in rows[1:]),
            ]
            if (method, seed) == ("fd", 1):  # a client without this metric
                rows[-1] = rows[-1].replace(f",{loss},", ",,")
            (path / "clients.csv").write_text("\n".join(rows) + "\n")
            means = f'"test_log_loss_mean": {loss}, "test_balanced_accuracy_mean": 40.0'
            edit(path / "rounds.jsonl", '"seconds"', f'{means}, "seconds"')
    (one,) = load_sweep(tmp_path).comparisons
    assert (one.metric, one.second, one.sign) == ("log_loss", "balanced_accuracy", -1)
    assert one.paired["mean"]["FD"] == pytest.approx(-0.1) and one.paired["better"]["FD"] == 100
    assert one.paired["sign"]["FD"] == 1 and one.best[0] == "FD"
    assert one.levels["balanced_accuracy"]["FD"] == 40
    assert "Means are over the clients that have it: 3 to 4 of 4." in of_setting(one)[0].note


def test_a_metric_of_ones_own_is_a_column_and_makes_no_setting(tmp_path):
    make_run(tmp_path, "standalone", 0, [[50.0] * 4])
    path = make_run(tmp_path, "fd", 0, [[50.0] * 4], metrics={"kappa": "own:kappa"})
    edit(path / "rounds.jsonl", '"seconds"', '"test_kappa_mean": 0.4, "seconds"')
    runs = load_sweep(tmp_path)
    assert len(runs.comparisons) == 1
    assert runs.frame().set_index("method")["test_kappa"].dropna().to_dict() == {"fd": 0.4}


def test_frames_have_documented_columns(sweep):
    runs = load_sweep(sweep)
    rounds, clients = runs.frame("rounds"), runs.frame("clients")
    assert (len(runs.frame()), len(rounds), len(clients)) == (10, 20, 40)
    assert rounds.groupby("run")["test_accuracy_mean"].last()["fedssa-s0"] == 26
    own = clients[clients["run"] == "fedssa-s1"].set_index("client")["test_accuracy"]
    assert own.to_dict() == {"0": 12, "1": 22, "2": 32, "3": 43}
    assert runs.frame().groupby("variant")["difference"].mean()["FedSSA"] == pytest.approx(3)
    assert {"lr", "mu0", "rounds", "classes_per_client"} <= set(runs.frame())
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "report.md").read_text()
    columns, documented = list(runs.frame()), re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert columns[: columns.index("metric")] == ["method", *documented]
    with pytest.raises(UserError, match="frame: 'client' is not allowed"):
        runs.frame("client")

"""Every sentence of the verdict, from numbers whose answer is known."""

from pathlib import Path

import pytest
from written_runs import CLIENTS, make_run

from fedhet.reports.sections import build, compared
from fedhet.reports.verdict import Gain, extent, losers, sentences, traffic, unsaid, winners

BASE = "Standalone"


def gain(method: str, setting: str, points: float, sign: int, times: float | None = None) -> Gain:
    return Gain(method, setting, points, sign, times)


def test_how_much_was_run():
    said = extent(12, 3, (2, 2), [5, 5, 2])
    assert (
        said == "12 runs of 3 methods in 2 settings, 2 to 5 blocks (partition and seed) a method."
    )
    assert extent(1, 1, (1, 1), [1]).startswith("1 run of 1 method in 1 setting, 1 block (")
    assert "; 1 of the settings begin as longer ones do and do not count." in extent(
        9, 1, (3, 2), [3]
    )


def test_who_is_above_where_and_by_how_much():
    found = [
        gain("FD", "A", 1.0, 1), gain("FD", "B", 4.25, 1), gain("FD", "C", -9.0, -1),
        gain("FedSSA", "A", 7.0, 1), gain("FedSSA", "B", 20.0, 0), gain("FedSSA", "D", 1.0, 0),
    ]  # fmt: skip
    assert winners(found, BASE) == (
        "Above Standalone, with a 95 % interval that excludes zero: FD in 2 of 3 settings (up to "
        "+4.2 in B), FedSSA in 1 of 3 (+7.0 in A); nobody in C or D."
    )


def test_an_interval_with_zero_makes_nobody_a_winner():
    found = [gain("FD", "A", 40.0, 0), gain("FML", "A", -40.0, -1)]
    assert winners(found, BASE) == (
        "No method is above Standalone with a 95 % interval that excludes zero."
    )
    assert winners([], BASE) == ""


def test_who_is_below():
    found = [gain("FML", "A", -3.0, -1), gain("FML", "B", -1.5, -1), gain("FD", "A", -9.0, 0)]
    assert (
        losers(found, BASE)
        == "Below Standalone, likewise: FML in 2 of 2 settings (up to −3.0 in A)."
    )
    assert losers([gain("FD", "A", -9.0, 0)], BASE) == ""


def test_what_those_above_send_against_lg_fedavg():
    found = [
        gain("FD", "A", 1.0, 1, 0.004), gain("FD", "B", 1.0, 0, 0.006),
        gain("FedMRL", "A", 2.0, 1, 1234.0), gain("FML", "A", -1.0, -1, 99.0),
    ]  # fmt: skip
    assert traffic(found) == "Their traffic, LG-FedAvg's = 1: FD 0.005, FedMRL 1,234."
    assert traffic([gain("FD", "A", 1.0, 1)]) == ""  # LG-FedAvg was not run


def test_what_cannot_be_said(tmp_path):
    for seed in range(6):
        for method in ("standalone", "fd"):
            make_run(tmp_path, method, seed, [[1.0] * CLIENTS], name=f"{method}{seed}")
            if seed < 3:
                name = f"{method}{seed}-few"
                make_run(tmp_path, method, seed, [[1.0] * CLIENTS], lr=0.1, name=name)
            if seed < 1:
                make_run(tmp_path, method, 0, [[1.0] * CLIENTS], lr=0.2, name=f"{method}-one")
    make_run(tmp_path, "fml", 0, [[1.0] * CLIENTS], lr=0.2, name="fml-one", precision="bf16")
    comparisons, _, _ = compared([tmp_path])
    said = unsaid(comparisons, 40, BASE)
    assert "anything sure of 1 of 3 settings: one block has no interval" in said
    assert "a rank test's answer in 2 of 3 settings: fewer than 5 blocks" in said
    assert "small differences in CIFAR-100, N = 4, C = 50 %, lr = 0.2: methods differ in" in said
    assert "of 40 intervals one in twenty excludes zero by chance alone" in said
    assert "baseline" not in said
    assert unsaid([one for one in comparisons if one.setting.keys["lr"] == 0.01], 3, BASE) == ""


def test_a_report_opens_with_at_most_five_sentences_of_its_numbers(sweep, tmp_path):
    for seed in range(5):
        make_run(sweep, "fml", seed, [[0.0] * CLIENTS, [0.0, 10.0, 20.0, 30.0 + seed]])
        make_run(sweep, "lg_fedavg", seed, [[0.0] * CLIENTS, [10.0, 20.0, 30.0, 40.0 + seed]])
    said = build([sweep], models=False).verdict
    assert said == [
        "20 runs of 4 methods in 1 setting, 5 blocks (partition and seed) a method.",
        "Above Standalone, with a 95 % interval that excludes zero: FedSSA +3.0.",
        "Below Standalone, likewise: FML −10.0.",
        "Their traffic, LG-FedAvg's = 1: FedSSA 1.",
    ]


def test_without_the_baseline_nothing_is_said_of_gains(tmp_path):
    for seed in range(5):
        make_run(tmp_path, "fd", seed, [[1.0] * CLIENTS])
    comparisons, runs, _ = compared([tmp_path])
    assert sentences(comparisons, len(runs))[1:] == [
        "What cannot be said: who gains at all, since the baseline was not run."
    ]


@pytest.mark.parametrize("rounds", [(1, 3), (3, 1)])
def test_the_beginning_of_a_longer_setting_counts_for_nothing(tmp_path: Path, rounds):
    for number in rounds:
        for seed in range(5):
            for method, height in (("standalone", 10.0), ("fd", 10.0 + 30 / number + seed)):
                tests = [[0.0] * CLIENTS] * (number - 1) + [[height] * CLIENTS]
                make_run(tmp_path, method, seed, tests, name=f"{method}-{seed}-{number}")
    said = " ".join(build([tmp_path], models=False).verdict)
    assert "zero: FD +12.0." in said

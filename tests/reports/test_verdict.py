"""Every sentence of the verdict, from numbers whose answer is known."""

from pathlib import Path

import pytest
from written_runs import CLIENTS, make_run

from fedhet.reports.sections import build, compared
from fedhet.reports.verdict import (
    Gain,
    brief,
    extent,
    gains,
    losers,
    sentences,
    traffic,
    unsaid,
    winners,
)

BASE = "Standalone"


def gain(method: str, setting: str, points: float, sign: int, times: float | None = None) -> Gain:
    return Gain(method, setting, points, sign, times)


def test_how_much_was_run():
    said = extent(12, 3, 2, [5, 5, 2])
    assert (
        said == "12 runs of 3 methods in 2 settings, 2 to 5 blocks (partition and seed) a method."
    )
    assert extent(1, 1, 1, [1]).startswith("1 run of 1 method in 1 setting, 1 block (")
    assert extent(9, 1, 3, [3], [15]).endswith(
        "; 1 setting (T = 15) is the first rounds of a longer one and is not counted below."
    )
    assert "; 3 settings (T = 5, 15) are the first rounds of longer ones and are not" in extent(
        9, 1, 4, [3], [15, 5, 15]
    )


def test_who_is_above_where_and_by_how_much():
    found = [
        gain("FD", "A", 1.0, 1), gain("FD", "B", 4.25, 1), gain("FD", "C", -9.0, -1),
        gain("FedSSA", "A", 7.0, 1), gain("FedSSA", "B", 20.0, 0), gain("FedSSA", "D", 1.0, 0),
    ]  # fmt: skip
    assert winners(found, BASE) == (
        "Above Standalone (each client alone), with a 95 % interval that excludes zero "
        "(in brackets the largest difference, in points): FD in 2 of 3 settings "
        "(+4.2; most in B; below in 1), "
        "FedSSA in 1 of 3 (+7.0; in A); nobody in C or D."
    )


def test_who_is_above_most_often_comes_first_and_every_method_has_its_number():
    found = [gain(name, "A", 9.0 - k, 1) for k, name in enumerate("VWXYZ")]
    found += [gain("Z", "B", 2.0, 1), gain("V", "B", 0.0, 0)]
    said = winners(found, BASE)
    assert said.endswith(
        ": Z in 2 of 2 settings (+5.0; most in A), V in 1 of 2 (+9.0; in A), "
        "W in 1 of 1 (+8.0; in A), X in 1 of 1 (+7.0), Y in 1 of 1 (+6.0)."
    )


def test_an_interval_with_zero_makes_nobody_a_winner():
    found = [gain("FD", "A", 40.0, 0), gain("FML", "A", -40.0, -1)]
    assert winners(found, BASE) == (
        "No method is above Standalone with a 95 % interval that excludes zero."
    )
    assert winners([], BASE) == ""


def test_who_is_below():
    found = [gain("FML", "A", -3.0, -1), gain("FML", "B", -1.5, -1), gain("FD", "A", -9.0, 0)]
    found.append(gain("FML", "C", 0.0, 0))
    assert losers(found, BASE) == (
        "Below Standalone, likewise: FML in 2 of 3 settings (−3.0; most in A); not told from it "
        "anywhere: FD."
    )
    assert losers([gain("FD", "A", -9.0, 0), gain("FD", "A", 9.0, 1)], BASE) == ""
    none = [gain("pFedES", "A", -9.0, 0), gain("FD", "A", 9.0, 0)]
    assert losers(none, BASE) == "Not told from Standalone anywhere: FD, pFedES."


def test_what_those_above_send_against_lg_fedavg():
    found = [
        gain("FD", "A", 1.0, 1, 0.004), gain("FD", "B", 1.0, 0, 0.006),
        gain("FedMRL", "A", 2.0, 1, 1234.0), gain("FML", "A", -1.0, -1, 99.0),
    ]  # fmt: skip
    assert traffic(found) == (
        "Traffic a round of those above, LG-FedAvg's = 1 (median over settings): "
        "FD 0.005, FedMRL 1,234."
    )
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
    one = "CIFAR-100, N = 4, C = 50 %, lr = 0.2"
    assert said.startswith(f"Limits: {one} has one block and so no interval; ")
    assert "; 2 of 3 settings have fewer than 5 blocks, too few for a rank test; " in said
    assert f"small differences in {one} may come from precision" in said
    assert said.endswith("about 2 of the 40 intervals would exclude zero by chance alone.")
    assert "baseline" not in said
    assert unsaid([one for one in comparisons if one.setting.keys["lr"] == 0.01], 3, BASE) == ""


def test_a_setting_of_one_block_is_in_no_count_and_the_short_form_says_so(tmp_path):
    for seed in range(3):
        make_run(tmp_path, "standalone", seed, [[1.0] * CLIENTS], name=f"base{seed}")
        make_run(tmp_path, "fd", seed, [[3.0 + seed / 10] * CLIENTS], name=f"fd{seed}")
    for method in ("standalone", "fd"):
        make_run(tmp_path, method, 0, [[1.0] * CLIENTS], lr=0.2, name=f"{method}-one")
    comparisons, _, _ = compared([tmp_path])
    assert [found.points for found in gains(comparisons)] == [pytest.approx(2.1)]
    assert "nobody" not in " ".join(sentences(comparisons, 8))
    alone = [one for one in comparisons if one.setting.keys["lr"] == 0.01]
    assert (
        unsaid(alone, 1, BASE) == "Limits: there are fewer than 5 blocks, too few for a rank test."
    )
    lines, note = brief(comparisons)
    assert lines == ["Above Standalone (each client alone): FD +2.1."]
    assert "one block (partition and seed) has no interval: CIFAR-100, N = 4, C = 50 %, lr" in note


def test_a_report_opens_with_at_most_five_sentences_of_its_numbers(sweep, tmp_path):
    for seed in range(5):
        make_run(sweep, "fml", seed, [[0.0] * CLIENTS, [0.0, 10.0, 20.0, 30.0 + seed]])
        make_run(sweep, "lg_fedavg", seed, [[0.0] * CLIENTS, [10.0, 20.0, 30.0, 40.0 + seed]])
    said = build([sweep], models=False).verdict
    assert said == [
        "20 runs of 4 methods in 1 setting, 5 blocks (partition and seed) a method.",
        "Above Standalone (each client alone), with a 95 % interval that excludes zero: "
        "FedSSA +3.0.",
        "Below Standalone, likewise: FML −10.0; not told from it anywhere: LG-FedAvg.",
        "Traffic a round of those above, LG-FedAvg's = 1: FedSSA 1.",
    ]


def test_without_the_baseline_nothing_is_said_of_gains(tmp_path):
    for seed in range(5):
        make_run(tmp_path, "fd", seed, [[1.0] * CLIENTS])
    comparisons, runs, _ = compared([tmp_path])
    assert sentences(comparisons, len(runs))[1:] == [
        "Limits: who gains is not known, since the baseline was not run."
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
    assert "1 setting (T = 1) is the first rounds of a longer one" in said

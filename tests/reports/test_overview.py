"""What a report says over all settings, of runs whose answer is known."""

from pathlib import Path

import pytest
from written_runs import CLIENTS, make_run

from fedhet.reports.sections import build

pytestmark = pytest.mark.usefixtures("undrawn")


def shown(folder: Path, kind: str) -> list[list[str]]:
    """The rows of a report's table as text."""
    (table,) = [one for one in build([folder], models=False).tables() if one.name == kind]
    return [[cell.text for cell in row] for row in table.rows]


def pairs(folder: Path, gain: float, rounds: int = 1, seeds: int = 1, **keys) -> None:
    """Standalone, and FedSSA that is better by ``gain`` points for every client."""
    for seed in range(seeds):
        for method, last in (("standalone", 50.0), ("fedssa", 50.0 + gain)):
            name = f"{method}-{seed}-{rounds}-{'-'.join(map(str, keys.values()))}"
            tests = [[0.0] * CLIENTS] * (rounds - 1) + [[last] * CLIENTS]
            make_run(folder, method, seed, tests, name=name, **keys)


def test_settings_that_share_their_first_rounds_count_once(tmp_path):
    pairs(tmp_path, 9.0, rounds=1)
    pairs(tmp_path, 2.0, rounds=2)
    pairs(tmp_path, 4.0, rounds=2, precision="bf16")  # the same cells again
    pairs(tmp_path, 6.0, rounds=1, lr=0.1)
    (row,) = shown(tmp_path, "across")
    assert row[:4] == ["FedSSA", "2", "2", "+4.00"]  # 2 and 6: not 9, 2, 4 and 6


def test_more_blocks_come_before_fp32_at_equal_rounds(tmp_path):
    pairs(tmp_path, 2.0)
    pairs(tmp_path, 4.0, seeds=2, precision="bf16")
    (row,) = shown(tmp_path, "across")
    assert row[1:4] == ["1", "1", "+4.00"]


def test_a_lower_precision_stands_beside_fp32_on_the_blocks_of_both(tmp_path):
    for seed, gap in ((0, 0.5), (1, -1.5), (2, 30.0)):
        last = [40.0 + gap - 3.0, 40.0 + gap + 3.0] * 2  # s.e.: sqrt(12 / 4)
        make_run(tmp_path, "fedssa", seed, [last], precision="bf16", name=f"b{seed}")
        if seed < 2:  # the third block has no fp32 beside it
            make_run(tmp_path, "fedssa", seed, [[40.0] * 4], name=f"f{seed}")
    make_run(tmp_path, "fedssa", 0, [[1.0] * 4], lr=0.1, name="another-setting")
    make_run(tmp_path, "fd", 0, [[1.0] * 4], precision="bf16", name="another-method")
    (row,) = shown(tmp_path, "precision")
    assert row[0] == "FedSSA" and "bf16" not in row[1] and "lr = 0.01" in row[1]
    assert row[2:] == ["bf16", "2", "40.00", "39.50", "-0.50", "-1.50", "1.73"]


def test_precisions_are_compared_on_the_clients_of_both(tmp_path):
    make_run(tmp_path, "fedssa", 0, [[40.0, 50.0, 60.0, 70.0]], name="full")
    make_run(tmp_path, "fedssa", 0, [[41.0, 53.0]], precision="bf16", name="sampled-only")
    make_run(tmp_path, "fedssa", 1, [[1.0] * 4], name="full-1")
    none = make_run(tmp_path, "fedssa", 1, [[2.0]], precision="bf16", name="no-client-of-both")
    clients = none / "clients.csv"
    clients.write_text(clients.read_text().replace("1,0,cnn-1", "1,9,cnn-1"))
    (row,) = shown(tmp_path, "precision")
    assert row[3:7] == ["1", "45.00", "47.00", "+2.00"]


def test_methods_are_in_the_papers_order_and_counted_without_their_ablations(tmp_path):
    make_run(tmp_path, "fedssa", 0, [[1.0] * 4])
    make_run(tmp_path, "fedssa", 0, [[1.0] * 4], stabilise=False, name="ablation")
    for method in ("standalone", "fml"):  # in another setting, whose title comes later
        make_run(tmp_path, method, 0, [[1.0] * 4], lr=0.1)
    names = [row[0] for row in shown(tmp_path, "overview")]
    assert names == ["Standalone", "FML", "FedSSA", "FedSSA (stabilise=false)"]
    assert build([tmp_path], models=False).lead.startswith("4 runs of 3 methods in 2 settings")

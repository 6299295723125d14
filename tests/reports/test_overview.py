"""What a report says over all settings, of runs whose answer is known."""

from pathlib import Path

import pytest
from written_runs import CLIENTS, make_run

from fedhet.reports.markup import to_markdown
from fedhet.reports.reading import read_runs
from fedhet.reports.sections import build
from fedhet.reports.settings import arrange


def shown(folder: Path, kind: str) -> list[list[str]]:
    """The rows of a report's table as text."""
    tables = build([folder], models=False).tables()
    (table,) = [one for one in tables if one.name == kind or one.name.startswith(f"{kind}-")]
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


def test_a_setting_in_two_precisions_is_one_in_that_with_most_runs(tmp_path):
    pairs(tmp_path, 2.0)
    pairs(tmp_path, 4.0, seeds=3, precision="bf16")
    for seed in range(2):
        make_run(tmp_path, "fd", seed, [[60.0] * CLIENTS], name=f"fd-{seed}")  # in fp32 alone
    (one,) = build([tmp_path], models=False).comparisons
    assert one.setting.keys["precision"] == "bf16" and len(one.setting.variants) == 1
    rows = {row[0]: row[1] for row in shown(tmp_path, "overview")}
    assert rows["FedSSA"] == "54.00 ± 0.00" and rows["FD"] == "60.00 ± 0.00†"
    assert rows["precision"] == "bf16"
    assert one.setting.slug == arrange(read_runs([tmp_path / "fd-0"])[0], [])[0].slug


def test_a_lower_precision_stands_beside_fp32_on_the_blocks_of_both(tmp_path):
    for seed, gap in ((0, 0.5), (1, -1.5), (2, 30.0)):
        last = [40.0 + gap - 3.0, 40.0 + gap + 3.0] * 2  # s.e.: sqrt(12 / 4)
        make_run(tmp_path, "fedssa", seed, [last], precision="bf16", name=f"b{seed}")
        if seed < 2:  # the third block has no fp32 beside it
            make_run(tmp_path, "fedssa", seed, [[40.0] * 4], name=f"f{seed}")
    make_run(tmp_path, "fedssa", 0, [[1.0] * 4], lr=0.1, name="another-setting")
    make_run(tmp_path, "fd", 0, [[1.0] * 4], precision="bf16", name="another-method")
    (row,) = shown(tmp_path, "precision")
    assert row == ["FedSSA", "bf16", "2", "40.00", "39.50", "-0.50", "-1.50", "1.73"]


def test_precisions_are_compared_on_the_clients_of_both(tmp_path):
    make_run(tmp_path, "fedssa", 0, [[40.0, 50.0, 60.0, 70.0]], name="full")
    make_run(tmp_path, "fedssa", 0, [[41.0, 53.0]], precision="bf16", name="sampled-only")
    make_run(tmp_path, "fedssa", 1, [[1.0] * 4], name="full-1")
    none = make_run(tmp_path, "fedssa", 1, [[2.0]], precision="bf16", name="no-client-of-both")
    clients = none / "clients.csv"
    clients.write_text(clients.read_text().replace("1,0,cnn-1", "1,9,cnn-1"))
    (row,) = shown(tmp_path, "precision")
    assert row[2:6] == ["1", "45.00", "47.00", "+2.00"]


def test_methods_are_in_the_order_of_their_mean_rank_without_ablations(tmp_path):
    for lr, heights in ((0.01, (3.0, 2.0, 1.0)), (0.1, (1.0, 3.0, 2.0))):
        for method, height in zip(("fedssa", "fml", "fd"), heights, strict=True):
            make_run(tmp_path, method, 0, [[height] * 4], lr=lr, name=f"{method}-{lr}")
    make_run(tmp_path, "fedssa", 0, [[9.0] * 4], stabilise=False, name="ablation")
    rows = shown(tmp_path, "overview")
    # ranks of 0 to 1: FML 0.5 and 0, FedSSA 0 and 1, FD 1 and 0.5
    assert [row[0] for row in rows] == ["FML", "FedSSA", "FD", "blocks"]
    assert "9.00" not in str(rows)


def test_a_method_that_ran_with_own_keys_alone_stands_in_its_own_row(tmp_path):
    """As after tuning, where every method has its own."""
    make_run(tmp_path, "fedssa", 0, [[9.0] * 4], mu0=0.3)
    make_run(tmp_path, "fedmrl", 0, [[5.0] * 4], d1=150, name="a")
    make_run(tmp_path, "fedmrl", 0, [[4.0] * 4], d1=250, name="b")
    names = [row[0] for row in shown(tmp_path, "overview")]
    assert names == ["FedSSA", "FedMRL (d1=150)", "FedMRL (d1=250)", "blocks"]


def test_the_best_is_bold_and_what_is_not_told_from_it_underlined(tmp_path):
    """FD is 1 to 3 points behind in three blocks, FML 9 behind, 1 before, 2 behind."""
    for seed, (fd, fml) in enumerate(((-1, -9), (-2, 1), (-3, -2))):
        for method, off in (("fedssa", 0), ("fd", fd), ("fml", fml), ("fedkd", -30)):
            make_run(tmp_path, method, seed, [[50.0 + off] * CLIENTS])
    (one,) = build([tmp_path], models=False).comparisons
    # FD: 2 +- 4.3027 * 1 / sqrt(3) = 2 +- 2.48 holds zero; FedKD: 30 without any spread
    assert one.best == ("FedSSA", {"FD", "FML"})
    (table,) = [t for t in build([tmp_path], models=False).tables() if t.name == "overview"]
    text = to_markdown(table)
    assert "| **50.00 ± 0.00** |" in text and "| <u>48.00 ± 2.48</u> |" in text
    assert "| 20.00 ± 0.00 |" in text and "](#cifar100-n4-c50-" in text


def test_an_interval_wider_than_an_accuracy_can_be_is_marked_and_explained(tmp_path):
    for seed, (fd, fml) in enumerate(((30.0, 94.0), (45.0, 97.0))):
        make_run(tmp_path, "fd", seed, [[fd] * CLIENTS])
        make_run(tmp_path, "fml", seed, [[fml] * CLIENTS])
    rows = {row[0]: row[1] for row in shown(tmp_path, "overview")}
    assert rows["FD"] == "37.50 ± 95.30 ‡" and rows["FML"] == "95.50 ± 19.06"
    made = {table.name: table for table in build([tmp_path], models=False).tables()}
    assert "‡: an interval wider than 0 to 100 says nothing" in made["overview"].note
    (detail,) = [table for name, table in made.items() if name.startswith("accuracy-")]
    assert [row[2].text.endswith("‡") for row in detail.rows] == [True, False]
    assert "‡" in detail.note


def test_of_a_single_block_nothing_is_the_best(tmp_path):
    make_run(tmp_path, "fedssa", 0, [[9.0] * 4])
    make_run(tmp_path, "fd", 0, [[5.0] * 4])
    (one,) = build([tmp_path], models=False).comparisons
    assert one.best == ("", frozenset())


@pytest.mark.parametrize(
    "keys", [{"lr_schedule": "cosine"}, {"dp_clip": 1, "dp_epsilon": 2, "dp_delta": 1e-5}]
)
def test_rounds_that_change_training_make_no_first_rounds(tmp_path, keys):
    pairs(tmp_path, 9.0, rounds=1, **keys)
    pairs(tmp_path, 3.0, rounds=2, **keys)
    (row,) = shown(tmp_path, "across")
    assert row[:4] == ["FedSSA", "2", "2", "+6.00"]

"""Runs sorted into settings, arms and blocks, and what these are called."""

from written_runs import make_run

from fedhet.reports.comparison import Comparison
from fedhet.reports.names import method_name
from fedhet.reports.reading import read_runs
from fedhet.reports.settings import Arm, arrange, split_config
from fedhet.reports.tables import of_setting


def test_settings_arms_and_blocks(tmp_path):
    tests = [[1.0, 2.0, 3.0, 4.0]]
    make_run(tmp_path, "fedssa", 0, tests, name="a", device="cpu", tracker="none")
    make_run(tmp_path, "fedssa", 1, tests, name="b", actors=2)
    make_run(tmp_path, "fedssa", 1, tests, name="c", partition_seed=0)
    make_run(tmp_path, "fedssa", 0, tests, name="d", mu0=0.3)
    make_run(tmp_path, "fedssa", 0, tests, name="e", lr=0.1)
    runs, left_out = read_runs([tmp_path])
    one, two = arrange(runs, left_out)
    assert not left_out
    assert "lr = 0.01" in one.conditions and "lr = 0.1" in two.conditions
    assert {arm.name: arm.blocks for arm in one.arms} == {
        "FedSSA": [(0, 0), (0, 1), (1, 1)], "FedSSA (mu0=0.3)": [(0, 0)],
    }  # fmt: skip
    assert one.slug != two.slug
    assert "each with its own partition and its own seed" in one.variability()


def test_what_was_searched_for_each_method_is_of_one_setting(tmp_path):
    tests = [[1.0, 2.0, 3.0, 4.0]]
    for seed in (0, 1):
        searched = {"tuned": ["lr", "mu0"], "mu0": 0.3}
        make_run(tmp_path, "fedssa", seed, tests, lr=0.1, **searched)
        make_run(tmp_path, "standalone", seed, tests, lr=0.03, tuned=["lr"])
        make_run(tmp_path, "fd", seed, tests, lr=0.05, tuned=["lr"])
    make_run(tmp_path, "standalone", 0, tests, name="plain", lr=0.03)
    plain, tuned = sorted(arrange(*read_runs([tmp_path])), key=lambda one: len(one.arms))
    assert [arm.name for arm in plain.arms] == ["Standalone"]
    assert {arm.name: arm.searched for arm in tuned.arms} == {
        "Standalone": {"lr": 0.03}, "FD": {"lr": 0.05}, "FedSSA": {"lr": 0.1, "mu0": 0.3},
    }  # fmt: skip
    assert all(arm.blocks == [(0, 0), (1, 1)] for arm in tuned.arms)
    assert "lr = tuned" in tuned.conditions and "lr = 0.03" in plain.conditions
    (table,) = [one for one in of_setting(Comparison(tuned, None)) if one.title == "Tuned"]
    assert ["FedSSA", "lr = 0.1, mu0 = 0.3"] in [[cell.text for cell in row] for row in table.rows]


def test_two_searches_that_chose_otherwise_are_two_arms(tmp_path):
    """Together they were one, with some blocks of each, and the rest left out as second runs."""
    for seed in (0, 1):
        make_run(tmp_path, "fedproto", seed, [[1.0]], lr=0.01, lam=0.1, tuned=["lam", "lr"])
        make_run(tmp_path, "fedproto", seed, [[2.0]], name=f"b{seed}", lr=0.02, tuned=["lr"])
        make_run(tmp_path, "fd", seed, [[2.0]], lr=0.02, tuned=["lr"])
    runs, left_out = read_runs([tmp_path])
    (setting,) = arrange(runs, left_out)
    names = {"FD", "FedProto (lr=0.02)", "FedProto (lam=0.1, lr=0.01)"}
    assert {arm.name for arm in setting.arms} == names
    assert all(len(arm.runs) == 2 for arm in setting.arms) and not left_out


def test_a_strangers_word_of_what_was_tuned_moves_no_other_key():
    for tuned in (5, "lr", [["lr"], 1], ["fraction", "clients", "seed"], None):
        shared, _, own = split_config({"method": "fedssa", "tuned": tuned, "fraction": 0.5})
        assert (shared["fraction"], shared["lr"], shared["tuned"], own) == (0.5, 0.01, [], {})


def test_a_key_that_a_method_lost_makes_no_arm_at_the_value_of_all():
    assert split_config({"method": "fedssa", "hide-classes": False})[2] == {}
    assert split_config({"method": "fedssa", "hide-classes": True})[2] == {"hide-classes": True}


def test_methods_are_spelt_as_their_authors_do():
    spelt = {"pfedes": "pFedES", "pfedafm": "pFedAFM", "fedgh": "FedGH", "lg_fedavg": "LG-FedAvg"}
    assert {name: method_name(name) for name in spelt} == spelt


def test_no_two_arms_share_a_name(monkeypatch, tmp_path):
    """Rows, colours and tests are by name."""
    (tmp_path / "elsewhere.py").write_text(
        "from fedhet.config.registry import METHODS as ours, Method\n"
        "METHOD = Method(ours['fedavg'].strategy, ours['fedavg'].client, 'another')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert method_name("fedavg") == "FedAvg"
    assert method_name("elsewhere:METHOD") == "FedAvg (elsewhere:METHOD)"
    close = [Arm("fedssa", {"mu0": value}).name for value in (0.5, 0.50000001)]
    assert close == ["FedSSA (mu0=0.5)", "FedSSA (mu0=0.50000001)"]
    alike = [0.7, "0.7", True, "true", ["a", "b"], "a,b", None, "None", "1, b=2", {"x": 1}, "", []]
    assert len({Arm("fedssa", {"a": value}).name for value in alike}) == len(alike)
    assert Arm("fedssa", {"a": "x"}).name == "FedSSA (a=x)"
    assert method_name("_nowhere:METHOD") == "'_nowhere:METHOD'"  # else in no legend
    both = [Arm("fedssa", keys).name for keys in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    assert both == ["FedSSA (a=1, b=2)"] * 2


def test_a_run_that_failed_in_full_precision_hides_none_in_another(tmp_path):
    for seed in range(2):
        make_run(tmp_path, "standalone", seed, [[1.0] * 4])
        make_run(tmp_path, "fedssa", seed, [[1.0] * 4])
    make_run(tmp_path, "fd", 0, [[1.0] * 4], name="full", status="failed")
    make_run(tmp_path, "fd", 0, [[2.0] * 4], name="low", precision="bf16")
    make_run(tmp_path, "fd", 1, [[2.0] * 4], name="low-1", precision="bf16", status="failed")
    (setting,) = arrange(*read_runs([tmp_path]))
    (arm,) = [one for one in setting.arms if one.method == "fd"]
    assert (arm.precision, [run.name for run in arm.ordered()]) == ("bf16", ["low"])
    assert {one.name for one in arm.failed} == {"full", "low-1"}
    assert "FD" in Comparison(setting, None).shown

"""What the tables say of runs whose answer is known."""

import re
import shutil

import pytest
from written_runs import make_run, rows_of

from fedhet.errors import UserError
from fedhet.reports.markup import Cell, Column, Table, text, to_markdown
from fedhet.reports.report import report
from fedhet.reports.sections import build


def test_the_tables_say_what_the_runs_say(sweep, tmp_path):
    report([sweep], tmp_path / "out", models=False)
    accuracy = rows_of(tmp_path / "out", "accuracy")["Standalone"]
    # means 25, 25.25, ..., 26: mean 25.5, s = 0.3953, half = 2.7764 * 0.3953 / sqrt(5) = 0.4908
    assert accuracy["accuracy [95 %], as shown"] == "25.50 [25.01, 25.99]"
    # client 0 was never sampled: (20 + 30 + 42) / 3
    assert float(accuracy["ever sampled"]) == pytest.approx(92 / 3)
    assert accuracy["never sampled, as shown"] == "1 of 4"  # clients, and no percentage
    # it counts in no figure of the distribution: those are of 20, 30 and 40 to 44
    assert float(accuracy["worst"]) == 20
    assert float(accuracy["10th pct."]) == pytest.approx(22.0)
    paired = rows_of(tmp_path / "out", "paired")["FedSSA"]
    # 1 to 5: 3 +- 2.7764 * sqrt(2.5) / sqrt(5)
    assert paired["difference [95 %], as shown"] == "+3.00 [+1.04, +4.96]"
    assert (paired["clients better, %"], paired["clients worse, %"]) == ("100.0", "0.0")
    assert paired["p"] == paired["p, Holm"] == "0.0625"
    cost = rows_of(tmp_path / "out", "cost")["FedSSA"]
    assert (cost["floats up"], cost["floats down"], cost["x Standalone"]) == ("50.0", "30.0", "2.0")
    # Standalone spends 2e12: that is FedSSA's first round
    assert (cost["accuracy at equal compute"], cost["after round"]) == ("3.0", "1.0")
    target = rows_of(tmp_path / "out", "target")["FedSSA"]
    assert float(target["rounds to 25 %"]) == 2
    assert float(target["Mfloats to 25 %"]) == pytest.approx(320e-6)
    assert float(target["TFLOPs to 25 %"]) == 4


def test_fewer_than_five_blocks_are_described(sweep, tmp_path):
    shutil.rmtree(sweep / "fedssa-s4")
    report([sweep], tmp_path / "out", models=False)
    paired = rows_of(tmp_path / "out", "paired")["FedSSA"]
    assert not {"p", "p, Holm"} & paired.keys()
    tables = build([sweep], models=False).tables()
    assert sum("descriptive" in table.note for table in tables) == 1  # and once is enough
    assert "descriptive" not in str([table.rows for table in tables])


def test_without_the_usual_baseline_there_are_no_differences(tmp_path):
    for seed in range(2):
        make_run(tmp_path, "fedssa", seed, [[1.0, 2.0, 3.0, 4.0]])
    made = build([tmp_path], models=False)
    assert not any(table.name.startswith("paired") for table in made.tables())
    facts = dict(fact for section in made.sections for fact in section.facts)
    assert facts["baseline"] == "none: standalone was not run"
    with pytest.raises(UserError, match="baseline: no run has method 'standalone'"):
        build([tmp_path], baseline="standalone", models=False)


def test_without_the_usual_baseline_nothing_is_said_of_it(tmp_path):
    keys = {"dataset": "image-folder", "data_path": "/x/cifar10.zip", "clients": 10}
    for lr in (0.01, 0.1):
        make_run(tmp_path, "fedssa", 0, [[1.0, 2.0]], name=f"lr-{lr}", lr=lr, **keys)
    made = build([tmp_path], models=False)
    assert all(table.rows for table in made.tables())
    assert not any(table.name == "across" for table in made.tables())
    notes = [table.note for table in made.tables() if table.name.startswith("target")]
    assert notes and not any("baseline" in note or "worst block" in note for note in notes)


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    own = {"clients": 100, "fraction": 0.1, "classes_per_client": 10}
    for seed in range(2):
        make_run(tmp_path, "fedssa", seed, [[57.0 + seed, 57.0, 58.0, 57.0]], **own)
        make_run(tmp_path, "fd", seed, [[1.0, 2.0, 3.0, 4.0]], **own)
        make_run(tmp_path, "fedssa", seed, [[1.0] * 4], **own, stabilise=False, name=f"b{seed}")
    report([tmp_path], tmp_path / "out", baseline="fd", models=False)
    rows = rows_of(tmp_path / "out", "papers")
    assert rows["FedSSA"]["paper"] == "57.29" and rows["FedSSA"]["in our interval"] == "yes"
    assert rows["FedSSA"]["source"] == "FedSSA, arXiv 2312.09006, Table 2"
    assert rows["FD"]["paper"] == "" and rows["FD"]["in our interval"] == "-"
    ablation = rows["FedSSA (stabilise=false): seen classes replaced"]
    assert (ablation["paper"], ablation["in our interval"]) == ("49.95", "no")
    assert (rows["FedSSA"]["our order"], rows["FedSSA"]["paper's order"]) == ("1.0", "1.0")
    assert (ablation["our order"], ablation["paper's order"]) == ("", "")


def test_latex_is_booktabs_and_escaped(sweep, tmp_path):
    report([sweep], tmp_path / "out", models=False)
    for path in (tmp_path / "out" / "tables").glob("*.tex"):
        text = path.read_text()
        assert r"\toprule" in text and r"\bottomrule" in text
        assert not re.search(r"(?<!\\)%(?! needs)", text) and not re.search(r"(?<!\\)_", text)


def test_names_are_no_markup():
    cells = [text(name) for name in ("a|b", "<b>x", "*x*", "[x](y)", "a_b", "__a_", "p\nq")]
    cells += [text("~~x~~"), text("&lt;"), text("a & b")]
    cells += [Cell("1.00 [0.50, 1.50]", 1.0), Cell("< 0.001", 0.0)]
    table = Table("t", "T", "", [Column("x", "")] * len(cells), [cells])
    assert to_markdown(table).splitlines()[-1] == (
        r"| a\|b | &lt;b>x | \*x\* | [x]\(y) | a_b | \_\_a\_ | p q | \~\~x\~\~ | &amp;lt; | a & b "
        "| 1.00 [0.50, 1.50] | < 0.001 |"
    )


def test_the_target_of_the_baseline_is_named_by_its_value(tmp_path):
    own = {"clients": 100, "fraction": 0.1, "classes_per_client": 10}
    for method in ("standalone", "fedssa"):
        make_run(tmp_path, method, 0, [[95.5] * 4], **own)
    (table,) = [t for t in build([tmp_path], models=False).tables() if t.name.startswith("target")]
    reached = [column.title for column in table.columns if column.title.startswith("rounds")]
    assert len(reached) > 1 and reached[0] == "rounds to 95 %"
    assert "The target of 95 % is what Standalone ends with" in table.note
    assert table.note.endswith("in whole percent; the others are the papers'.")


def test_without_the_papers_targets_nothing_is_said_of_them(tmp_path):
    for method in ("standalone", "fedssa"):
        make_run(tmp_path, method, 0, [[95.5] * 4], dataset="digits")
    (table,) = [t for t in build([tmp_path], models=False).tables() if t.name.startswith("target")]
    assert table.note.endswith("in its worst block, in whole percent.")

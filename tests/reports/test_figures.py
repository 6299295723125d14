"""Figures from records: which are drawn, and what is in them."""

import json
from pathlib import Path

from written_runs import edit, make_run

from fedhet.reports.drawing import Picture
from fedhet.reports.sections import build


def privacy(folder: Path) -> list[Picture]:
    """The figures of accuracy against spent epsilon that a report draws."""
    figures = build([folder], models=False).figures()
    return [figure for figure in figures if figure.name.startswith("privacy-") and figure.svg]


def test_curves_over_a_key_of_the_setting_and_of_the_method(tmp_path):
    tests = [[1.0, 2.0, 3.0, 4.0]]
    for alpha in (0.1, 0.5):
        for method in ("standalone", "fedmrl"):
            make_run(
                tmp_path, method, 0, tests, name=f"{method}-{alpha}", alpha=alpha,
                partition="dirichlet",
            )  # fmt: skip
    make_run(tmp_path, "fedmrl", 0, tests, name="x", alpha=0.1, partition="dirichlet", d1=300)
    drawn = [figure.title for figure in build([tmp_path], models=False).figures() if figure.svg]
    assert "Accuracy against alpha" in drawn and "Accuracy against d1" in drawn


def test_accuracy_stands_against_what_was_spent_on_privacy(tmp_path):
    noise = {"dp_clip": 1, "dp_delta": 1e-5}
    for epsilon in (1.0, 10.0):
        path = make_run(
            tmp_path, "fedssa", 0, [[epsilon] * 4], dp_epsilon=epsilon, name=f"e{epsilon}", **noise
        )
        summary = json.loads((path / "summary.json").read_text())
        summary["privacy"] = {"epsilon_spent_max": epsilon / 2}
        (path / "summary.json").write_text(json.dumps(summary))
    make_run(tmp_path, "standalone", 0, [[5.0] * 4])
    (drawn,) = privacy(tmp_path)
    assert "N = 4" in drawn.caption and "dp-epsilon" not in drawn.caption
    # the budget is not a key like any other
    names = [figure.name for figure in build([tmp_path], models=False).figures()]
    assert not any(name.startswith("curve-") for name in names)


def test_no_line_joins_what_was_spent_on_two_data_sets(tmp_path):
    for dataset in ("digits", "cifar10"):
        for epsilon in (1.0, 10.0):
            path = make_run(
                tmp_path, "fedssa", 0, [[epsilon] * 4], dp_epsilon=epsilon, dp_clip=1,
                dp_delta=1e-5, dataset=dataset, name=f"{dataset}{epsilon}",
            )  # fmt: skip
            edit(path / "summary.json", "{", f'{{"privacy": {{"epsilon_spent_max": {epsilon}}}, ')
    drawn = privacy(tmp_path)
    assert [one.svg.count('<g class="series">') for one in drawn] == [1, 1]
    assert len({one.name for one in drawn}) == 2
    said = " ".join(one.caption for one in drawn)
    assert "in: digits, N = 4" in said and "in: cifar10, N = 4" in said


def test_noise_of_each_upload_and_of_the_sum_are_two_curves(tmp_path):
    noise = {"dp_clip": 1, "dp_delta": 1e-5, "sum_min": 2}
    for mode in ("off", "masked"):
        for epsilon in (1.0, 10.0):
            path = make_run(
                tmp_path, "fedssa", 0, [[epsilon] * 4], dp_epsilon=epsilon, secure_sum=mode,
                name=f"{mode}{epsilon}", **noise,
            )  # fmt: skip
            summary = json.loads((path / "summary.json").read_text())
            own = {} if mode == "off" else {"noise_of": "sum"}
            summary["privacy"] = {"epsilon_spent_max": epsilon, **own}
            (path / "summary.json").write_text(json.dumps(summary))
    (picture,) = privacy(tmp_path)
    drawn = picture.svg
    assert drawn.count('<g class="series">') == 2
    assert "<title>FedSSA</title>" in drawn
    assert "<title>FedSSA, noise for the sum</title>" in drawn


def test_odd_runs_are_drawn(tmp_path):
    """A norm that only some have, a name that could be a formula, no FLOPs."""
    for seed in range(2):
        path = make_run(tmp_path, "fedssa", seed, [[1.0] * 4] * 2, flops=0.0)
        edit(path / "config.yaml", "method: fedssa", "method: fedssa\nodd-key: $\\b$")
        lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        text = "".join(
            json.dumps(line | {"header_norm": 1.0 if seed else None}) + "\n" for line in lines
        )
        (path / "rounds.jsonl").write_text(text)
    drawn = {one.name.split("-")[0] for one in build([tmp_path], models=False).figures() if one.svg}
    assert {"rounds", "traffic", "header_norm", "partition"} <= drawn


def test_lines_of_two_partitions_and_one_seed_have_two_names(tmp_path):
    for partition in range(2):
        name = f"p{partition}"
        path = make_run(
            tmp_path, "fedssa", 0, [[1.0] * 4], partition_seed=partition, name=name
        )  # fmt: skip
        edit(path / "rounds.jsonl", '"train_flops"', '"header_norm": 1.0, "train_flops"')
    figures = build([tmp_path], models=False).figures()
    (norms,) = [figure.svg for figure in figures if figure.name.startswith("header_norm")]
    for partition in range(2):
        assert f"<title>FedSSA, partition {partition}, seed 0</title>" in norms

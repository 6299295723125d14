"""Figures from records: which are drawn, and what is in them."""

import json

from written_runs import edit, make_run

from fedhet.reports.sections import build


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
    figures = {figure.name: figure for figure in build([tmp_path], models=False).figures()}
    assert not figures["privacy"].absent
    # the budget is not a key like any other
    assert not any(name.startswith("curve-") for name in figures)


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
    figures = {figure.name: figure for figure in build([tmp_path], models=False).figures()}
    drawn = figures["privacy"].svg
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

"""The best state, kept predictions and ``model.predict``."""

import csv
import itertools

import numpy as np
import pandas as pd
import pytest

import fedhet
from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.export.model import export_predictions


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    draws = np.random.default_rng(0)
    age = draws.integers(30, 70, 150)
    frame = pd.DataFrame({"age": age, "sex": draws.choice(["f", "m"], 150), "ill": age > 55})
    frame["ill"] = frame["ill"].map({True: "yes", False: "no"})
    frame.to_csv(folder / "p.csv", index=False)
    done = fedhet.run(
        "quickstart", progress=False, engine="inline", rounds=3, clients=3, dataset="table",
        partition="iid", target="ill", data_path=str(folder / "p.csv"), models=["mlp-5"],
        categories={"sex": ["f", "m"]}, out=str(folder), keep_best=True, keep_predictions=True,
    )  # fmt: skip
    return done, frame


def test_predictions_are_those_of_the_reported_accuracy(run, tmp_path):
    done, frame = run
    rows = export_predictions(done.path, tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == rows > 0
    (last,) = [r for r in done.clients.to_dict("records") if r["client"] == "1" and r["round"] == 3]
    mine = [r for r in found if r["client"] == "1" and r["split"] == "test"]
    pairs = [(r["y"], "yes" if float(r["p_yes"]) > 0.5 else "no") for r in mine]
    assert 100 * np.mean([y == answer for y, answer in pairs]) == pytest.approx(
        last["test_accuracy"]
    )
    assert all(r["y"] == frame["ill"][int(r["row"])] for r in mine)
    confusion = pd.read_csv(done.path / "confusion.csv", dtype={"client": str})
    own = confusion[confusion["client"] == "1"].set_index("class")
    assert own["examples"].sum() == len(mine) and set(own.index) == {"no", "yes"}
    for y, answer in itertools.product(own.index, repeat=2):
        assert own.loc[y, f"predicted {answer}"] == pairs.count((y, answer))


def test_a_model_predicts_a_frame_a_path_and_an_array_alike(run, tmp_path):
    done, frame = run
    model = done.model("1", best=True)
    by_frame = model.predict(frame[["sex", "age"]].set_axis(frame.index + 7))
    frame.to_csv(tmp_path / "again.csv", index=False)
    by_path = model.predict(tmp_path / "again.csv")
    assert list(by_frame.columns) == ["class", *(f"p_{name}" for name in model.classes)]
    assert by_frame.index[0] == 7
    assert (by_frame.to_numpy() == by_path.to_numpy()).all()
    with pytest.raises(UserError, match="this model takes"):
        model.predict(np.zeros((2, 99)))
    with pytest.raises(
        UserError, match=r"'age': '40,4' is not a number: .* decimal=\",\".*na_values"
    ):
        model.predict(frame.assign(age="40,4"))
    joined = pd.DataFrame({"age;sex": ["40;f"]})  # what pandas makes of a file with semicolons
    with pytest.raises(UserError, match="the DataFrame has no column .* it has age;sex"):
        model.predict(joined)


def test_the_best_state_is_that_of_the_best_validation(run):
    done, _ = run
    mine = [r for r in done.clients.to_dict("records") if r["client"] == "2"]
    best = max(mine, key=lambda r: (r["val_accuracy"], -r["round"]))
    (state,) = (done.path / "state").glob("*/2")
    assert f'"generation": {best["round"]}' in (state / "best.json").read_text()


def test_states_are_classified_with_like_an_exported_model(run, tmp_path, capsys):
    done, frame = run
    frame.to_csv(tmp_path / "p.csv", index=False)
    (state,) = map(str, (done.path / "state").glob("*/2"))
    made = {"state": state, "exported": str(tmp_path / "model")}
    assert execute(["export", state, "--best", "--out", made["exported"]]) == 0
    for name, model in made.items():
        best = ["--best"] if name == "state" else []
        out = str(tmp_path / f"{name}.csv")
        assert execute(["predict", model, str(tmp_path / "p.csv"), "--out", out, *best]) == 0
    assert (tmp_path / "state.csv").read_bytes() == (tmp_path / "exported.csv").read_bytes()
    words = ["predict", made["exported"], str(tmp_path / "p.csv"), "--best"]
    assert execute(words) == 2
    assert "--best: " in capsys.readouterr().err

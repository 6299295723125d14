"""`fedhet predict` and ``model.predict`` are as accurate as the run was; kept predictions."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from helpers.pictures import images_of, write_images
from helpers.tiny import recorded
from PIL import Image
from test_same_bytes import KINDS

import fedhet
from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.export.model import export, export_predictions, load_model, predict
from fedhet.export.predict import classify
from fedhet.site.local_data import load_partition
from fedhet.testing import simulate, small


def test_images_in_folders_of_their_classes_have_the_recorded_accuracy(run, model, tmp_path):
    data = images_of(run[0], "0")
    folders = [tmp_path / f"class-{label}" for label in range(4)]
    for label, folder in enumerate(folders):
        folder.mkdir()
        write_images(folder, data.examples[data.labels == label])
    done = predict(model, folders, tmp_path / "p.csv")
    own = [Path(place).parent.name for place in done.frame.index]
    accuracy = 100 * (done.frame["class"] == own).mean()
    assert accuracy == done.metrics["accuracy"] == float(recorded(run[1])["0"]["test_accuracy"])
    assert done.labelled == len(data)


def test_arrays_of_images_are_what_data_may_be(model):
    loaded, _ = load_model(model)
    images = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8)
    answers = loaded.predict(images)
    assert answers.equals(loaded.predict(images.transpose(0, 3, 1, 2)))
    large = images.repeat(2, axis=1).repeat(2, axis=2)
    assert loaded.predict(large.astype(np.int64)).shape == answers.shape
    for examples, reason in (
        (images / 255, "images are float64.*must be uint8"),
        (torch.utils.data.TensorDataset(torch.zeros(2)), "a TensorDataset is neither a DataFrame"),
    ):
        with pytest.raises(UserError, match=reason):
            loaded.predict(examples)


def test_unreadable_files_are_named_and_left_out(model, tmp_path, capsys):
    folder = tmp_path / "mixed"
    (folder / "deep").mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(folder / "deep" / "good.png")
    (folder / "broken.png").write_bytes(b"\x89PNG not really")
    (folder / "notes.txt").write_text("no image, and not called one")
    (folder / ".hidden.png").write_bytes(b"")
    out = tmp_path / "p.csv"
    words = ["predict", str(model), str(folder), "--out", str(out)]
    assert execute(words) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "broken.png" in printed.err
    assert "notes" not in printed.err and "hidden" not in printed.err
    written = out.read_bytes()
    assert pd.read_csv(out)["path"].tolist() == [str(folder / "deep" / "good.png")]
    assert execute([*words[:2], str(folder / "broken.png"), *words[3:]]) == 2
    assert out.read_bytes() == written
    assert not list(tmp_path.glob(".*tmp"))


SPOILT = (
    ({"architecture": "cnn-1"}, "do not fit card.yaml"),
    ({"architecture": "cnn-5 weights=/no/such"}, "names a file of weights"),
    ({"architecture": "hf:network/../x untrained"}, "you did not make it: give --trust"),
    ({"format": 2}, "not of format 1"), ({"hyper-parameters": {"d1": -1}}, "d1"),
    (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xff"), "is damaged"),
    (Path.unlink, "cannot be read"),
)  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), SPOILT)
def test_what_is_no_exported_model(model, tmp_path, change, reason):
    """Of strangers: tests/hostile/test_folders.py."""
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    spoilt = shutil.copytree(model, tmp_path / "spoilt")
    card = spoilt / "card.yaml"
    if callable(change):
        change(spoilt / "model.safetensors")
    else:
        card.write_text(yaml.safe_dump(yaml.safe_load(card.read_text()) | change))
    with pytest.raises(UserError, match=reason):
        predict(spoilt, [tmp_path / "x.png"], tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    """A run, the exported model of its first client, and its file."""
    folder = tmp_path_factory.mktemp("kind")
    values = {"method": "fedmrl", "d1": 8, "representation": 24, "partition": "iid", "lr": 0.05}
    config = small(folder, **values | KINDS[request.param](folder))
    run, _ = simulate(config)
    state = min(run.path.glob("state/*/*"))
    return config, run, state.name, export(state, folder / "model")


def test_a_raw_file_has_the_recorded_accuracy(made, tmp_path):
    config, run, client, folder = made
    found = predict(folder, [Path(config.data_path)], tmp_path / "p.csv")
    frame = pd.read_csv(tmp_path / "p.csv")
    assert len(found.frame) == len(frame) == found.labelled == 120
    first = 0 if config.dataset == "signals" else 2  # the line after the header
    lines = frame["path"].str.rpartition(":")[2].astype(int)
    assert lines.tolist() == list(range(first, 120 + first))
    data, partition = load_partition(config, 3)
    test = partition.clients[partition.ids.index(client)].test
    right = frame["class"].astype(str).to_numpy() == np.array(data.classes)[data.labels]
    assert 100 * right[test].mean() == float(recorded(run)[client]["test_accuracy"])
    assert found.metrics["accuracy"] == pytest.approx(100 * right.mean())
    model, card = load_model(folder)
    assert card["inputs"]["kind"] == model.inputs.kind
    assert card["representation"] == 24 and "image-size" not in card
    if config.dataset == "texts":
        texts = pd.Series(["alpha beta", "gamma"], name="note", index=[4, 2])
        answers = model.predict(texts)
        assert answers.index.tolist() == [4, 2]
        assert (answers.to_numpy() == model.predict(texts.to_numpy(object)).to_numpy()).all()
        with pytest.raises(UserError, match="does not exist.*texts are a Series, an array"):
            model.predict(["alpha beta"])
    if config.dataset == "signals":
        windows_with_gaps_are_left_out(model, folder, dict(np.load(config.data_path)), tmp_path)


def test_rows_as_people_have_them(tmp_path):
    """A category that training had not, columns twice, one row; the card's steps by hand."""
    rows = "".join(
        f"{k * k % 83 / 7 if k % 9 else ''},{'fm'[k % 2]},{k % 3 // 2}\n" for k in range(60)
    )
    (tmp_path / "p.csv").write_text("bp,sex,ill\n" + rows)
    config = small(tmp_path, dataset="table", data_path=str(tmp_path / "p.csv"), target="ill",
                   models=["mlp-1"], partition="iid", clients=2)  # fmt: skip
    run, _ = simulate(config)
    model, card = load_model(export(min(run.path.glob("state/*/*")), tmp_path / "model"))
    frame = pd.DataFrame({"bp": [5.0, 1e9, np.nan], "sex": ["f", "x", "m"]})
    answers = classify(model, frame)
    assert answers.warning == "values that were no category in training count as gaps: sex (1 rows)"
    first = answers.frame.iloc[0, 1:].astype(float)
    for one in (frame.iloc[0], {"bp": 5.0, "sex": "f"}, {"bp": [5.0], "sex": ["f"]}):
        assert np.allclose(model.predict(one).iloc[0, 1:].astype(float), first, atol=1e-6)
    with pytest.raises(UserError, match="examples: column 'bp' is there twice"):
        model.predict(frame[["bp", "bp", "sex"]])
    assert "cut to [-10, 10]" in card["input"]["preparation"]
    sick = torch.tensor([[1e9, np.nan]])  # cut, known, and of no category
    assert model.prepare(sick).tolist() == [[10, 0, 0, 0]]


def windows_with_gaps_are_left_out(model, folder, arrays, tmp_path):
    arrays["x"] = arrays["x"].astype(np.float32)
    arrays["x"][5, 0, 3] = np.nan
    np.savez(tmp_path / "gap.npz", **arrays)
    found = predict(folder, [tmp_path / "gap.npz"], tmp_path / "p.csv")
    assert found.warning == "1 windows with gaps are left out"
    kept = [k for k in range(120) if k != 5]
    assert [int(path.rpartition(":")[2]) for path in found.frame.index] == kept
    frame = pd.DataFrame(arrays["x"].reshape(120, -1), index=range(1000, 1120))
    assert model.predict(frame).index.tolist() == [1000 + k for k in kept]
    np.savez(tmp_path / "gap.npz", **{name: values[5:6] for name, values in arrays.items()})
    with pytest.raises(UserError, match="nothing to classify: 1 windows with gaps are left out"):
        predict(folder, [tmp_path / "gap.npz"], tmp_path / "p.csv")


def test_what_does_not_fit_is_one_line(made, tmp_path):
    config, _, _, model = made
    (tmp_path / "other.csv").write_text("something,else\n1,2\n")
    np.savez(tmp_path / "other.npz", x=np.zeros((3, 5, 16), np.float32))
    signals = config.dataset == "signals"
    for name, reason in (
        ("other.csv", "2 columns, but the model takes 2 x 16" if signals else "has no column"),
        ("other.npz", r"windows are \(5, 16\)" if signals else "an NPZ of signals, but"),
        ("absent.csv", "does not exist"), ("", "is a folder, but the model takes"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=reason):
            predict(model, [tmp_path / name], tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
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


def test_predictions_are_those_of_the_reported_accuracy(table, tmp_path):
    done, frame = table
    rows = export_predictions(done.path, tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv", dtype={"client": str})
    assert len(found) == rows > 0
    mine = found[(found["client"] == "1") & (found["split"] == "test")]
    assert (mine["y"].to_numpy() == frame["ill"][mine["row"]]).all()
    answers = np.where(mine["p_yes"] > 0.5, "yes", "no")
    last = done.clients.query("client == '1' and round == 3")["test_accuracy"].item()
    assert 100 * (mine["y"] == answers).mean() == pytest.approx(last)
    pairs = list(zip(mine["y"], answers, strict=True))
    confusion = pd.read_csv(done.path / "confusion.csv", dtype={"client": str})
    own = confusion[confusion["client"] == "1"].set_index("class")
    assert own["examples"].sum() == len(mine) and set(own.index) == {"no", "yes"}
    for y, answer in itertools.product(own.index, repeat=2):
        assert own.loc[y, f"predicted {answer}"] == pairs.count((y, answer))


def test_a_model_predicts_a_frame_a_path_and_an_array_alike(table, tmp_path):
    done, frame = table
    model = done.model("1", best=True)
    by_frame = model.predict(frame[["sex", "age"]].set_axis(frame.index + 7))
    frame.to_csv(tmp_path / "again.csv", index=False)
    by_path = model.predict(tmp_path / "again.csv")
    assert list(by_frame.columns) == ["class", *(f"p_{name}" for name in model.classes)]
    assert by_frame.index[0] == 7
    assert (by_frame.to_numpy() == by_path.to_numpy()).all()
    joined = pd.DataFrame({"age;sex": ["40;f"]})  # what pandas makes of a file with semicolons
    for examples, says in (
        (np.zeros((2, 99)), "this model takes"),
        (frame.assign(age="40,4"), "'age': '40,4' is not a number"),
        (joined, "the DataFrame has no column .* it has age;sex"),
    ):
        with pytest.raises(UserError, match=says):
            model.predict(examples)


def test_the_best_state_is_of_the_best_validation_and_exported_it_answers_alike(table, tmp_path):
    done, frame = table
    frame.to_csv(tmp_path / "p.csv", index=False)
    (state,) = (done.path / "state").glob("*/2")
    mine = done.clients[done.clients["client"] == "2"].reset_index()
    best = mine["round"][mine["val_accuracy"].idxmax()]  # the first of equal ones
    assert f'"generation": {best}' in (state / "best.json").read_text()
    model = str(tmp_path / "model")
    assert execute(["export", str(state), "--best", "--out", model]) == 0
    words = [str(tmp_path / "p.csv"), "--out"]
    assert execute(["predict", str(state), *words, str(tmp_path / "a.csv"), "--best"]) == 0
    assert execute(["predict", model, *words, str(tmp_path / "b.csv")]) == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert execute(["predict", model, *words, str(tmp_path / "c.csv"), "--best"]) == 2

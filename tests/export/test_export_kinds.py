"""A model of rows, signals or texts, outside its run: raw files in, the recorded accuracy out."""

import csv
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load, save

from fedhet.errors import UserError
from fedhet.export.model import load_model
from fedhet.export.predict import predict
from fedhet.export.save import export
from fedhet.site.local_data import load_partition
from fedhet.testing import simulate, small


def table_file(folder):
    rng = np.random.default_rng(0)
    lines = ["h,age,sex,y"]
    for k in range(90):
        age = "" if k % 9 == 0 else f"{rng.normal(50 + 20 * (k % 2), 5):.2f}"
        lines.append(f"{'abc'[k % 3]},{age},{'fm'[rng.integers(2)]},{k % 2}")
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return {"dataset": "table", "target": "y", "site": "h", "categories": {"sex": ["f", "m"]},
            "data_path": str(folder / "data.csv"), "models": ["mlp-5"]}  # fmt: skip


def signal_file(folder):
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 2
    x = (1000 * (rng.normal(size=(90, 2, 16)) + labels[:, None, None])).astype(np.int16)
    np.savez(folder / "data.npz", x=x, y=labels, who=np.array(list("abc") * 30))
    return {"dataset": "signals", "site": "who", "scale": 1000.0, "models": ["conv1d-5"],
            "data_path": str(folder / "data.npz")}  # fmt: skip


def text_file(folder):
    words = ["oil bank money", "goal match team"]
    rows = "".join(f'"{words[k % 2]} {k}",{"xy"[k % 2]},{"abc"[k % 3]}\n' for k in range(90))
    (folder / "data.csv").write_text("say,y,who\n" + rows)
    return {"dataset": "texts", "text": "say", "target": "y", "site": "who", "length": 6,
            "vocabulary": 100, "models": ["fasttext"],
            "data_path": str(folder / "data.csv")}  # fmt: skip


@pytest.fixture(scope="module", params=[table_file, signal_file, text_file])
def made(request, tmp_path_factory):
    """A run, the exported model of its client 'a', and its file."""
    folder = tmp_path_factory.mktemp("kind")
    values = request.param(folder) | {
        "partition": "natural", "representation": 24, "clients": 3, "lr": 0.05, "method": "fedmrl",
        "d1": 8,
    }  # fmt: skip
    config = small(folder, **values)
    run, _ = simulate(config)
    (state,) = run.path.glob("state/*/a")
    return config, run, export(state, folder / "model")


def answers(path):
    with path.open(newline="") as file:
        return {int(row["path"].rpartition(":")[2]): row for row in csv.DictReader(file)}


def test_a_raw_file_has_the_recorded_accuracy(made, tmp_path):
    config, run, model = made
    found = predict(model, [_path(config)], tmp_path / "p.csv")
    rows = answers(tmp_path / "p.csv")
    assert found.examples == len(rows) == 90 and found.what == "examples"
    data, partition = load_partition(config, 3)
    test = partition.clients[partition.ids.index("a")].test
    first = 0 if config.dataset == "signals" else 2  # the line after the header
    own = [rows[first + index] for index in test.tolist()]
    right = sum(
        row["class"] == data.classes[label]
        for row, label in zip(own, data.labels[test], strict=True)
    )
    (recorded,) = [line for line in csv.DictReader(run.clients.open()) if line["client"] == "a"][
        -1:
    ]
    assert 100 * right / len(test) == float(recorded["test_accuracy"])
    shares = [float(own[0][f"p_{name}"]) for name in data.classes]
    assert sum(shares) == pytest.approx(1, abs=1e-4)


def _path(config):
    from pathlib import Path  # noqa: PLC0415

    return Path(config.data_path)


def test_the_card_says_what_goes_in(made):
    config, _, folder = made
    model, card = load_model(folder)
    assert card["inputs"]["kind"] == model.inputs.kind
    assert card["input"]["shape"] == ["batch", *model.inputs.shape]
    assert card["representation"] == 24 and "image-size" not in card
    fitted = [name for name in model.state_dict() if name.startswith("parts.preparation.")]
    assert bool(fitted) == (config.dataset != "texts")
    examples = torch.from_numpy(model.inputs.zeros(2))
    assert model.prepare(examples).shape == (2, *model.inputs.shape)


def test_what_does_not_fit_is_one_line(made, tmp_path):
    config, _, model = made
    wrong = tmp_path / ("other.npz" if config.dataset == "signals" else "other.csv")
    if config.dataset == "signals":
        np.savez(wrong, x=np.zeros((3, 5, 16), np.float32))
        message = r"windows are \(5, 16\), and the model takes \(2, 16\)"
    else:
        wrong.write_text("something,else\n1,2\n")
        message = "has no column"
    with pytest.raises(UserError, match=message):
        predict(model, [wrong], tmp_path / "p.csv")
    with pytest.raises(UserError, match="no such file"):
        predict(model, [tmp_path / "absent.csv"], tmp_path / "p.csv")
    with pytest.raises(UserError, match="is a folder: this model takes .* files"):
        predict(model, [tmp_path], tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_an_answer_that_is_not_finite_is_none(made, tmp_path):
    config, _, model = made
    large = Path(shutil.copytree(model, tmp_path / "large"))
    weights = load(large.joinpath("model.safetensors").read_bytes())
    data = save({n: t * 1e30 if t.is_floating_point() else t for n, t in weights.items()})
    large.joinpath("model.safetensors").write_bytes(data)
    card = yaml.safe_load((model / "card.yaml").read_text())
    card["sha256"] = hashlib.sha256(data).hexdigest()
    (large / "card.yaml").write_text(yaml.safe_dump(card))
    with pytest.raises(UserError, match=r"data\.\w+:\d+': the model has no finite answer to it"):
        predict(large, [Path(config.data_path)], tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_a_text_file_is_one_text_a_line(made, tmp_path):
    config, _, model = made
    (tmp_path / "lines.txt").write_text("oil bank money\ngoal match team\n")
    if config.dataset != "texts":
        with pytest.raises(UserError, match="has no column|no sound NPZ file"):
            predict(model, [tmp_path / "lines.txt"], tmp_path / "p.csv")
        return
    predict(model, [tmp_path / "lines.txt"], tmp_path / "p.csv")
    assert len(answers(tmp_path / "p.csv")) == 2
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="nothing to classify"):
        predict(model, [tmp_path / "empty.txt"], tmp_path / "p.csv")
    assert len(answers(tmp_path / "p.csv")) == 2


def test_no_input_is_overwritten_and_no_name_is_blamed_on_the_answers(made, tmp_path):
    config, _, model = made
    own = Path(shutil.copy(config.data_path, tmp_path))
    with pytest.raises(UserError, match="one of the files to classify"):
        predict(model, [own], own)
    assert own.read_bytes() == _path(config).read_bytes()
    with pytest.raises(UserError, match=f"^'{'x' * 300}': File name too long"):
        predict(model, [Path("x" * 300)], tmp_path / "p.csv")


def test_rows_and_texts_of_a_parquet_file_are_answered_as_those_of_the_csv(made, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    reader = pytest.importorskip("pyarrow.csv")
    config, _, model = made
    if not config.data_path.endswith(".csv"):
        pytest.skip("signals come as NPZ")
    text = reader.ConvertOptions(null_values=[""], strings_can_be_null=True)
    parquet.write_table(
        reader.read_csv(config.data_path, convert_options=text), tmp_path / "in.parquet"
    )
    predict(model, [tmp_path / "in.parquet"], tmp_path / "parquet.csv")
    predict(model, [_path(config)], tmp_path / "csv.csv")
    ours, theirs = answers(tmp_path / "parquet.csv"), answers(tmp_path / "csv.csv")
    assert list(ours) == list(range(90)) and list(theirs) == list(range(2, 92))
    for row, line in zip(ours.values(), theirs.values(), strict=True):
        assert row | {"path": ""} == line | {"path": ""}

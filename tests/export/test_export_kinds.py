"""A model of rows, signals or texts, outside its run: raw files in, the recorded accuracy out."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhet.errors import UserError
from fedhet.export.model import export, load_model
from fedhet.export.predict import predict
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
    found = predict(model, [Path(config.data_path)], tmp_path / "p.csv")
    rows = answers(tmp_path / "p.csv")
    assert len(found.frame) == len(rows) == 90 and found.what == "examples"
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
    all_right = sum(
        rows[first + index]["class"] == data.classes[label]
        for index, label in enumerate(data.labels)
    )
    assert found.labelled == 90 and found.metrics["accuracy"] == pytest.approx(100 * all_right / 90)
    assert {"balanced_accuracy", "macro_f1", "auroc", "log_loss", "ece"} < set(found.metrics)
    shares = [float(own[0][f"p_{name}"]) for name in data.classes]
    assert sum(shares) == pytest.approx(1, abs=1e-4)


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
    with pytest.raises(UserError, match="does not exist"):
        predict(model, [tmp_path / "absent.csv"], tmp_path / "p.csv")
    with pytest.raises(UserError, match="is a folder: give the .* files themselves"):
        predict(model, [tmp_path], tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()

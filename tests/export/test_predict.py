"""`fedhet predict`: answers about files, as accurate as the run was."""

import csv

import numpy as np
import pytest
import yaml
from export.exported import recorded
from helpers.pictures import images_of, write_images
from PIL import Image

from fedhet.cli import app as cli
from fedhet.errors import UserError
from fedhet.export.predict import predict


def rows_of(path):
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_of_files_have_the_recorded_accuracy(run, model, tmp_path):
    config, folder = run
    data = images_of(config, "0")
    (tmp_path / "pictures").mkdir()
    write_images(tmp_path / "pictures", data.examples)
    found = predict(model, [tmp_path / "pictures"], tmp_path / "p.csv")
    rows = rows_of(tmp_path / "p.csv")
    assert len(found.frame) == len(rows) == len(data) and not found.warning and not found.metrics
    assert list(rows[0]) == ["path", "class", *(f"p_class-{label}" for label in range(4))]
    right = 0
    for row, label in zip(rows, data.labels.tolist(), strict=True):
        shares = [float(row[f"p_class-{k}"]) for k in range(4)]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert row["class"] == f"class-{np.argmax(shares)}"
        right += row["class"] == f"class-{label}"
    assert 100.0 * right / len(rows) == float(recorded(folder)["0"]["test_accuracy"])


def test_images_in_folders_of_their_classes_have_metrics(run, model, tmp_path, capsys):
    data = images_of(run[0], "0")
    for label in range(4):
        (tmp_path / f"class-{label}").mkdir()
        write_images(tmp_path / f"class-{label}", data.examples[data.labels == label])
    out = tmp_path / "p.csv"
    folders = [str(tmp_path / f"class-{label}") for label in range(4)]
    assert cli.execute(["predict", str(model), *folders, "--out", str(out)]) == 0
    right = [row["class"] in row["path"] for row in rows_of(out)]
    said = capsys.readouterr().out
    assert said.startswith(f"accuracy {100 * np.mean(right):.2f} %, balanced accuracy ")
    assert f" of {len(data)} images with a class\n" in said


def test_unreadable_files_are_named_and_left_out(model, tmp_path, capsys):
    folder = tmp_path / "mixed"
    (folder / "deep").mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(folder / "deep" / "good.png")
    (folder / "broken.png").write_bytes(b"\x89PNG not really")
    (folder / "notes.txt").write_text("no image, and not called one")
    (folder / ".hidden.png").write_bytes(b"")
    out = tmp_path / "p.csv"
    words = ["predict", str(model), str(folder), "--out", str(out)]
    assert cli.execute(words) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "broken.png" in printed.err
    assert "notes" not in printed.err and "hidden" not in printed.err
    assert [row["path"] for row in rows_of(out)] == [str(folder / "deep" / "good.png")]
    assert cli.execute([*words[:2], str(folder / "broken.png"), *words[3:]]) == 2
    assert len(rows_of(out)) == 1  # the file from before is left as it was
    assert not list(tmp_path.glob(".*tmp"))


def test_what_is_no_exported_model(model, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")

    def said(folder):
        with pytest.raises(UserError) as error:
            predict(folder, [tmp_path / "x.png"], tmp_path / "p.csv")
        assert not (tmp_path / "p.csv").exists()
        return str(error.value)

    assert "is neither an exported model" in said(tmp_path)
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    card = yaml.safe_load((model / "card.yaml").read_text(encoding="utf-8"))
    data = (model / "model.safetensors").read_bytes()

    def write(card, data):
        (spoilt / "card.yaml").write_text(yaml.safe_dump(card), encoding="utf-8")
        (spoilt / "model.safetensors").write_bytes(data)

    write(card, data[:-1] + bytes([data[-1] ^ 1]))
    assert "is damaged" in said(spoilt)
    write({**card, "architecture": "cnn-1"}, data)
    assert "do not fit card.yaml" in said(spoilt)
    write({**card, "architecture": "cnn-5 weights=/no/such"}, data)
    assert "omit weights=" in said(spoilt)
    write({**card, "method": "fedmlr"}, data)
    assert "method" in said(spoilt)
    write({**card, "format": 2}, data)
    assert "not of format 1" in said(spoilt)
    write({**card, "hyper-parameters": {"d1": -1}}, data)
    assert "d1" in said(spoilt)
    (spoilt / "model.safetensors").unlink()
    assert "cannot be read" in said(spoilt)

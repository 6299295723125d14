"""`fedhet export` and `fedhet predict`: the model that a client takes home is the one that ran."""

import csv
import importlib.util
import json

import numpy as np
import pytest
import torch
import yaml
from helpers.pictures import images_of, write_images
from PIL import Image
from safetensors.torch import load_file

from fedhet.cli import app as cli
from fedhet.data.source import to_pixels
from fedhet.errors import UserError
from fedhet.export import onnx as onnx_file
from fedhet.export.images import find_images
from fedhet.export.model import load_model, rebuild
from fedhet.export.predict import classify, predict
from fedhet.export.save import export, open_state
from fedhet.node.state import FileStore
from fedhet.registry import METHODS
from fedhet.testing import simulate, small
from fedhet.training.loop import correct

VARIANTS = [
    *((name, {}) for name in METHODS),
    *(
        ("fedmrl", {"inference": kind, "report_all_inference": True})
        for kind in ("mix-small", "single-small", "single-large")
    ),
    ("fedmrl", {"matryoshka": False}),
    ("fedkd", {"compress_down": True}),
    ("fedssa", {"hide_classes": True}),
    ("fml", {"models": ["cnn-5", "cnn-4"]}),
    ("standalone", {"models": ["shufflenet_v2_x1_0"]}),  # BatchNorm's statistics travel as well
    ("standalone", {"precision": "bf16"}),
]


def states(folder, config):
    root = folder.state_dir(config) / folder.experiment
    return {path.name: path for path in sorted(root.iterdir())}


def percent(model, config, client, part):
    data = images_of(config, client, part)
    return 100.0 * correct(lambda x: {"": model(x)}, data, model.config)[""] / len(data)


def recorded(folder):
    """Newest line of clients.csv per client."""
    with folder.clients.open(encoding="utf-8", newline="") as file:
        return {row["client"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished FedMRL run: its configuration and folder."""
    config = small(tmp_path_factory.mktemp("run"), method="fedmrl", rounds=3)
    return config, simulate(config)[0]


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    """The exported model of client 0."""
    config, folder = run
    return export(states(folder, config)["0"], tmp_path_factory.mktemp("model") / "m")


# --- the model is the one that ran ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes"), VARIANTS, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_it_has_exactly_the_accuracies_that_the_run_recorded(tmp_path, method, changes):
    options = {"dataset": "synthetic:240x4", "clients": 2, "classes_per_client": 4} | changes
    config = small(tmp_path, method=method, rounds=1, **options)
    folder, _ = simulate(config)
    rows = recorded(folder)
    for client, state in states(folder, config).items():
        out = export(state, tmp_path / f"model-{client}")
        loaded, card = load_model(out)
        row = rows[client]
        assert card["generation"] == int(row["generation"]) == config.rounds
        assert card["accuracy"]["test"] == float(row["test_accuracy"])
        assert percent(loaded, config, client, "test") == float(row["test_accuracy"])
        assert percent(loaded, config, client, "val") == float(row["val_accuracy"])
        # Accuracies are coarse: the logits are the run's, bit for bit, and not untrained ones.
        origin = rebuild(json.loads((state / "client.json").read_text()), state, config.rounds)
        for module in origin.modules.values():
            module.eval()
        inputs, _ = images_of(config, client).batch(torch.arange(8))
        with torch.inference_mode():
            assert torch.equal(loaded(inputs), next(iter(origin.predict(inputs).values())))
            origin.restore(0)
            assert not torch.equal(loaded(inputs), next(iter(origin.predict(inputs).values())))


def test_only_what_inference_needs_is_written(tmp_path):
    expected = {
        "pfedes": ({"model"}, "parts.small"),
        "fedkd": ({"model"}, "parts.student"),
        "fedapen": ({"model", "small", "ensemble"}, "parts.projector"),
        "fedmrl": ({"model", "small", "projector"}, "parts.small.head"),
    }
    for method, (parts, absent) in expected.items():
        config = small(tmp_path / method, method=method, rounds=1)
        folder, _ = simulate(config)
        out = export(states(folder, config)["1"], tmp_path / f"{method}-model")
        names = load_file(out / "model.safetensors")
        assert {name.split(".")[1] for name in names} == parts
        assert not [name for name in names if name.startswith(absent)]
        card = yaml.safe_load((out / "card.yaml").read_text())
        assert card["parts"] and set(card["parts"]) == parts
        assert card["parameters"] == sum(tensor.numel() for tensor in names.values())


def test_the_card_says_what_the_model_is(run, model):
    config, folder = run
    card = yaml.safe_load((model / "card.yaml").read_text(encoding="utf-8"))
    assert card["method"] == "fedmrl" and card["architecture"] == "cnn-5"
    assert card["classes"] == [f"class-{label}" for label in range(4)]
    assert card["image-size"] == 32 and card["input"]["shape"] == ["batch", 3, 32, 32]
    assert card["run"] == folder.experiment and card["client"] == "0"
    assert card["generation"] == 3 and card["hyper-parameters"]["d1"] == config.params.d1
    assert "license" not in card and "seed" not in card


def test_exporting_twice_gives_the_same_bytes_and_leaves_the_state_alone(run, model, tmp_path):
    config, folder = run
    state = states(folder, config)["0"]
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    again = export(state, tmp_path / "again")
    for path in model.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert before == {path.name: path.read_bytes() for path in state.iterdir()}


def test_an_older_generation_is_another_model(run, tmp_path):
    config, folder = run
    state = states(folder, config)["0"]
    assert FileStore(state, sync=False).generations() == [2, 3]
    old, new = open_state(state, 2), open_state(state)
    assert (old.generation, new.generation) == (2, 3)
    with folder.clients.open(encoding="utf-8", newline="") as file:
        rows = {(r["client"], r["round"]): r for r in csv.DictReader(file)}
    for one in (old, new):
        row = rows["0", str(one.generation)]
        assert one.metrics["test_accuracy"] == float(row["test_accuracy"])
        assert percent(one.model, config, "0", "test") == float(row["test_accuracy"])
    inputs, _ = images_of(config, "0").batch(torch.arange(4))
    assert not torch.equal(old.model(inputs), new.model(inputs))


def test_a_round_without_an_evaluation_has_no_accuracy(tmp_path):
    config = small(tmp_path, method="standalone", rounds=2, evaluate_every=2)
    folder, _ = simulate(config)
    old = open_state(states(folder, config)["0"], 1)
    assert old.card()["accuracy"] == {"test": None, "validation": None}


def test_the_description_is_written_once(run):
    config, folder = run
    path = states(folder, config)["0"] / "client.json"
    description = json.loads(path.read_text())
    written = path.stat().st_mtime_ns
    store = FileStore(path.parent, sync=False)
    store.describe({key: value for key, value in description.items() if key != "run"})
    assert path.stat().st_mtime_ns == written


# --- predict -------------------------------------------------------------------------------------


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
    assert found.examples == len(rows) == len(data) and not found.warning
    assert list(rows[0]) == ["path", "class", *(f"p_class-{label}" for label in range(4))]
    right = 0
    for row, label in zip(rows, data.labels.tolist(), strict=True):
        shares = [float(row[f"p_class-{k}"]) for k in range(4)]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert row["class"] == f"class-{np.argmax(shares)}"
        right += row["class"] == f"class-{label}"
    assert 100.0 * right / len(rows) == float(recorded(folder)["0"]["test_accuracy"])


def test_other_kinds_of_image_are_converted_as_in_training(model, tmp_path):
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70), dtype=np.uint8))
    wide.save(tmp_path / "grey.png")
    predict(model, [tmp_path / "grey.png"], tmp_path / "p.csv")
    loaded, _ = load_model(model)
    _, shares = classify(loaded, torch.from_numpy(to_pixels(wide, 32)[None].copy()))
    row = rows_of(tmp_path / "p.csv")[0]
    assert [float(row[f"p_class-{k}"]) for k in range(4)] == pytest.approx(
        shares[0].tolist(), rel=1e-5
    )


def test_predictions_are_made_without_denormal_numbers(model):
    """As the accuracies of the run were."""
    loaded, _ = load_model(model)
    tiny, found = torch.tensor([1e-39]), []

    def infer(inputs):
        found.append(float(tiny * 0.5))
        return torch.zeros(len(inputs), len(loaded.classes))

    loaded.forward = infer
    classify(loaded, torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
    assert found == [0.0] and float(tiny * 0.5) > 0


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


def test_a_file_is_classified_once_and_any_name_is_allowed(model, tmp_path):
    names = ["a,b.png", 'q"uote.png', "line\nbreak.png", "\udcff.png"]
    for name in names:
        Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
        (tmp_path / "x.png").rename(tmp_path / name)
    found = find_images([tmp_path / names[0], tmp_path])
    assert len(found) == len(names) and found[0] == str(tmp_path / names[0])
    predict(model, [tmp_path], tmp_path / "p.csv")
    assert {row["path"] for row in rows_of(tmp_path / "p.csv")} == set(found)


# --- ONNX ----------------------------------------------------------------------------------------

WITH_ONNX = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="needs the extra onnx",
)


@WITH_ONNX
@pytest.mark.parametrize("method", ["fedmrl", "fedapen"])
def test_onnx_answers_as_torch_does(tmp_path, method):
    import onnxruntime

    config = small(tmp_path, method=method, rounds=1)
    folder, _ = simulate(config)
    data = images_of(config, "0")
    (tmp_path / "pictures").mkdir()
    write_images(tmp_path / "pictures", data.examples)
    out = export(states(folder, config)["0"], tmp_path / "model", images=[tmp_path / "pictures"])
    loaded, card = load_model(out)
    assert card["onnx"]["checked-on"].startswith(f"{len(data)} images of ")
    assert 0 <= card["onnx"]["max-logit-difference"] < 1e-4
    assert card["onnx"]["same-class"] == f"{len(data)} of {len(data)}"
    session = onnxruntime.InferenceSession(
        str(out / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    for count in (1, 3, 5):  # the batch is free
        inputs, _ = data.batch(torch.arange(count))
        (got,) = session.run(None, {"images": inputs.contiguous().numpy()})
        assert np.allclose(got, loaded(inputs).numpy(), atol=1e-5)
    assert {path.name for path in out.iterdir()} == {"card.yaml", "model.onnx", "model.safetensors"}


@WITH_ONNX
def test_onnx_that_differs_is_not_written(run, tmp_path, monkeypatch):
    config, folder = run
    right = onnx_file._run
    monkeypatch.setattr(onnx_file, "_run", lambda *a: right(*a) + 0.1)
    with pytest.raises(UserError, match=r"differ from torch's by 0\.1"):
        export(states(folder, config)["0"], tmp_path / "m", images=[])
    assert not list(tmp_path.iterdir())


def test_without_the_extra_nothing_is_written(run, tmp_path, monkeypatch, capsys):
    config, folder = run
    monkeypatch.setattr(onnx_file.importlib.util, "find_spec", lambda name: None)
    state = str(states(folder, config)["0"])
    assert cli.execute(["export", state, "--out", str(tmp_path / "m"), "--onnx"]) == 2
    assert "pip install 'fedhet[onnx]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# --- mistakes ------------------------------------------------------------------------------------


def test_the_command_line_prints_the_folder(run, tmp_path, capsys):
    config, folder = run
    state = str(states(folder, config)["1"])
    assert cli.execute(["export", state, "--out", str(tmp_path / "deep" / "m")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "deep" / "m")


@pytest.fixture
def copied(run, tmp_path):
    """A state folder that a test may spoil."""
    config, folder = run
    state = tmp_path / "run-id" / "0"
    state.mkdir(parents=True)
    for path in states(folder, config)["0"].iterdir():
        (state / path.name).write_bytes(path.read_bytes())
    return state


def fails(state, out, *more):
    with pytest.raises(UserError) as error:
        export(state, out, **dict(more))
    assert "\n" not in str(error.value)
    assert not out.exists() and not list(out.parent.glob(".*tmp"))
    return str(error.value)


def test_what_is_no_state_folder(run, copied, tmp_path):
    config, folder = run
    out = tmp_path / "m"
    assert "is not a client's state folder" in fails(tmp_path / "nowhere", out)
    assert "did you mean" in fails(copied.parent, out)
    said = fails(folder.path, out)  # the run folder instead of a client's state
    assert str(states(folder, config)["0"]) in said and "and 2 more" in said
    (copied / "client.json").write_text("{")
    assert "client.json is damaged" in fails(copied, out)
    (copied / "client.json").write_text("{}")
    assert "does not fit client.json" in fails(copied, out)


def test_what_holds_no_good_generation(copied, tmp_path):
    out = tmp_path / "m"
    assert "generation: 7 is not in" in fails(copied, out, ("generation", 7))
    newest = copied / "00000003.safetensors"
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data) // 2])
    assert "generation 3 cannot be read" in fails(copied, out)
    export(copied, tmp_path / "older", generation=2)
    description = json.loads((copied / "client.json").read_text())
    description["classes"].append("one too many")
    (copied / "client.json").write_text(json.dumps(description))
    assert "does not fit client.json" in fails(copied, out, ("generation", 2))
    for path in copied.glob("*.safetensors"):
        path.unlink()
    assert "holds no generation" in fails(copied, out)


def test_nothing_is_overwritten(copied, tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match="already exists"):
        export(copied, tmp_path / "m")
    assert not list((tmp_path / "m").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export(copied, tmp_path / "file" / "m")


def test_what_is_no_exported_model(model, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")

    def said(folder):
        with pytest.raises(UserError) as error:
            predict(folder, [tmp_path / "x.png"], tmp_path / "p.csv")
        assert not (tmp_path / "p.csv").exists()
        return str(error.value)

    assert "is not an exported model" in said(tmp_path)
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
    assert "does not fit" in said(spoilt)
    write({**card, "method": "fedmlr"}, data)
    assert "method" in said(spoilt)
    write({**card, "format": 2}, data)
    assert "not of format 1" in said(spoilt)
    write({**card, "hyper-parameters": {"d1": -1}}, data)
    assert "d1" in said(spoilt)
    (spoilt / "model.safetensors").unlink()
    assert "cannot be read" in said(spoilt)


def test_what_cannot_be_classified(model, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        predict(model, [tmp_path / "none.png"], tmp_path / "p.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no image file"):
        predict(model, [tmp_path / "empty"], tmp_path / "p.csv")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(UserError, match="cannot be written"):
        predict(model, [tmp_path / "x.png"], tmp_path / "nowhere" / "p.csv")

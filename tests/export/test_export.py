"""`fedhet export`: the model that a client takes home is the one that ran, as ONNX too."""

import json
import os
import re
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import yaml
from helpers.pictures import images_of
from helpers.pretrained import bert, texts
from helpers.products import PRODUCT, short
from helpers.tiny import recorded, states, tiny
from helpers.written_runs import edit
from safetensors.torch import load_file

from fedhet.errors import UserError
from fedhet.export import model
from fedhet.export.model import export, load_model, rebuild
from fedhet.site.state import FileStore
from fedhet.testing import simulate, small
from fedhet.training.metrics import evaluate

VARIANTS = [
    *(
        pytest.param(*getattr(m, "values", (m,)), {}, marks=getattr(m, "marks", ()))
        for m in PRODUCT
    ),
    ("standalone", {"precision": "bf16"}),
    ("fedmrl", {"inference": "single-small"}),
    ("standalone", {"models": ["resnet18"]}),  # BatchNorm's statistics travel as well
]
PARTS = {  # of a method with more than the client's model: what is written, and what is not
    "pfedes": ({"model"}, "parts.small"),
    "pfedafm": ({"model", "extractor", "mixture"}, "parts.small"),
    "pfedmoe": ({"model", "extractor", "gate"}, "parts.small"),
    "fedkd": ({"model"}, "parts.student"),
    "fedapen": ({"model", "small", "ensemble"}, "parts.projector"),
    "fedmrl": ({"model", "small", "projector"}, "parts.student"),
}


@pytest.mark.parametrize(("method", "changes"), VARIANTS)
def test_it_is_the_model_that_the_run_recorded_and_no_more(tmp_path, method, changes):
    rounds = 1 + short(method).get("warm_up", 0)  # a warm-up trains no model
    keys = {"clients": 2, "classes_per_client": 4, "rounds": rounds, **short(method), **changes}
    config = tiny(tmp_path, method=method, **keys)
    folder, _ = simulate(config)
    rows = recorded(folder)
    for client, state in states(folder, config).items():
        out = export(state, tmp_path / f"model-{client}")
        loaded, card = load_model(out)
        assert card["generation"] == int(rows[client]["generation"]) == config.rounds
        for part in ("test", "val"):
            data = images_of(config, client, part)
            found = evaluate(lambda x, m=loaded: {"": m(x)}, data, loaded.config).metrics
            assert found["accuracy"] == float(rows[client][f"{part}_accuracy"])
        assert card["accuracy"]["test"] == float(rows[client]["test_accuracy"])
        # Accuracies are coarse: the logits are the run's, bit for bit, and not untrained ones.
        origin = rebuild(json.loads((state / "client.json").read_text()), state, config.rounds)
        for module in origin.modules.values():
            module.eval()
        inputs, _ = images_of(config, client).batch(torch.arange(4))
        with torch.inference_mode():
            assert torch.equal(loaded(inputs), next(iter(origin.predict(inputs).values())))
            origin.restore(0)
            assert not torch.equal(loaded(inputs), next(iter(origin.predict(inputs).values())))
        if not changes:
            tensors = load_file(out / "model.safetensors")
            parts, absent = PARTS.get(method, ({"model"}, "parts.small"))
            assert card["parameters"] == sum(tensor.numel() for tensor in tensors.values())
            assert {name.split(".")[1] for name in tensors} == set(card["parts"]) == parts
            assert not [name for name in tensors if name.startswith(absent)]


def test_the_card_says_what_it_is_and_an_export_twice_has_the_same_bytes(run, model, copied):
    card = yaml.safe_load((model / "card.yaml").read_text(encoding="utf-8"))
    about = {"method": "fedmrl", "architecture": "cnn-5", "image-size": 16, "client": "0",
             "run": run[1].experiment, "generation": 3,
             "classes": [f"class-{label}" for label in range(4)]}  # fmt: skip
    assert about.items() <= card.items() and card["hyper-parameters"]["d1"] == 8
    assert card["input"]["shape"] == ["batch", 3, 16, 16] and not {"license", "seed"} & set(card)
    before = bytes_of(copied)
    assert bytes_of(export(copied, copied.parent / "again")) == bytes_of(model)
    assert bytes_of(copied) == before


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def copied(run, tmp_path):
    """A state folder that a test may spoil."""
    config, folder = run
    return shutil.copytree(states(folder, config)["0"], tmp_path / folder.experiment / "0")


def fails(state, out, says):
    with pytest.raises(UserError, match=re.escape(says)) as error:
        export(state, out)
    assert "\n" not in str(error.value)
    assert not out.exists() and not list(out.parent.glob(".*tmp"))


def test_what_is_no_state_folder(run, model, copied, tmp_path):
    fails(tmp_path / "nowhere", tmp_path / "m", "is neither an exported model")
    for place, meant in (
        (copied.parent, copied), (model.parent, model), (run[1].path, states(*run[::-1])["0"]),
    ):  # fmt: skip
        fails(place, tmp_path / "m", f"did you mean '{meant}'")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(lambda state: (state / "client.json").write_text("{"), "client.json is damaged"),
     (lambda state: (state / "client.json").write_text("{}"), "do not fit client.json"),
     (lambda state: edit(state / "client.json", '"classes": [', '"classes": ["more", '),
      "generation 3 does not fit"),
     (lambda state: os.truncate(state / "00000003.safetensors", 1000),
      "generation 3 cannot be read"),
     (lambda state: [file.unlink() for file in state.glob("*.safetensors")],
      "the client has not trained")],
)  # fmt: skip
def test_what_is_damaged(copied, tmp_path, spoil, says):
    spoil(copied)
    fails(copied, tmp_path / "m", says)


def test_nothing_is_overwritten(copied, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (copied, tmp_path / "file"):
        with pytest.raises(UserError, match="already exists"):
            export(copied, out)


def test_a_state_that_the_server_has_not_accepted_is_not_taken(run, tmp_path, caplog):
    shutil.copytree(run[1].path, tmp_path / "run")
    (state,) = (tmp_path / "run").glob("state/*/0")
    store = FileStore(state, sync=False)
    store.save(4, 3, store.load(3))  # trained, and its reply was lost
    assert load_model(state)[1]["generation"] == 3
    assert "generation 3 is taken" in caplog.text and "the newest is 4" in caplog.text
    store.path(3).unlink()
    with pytest.raises(UserError, match="generation: 3, the last that the server accepted"):
        load_model(state)


def test_standardised_images_are_prepared_as_in_training(tmp_path):
    config = tiny(tmp_path, method="standalone", clients=2, rounds=1, standardise=True)
    folder, _ = simulate(config)
    for client, state in states(folder, config).items():
        loaded, card = load_model(export(state, tmp_path / f"model-{client}"))
        assert "deviation by channel" in card["input"]["preparation"]
        prepared = loaded.prepare(images_of(config, client, "train").examples)
        assert prepared.mean(dim=(0, 2, 3)).abs().max() < 1e-3
        assert (prepared.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-2


ONNX = all(map(find_spec, ("onnx", "onnxruntime", "onnxscript")))
WITH_ONNX = pytest.mark.skipif(not ONNX, reason="needs the extra onnx")


@WITH_ONNX
@pytest.mark.parametrize("method", ["fedmrl", "fedapen"])
def test_onnx_answers_as_torch_does(tmp_path, method):
    import onnxruntime

    config = tiny(tmp_path, method=method, rounds=1, **short(method))
    data = images_of(config, "0")
    out = export(states(simulate(config)[0], config)["0"], tmp_path / "model", onnx=True)
    loaded, card = load_model(out)
    assert 0 <= card["onnx"]["max-logit-difference"] < 1e-4
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 3, 5):  # the batch is free
        inputs, _ = data.batch(torch.arange(count))
        (got,) = session.run(None, {"images": inputs.contiguous().numpy()})
        assert np.allclose(got, loaded(inputs).numpy(), atol=1e-5)
    assert {path.name for path in out.iterdir()} == {"card.yaml", "model.onnx", "model.safetensors"}


@WITH_ONNX
@pytest.mark.parametrize(("method", "width"), [("fedssa", 12), ("fedmrl", 24)])
def test_a_network_of_texts_takes_its_tokenizers_ids_behind_those_of_a_shared_model(
    tmp_path, method, width
):
    network = bert(tmp_path / "bert")
    config = small(
        tmp_path, method=method, rounds=1, clients=2, models=[f"hf:{network} lora=2"],
        **texts(tmp_path / "data"), **short(method), partition="iid", batch_size=8,
        representation=16,
    )  # fmt: skip
    out = export(states(simulate(config)[0], config)["0"], tmp_path / "model", onnx=True)
    card = load_model(out)[1]
    assert card["onnx"]["shape"] == ["batch", width] and card["onnx"]["max-logit-difference"] < 1e-4


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        pytest.param(
            model, ("_TOLERANCE", -1.0), "logits differ from torch's by ", marks=WITH_ONNX
        ),
        (model.importlib.util, ("find_spec", lambda _: None), r"pip install 'fedhet\[onnx\]'"),
    ],
)
def test_onnx_that_differs_or_has_no_extra_is_not_written(copied, monkeypatch, place, value, says):
    monkeypatch.setattr(place, *value)
    with pytest.raises(UserError, match=says):
        export(copied, copied.parents[1] / "m", onnx=True)
    assert list(copied.parents[1].iterdir()) == [copied.parent]

"""The ONNX file beside an exported model answers as the model does."""

import importlib.util

import numpy as np
import pytest
import torch
from export.exported import states
from helpers.pictures import images_of
from helpers.pretrained import bert, texts
from helpers.products import short
from helpers.tiny import tiny

from fedhet.cli import app as cli
from fedhet.errors import UserError
from fedhet.export import model
from fedhet.export.model import export, load_model
from fedhet.testing import simulate, small

WITH_ONNX = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="needs the extra onnx",
)


@WITH_ONNX
@pytest.mark.parametrize("method", ["fedmrl", "fedapen"])
def test_onnx_answers_as_torch_does(tmp_path, method):
    import onnxruntime

    config = tiny(tmp_path, method=method, rounds=1, **short(method))
    folder, _ = simulate(config)
    data = images_of(config, "0")
    out = export(states(folder, config)["0"], tmp_path / "model", onnx=True)
    loaded, card = load_model(out)
    assert 0 <= card["onnx"]["max-logit-difference"] < 1e-4
    session = onnxruntime.InferenceSession(
        str(out / "model.onnx"), providers=["CPUExecutionProvider"]
    )
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
        **texts(tmp_path / "data"), **short(method),
    )  # fmt: skip
    out = export(states(simulate(config)[0], config)["0"], tmp_path / "model", onnx=True)
    card = load_model(out)[1]
    assert card["onnx"]["shape"] == ["batch", width] and card["onnx"]["max-logit-difference"] < 1e-4


@WITH_ONNX
def test_onnx_that_differs_is_not_written(run, tmp_path, monkeypatch):
    config, folder = run
    monkeypatch.setattr(model, "_TOLERANCE", -1.0)
    with pytest.raises(UserError, match="logits differ from torch's by "):
        export(states(folder, config)["0"], tmp_path / "m", onnx=True)
    assert not list(tmp_path.iterdir())


def test_without_the_extra_nothing_is_written(run, tmp_path, monkeypatch, capsys):
    config, folder = run
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
    state = str(states(folder, config)["0"])
    assert cli.execute(["export", state, "--out", str(tmp_path / "m"), "--onnx"]) == 2
    assert "pip install 'fedhet[onnx]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

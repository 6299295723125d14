"""`fedhet export`: the model that a client takes home is the one that ran."""

import json

import pytest
import torch
import yaml
from export.exported import percent, recorded, states
from helpers.pictures import images_of
from safetensors.torch import load_file

from fedhet.config.registry import METHODS
from fedhet.export.model import export, load_model, rebuild
from fedhet.testing import simulate, small

VARIANTS = [
    *((name, {}) for name in METHODS),
    *(
        ("fedmrl", {"inference": kind, "report_all_inference": True})
        for kind in ("mix-small", "single-small", "single-large")
    ),
    ("fedmrl", {"matryoshka": False}),
    ("fedkd", {"compress_down": True}),
    ("fml", {"models": ["cnn-5", "cnn-4"]}),
    ("standalone", {"models": ["shufflenet_v2_x1_0"]}),  # BatchNorm's statistics travel as well
    ("standalone", {"precision": "bf16"}),
]


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

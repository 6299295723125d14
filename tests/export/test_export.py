"""`fedhet export`: the model that a client takes home is the one that ran."""

import json
import shutil

import pytest
import torch
import yaml
from export.exported import percent, recorded, states
from helpers.pictures import images_of
from helpers.products import PRODUCT, short
from helpers.tiny import tiny
from safetensors.torch import load_file

from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.export.model import export, load_model, rebuild
from fedhet.site.state import FileStore
from fedhet.testing import simulate

MORE = [
    *(("fedmrl", {"inference": kind, "report_all_inference": True})
      for kind in ("single-small", "single-large", "mix-small")),
    ("fedmrl", {"matryoshka": False}), ("fedkd", {"compress_down": True}),
    ("fml", {"models": ["cnn-5", "cnn-4"]}), ("standalone", {"precision": "bf16"}),
]  # fmt: skip
VARIANTS = [
    *(
        pytest.param(*getattr(m, "values", (m,)), {}, marks=getattr(m, "marks", ()))
        for m in PRODUCT
    ),
    *(pytest.param(*more, marks=pytest.mark.matrix) for more in MORE),
    ("standalone", {"models": ["resnet18"]}),  # BatchNorm's statistics travel as well
]
PARTS = {  # of a method with more than the client's model: what is written, and what is not
    "pfedes": ({"model"}, "parts.small"),
    "pfedafm": ({"model", "extractor", "mixture"}, "parts.small"),
    "pfedmoe": ({"model", "extractor", "gate"}, "parts.small"),
    "fedkd": ({"model"}, "parts.student"),
    "fedapen": ({"model", "small", "ensemble"}, "parts.projector"),
    "fedmrl": ({"model", "small", "projector"}, "parts.small.head"),
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
        row = rows[client]
        assert card["generation"] == int(row["generation"]) == config.rounds
        assert card["accuracy"]["test"] == float(row["test_accuracy"])
        assert percent(loaded, config, client, "test") == float(row["test_accuracy"])
        assert percent(loaded, config, client, "val") == float(row["val_accuracy"])
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


def test_the_card_says_what_it_is_and_an_export_twice_has_the_same_bytes(run, model, tmp_path):
    config, folder = run
    card = yaml.safe_load((model / "card.yaml").read_text(encoding="utf-8"))
    assert card["method"] == "fedmrl" and card["architecture"] == "cnn-5"
    assert card["classes"] == [f"class-{label}" for label in range(4)]
    assert card["image-size"] == 16 and card["input"]["shape"] == ["batch", 3, 16, 16]
    assert card["run"] == folder.experiment and card["client"] == "0"
    assert card["generation"] == 3 and card["hyper-parameters"]["d1"] == config.params.d1
    assert "license" not in card and "seed" not in card
    state = states(folder, config)["0"]
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    again = export(state, tmp_path / "again")
    for path in model.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert before == {path.name: path.read_bytes() for path in state.iterdir()}


@pytest.fixture
def copied(run, tmp_path):
    """A state folder that a test may spoil."""
    config, folder = run
    return shutil.copytree(states(folder, config)["0"], tmp_path / "run-id" / "0")


def fails(state, out):
    with pytest.raises(UserError) as error:
        export(state, out)
    assert "\n" not in str(error.value)
    assert not out.exists() and not list(out.parent.glob(".*tmp"))
    return str(error.value)


def test_what_is_no_state_folder(run, model, copied, tmp_path):
    config, folder = run
    out = tmp_path / "m"
    assert "is neither an exported model" in fails(tmp_path / "nowhere", out)
    assert "did you mean" in fails(copied.parent, out)
    assert f"did you mean '{model}'" in fails(model.parent, out)
    said = fails(folder.path, out)  # the run folder instead of a client's state
    assert str(states(folder, config)["0"]) in said
    (copied / "client.json").write_text("{")
    assert "client.json is damaged" in fails(copied, out)
    (copied / "client.json").write_text("{}")
    assert "do not fit client.json" in fails(copied, out)


def test_what_holds_no_good_generation(copied, tmp_path):
    out = tmp_path / "m"
    newest = copied / "00000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert "generation 3 cannot be read" in fails(copied, out)
    newest.unlink()
    export(copied, tmp_path / "older")
    description = json.loads((copied / "client.json").read_text())
    description["classes"].append("one too many")
    (copied / "client.json").write_text(json.dumps(description))
    assert "generation 2 does not fit" in fails(copied, out)
    for path in copied.glob("*.safetensors"):
        path.unlink()
    assert "the client has not trained" in fails(copied, out)


def test_nothing_is_overwritten(copied, tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match="already exists"):
        export(copied, tmp_path / "m")
    assert not list((tmp_path / "m").iterdir())
    (tmp_path / "file").write_text("")
    assert execute(["export", str(copied), "--out", str(tmp_path / "file" / "m")]) == 2


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
        stored = images_of(config, client, "train").examples
        prepared = loaded.prepare(stored)
        assert prepared.shape == (len(stored), *loaded.inputs.shape)
        assert prepared.mean(dim=(0, 2, 3)).abs().max() < 1e-3
        assert (prepared.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-2

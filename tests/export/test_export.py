"""`fedhet export`: the model that a client takes home is the one that ran."""

import csv
import json

import pytest
import torch
import yaml
from export.exported import percent, recorded, states
from helpers.pictures import images_of
from safetensors.torch import load_file

from fedhet.cli import app as cli
from fedhet.config.registry import METHODS
from fedhet.data.inputs import Inputs
from fedhet.export.model import load_model, rebuild
from fedhet.export.save import describe_input, export, open_state
from fedhet.site.state import FileStore
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


def test_the_command_line_prints_the_folder(run, tmp_path, capsys):
    config, folder = run
    state = str(states(folder, config)["1"])
    assert cli.execute(["export", state, "--out", str(tmp_path / "deep" / "m")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "deep" / "m")


def test_the_card_of_a_grey_model_says_grey():
    assert describe_input(Inputs.image(8, grey=True))["channels"] == "grey"
    assert describe_input(Inputs.image(8))["channels"] == "RGB"

"""What holds for every method: one federation each, and the keys of its own."""

import csv
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.patched import forgotten
from helpers.products import ANY, AVERAGED, PRODUCT, short
from methods.byhand import ROUND, filled, same, some_arrays

from fedhet.config.load import build_config, load_config
from fedhet.config.registry import METHODS, method_keys
from fedhet.config.schema import RunConfig, kebab
from fedhet.errors import UserError
from fedhet.protocol.payload import ClassVectors, ModelArrays
from fedhet.testing import (
    FEDERATION,
    check_method,
    make_client,
    make_strategy,
    simulate,
    small,
    uploads_of,
)
from fedhet.training import loop

ROOT = Path(__file__).resolve().parents[2]
# Floats that a sampled client sends and is sent in round 3, with ten classes and CNN-5 for images
# of 16 x 16 as the small model. Where None stands it depends on the classes of the others.
OWN, D = 4, 128  # classes of a client, width of a representation
TINY = {"image_size": 16, "representation": D}
HEADER = 10 * D + 10
CNN_5 = 1_216 + 12_832 + 32 * 500 + 500 + (500 * D + D) + HEADER
SMALL = CNN_5 - (500 * D + D) - HEADER + 50_100 + 1_010  # of width 100, FedMRL's default
FLOATS = {
    "standalone": (0, 0),
    "fedavg": (CNN_5, CNN_5),
    "lg_fedavg": (HEADER, HEADER),
    "fml": (CNN_5, CNN_5),
    "fedkd": (None, CNN_5),
    "fedapen": (CNN_5, CNN_5),
    "fd": (OWN * 10, None),
    "fedproto": (OWN * D, None),
    "fedgh": (OWN * D, HEADER),
    "fedssa": (OWN * (D + 1), OWN * (D + 1)),
    "fedmrl": (SMALL, SMALL),
    "pfedes": (443, 443),
    "fedclassavg": (HEADER, HEADER),
    "fedtgp": (OWN * D, None),
    "fedgen": (HEADER, HEADER + 512 * 47 + 512 * D + D),
    "pfedafm": (CNN_5 - HEADER, CNN_5 - HEADER),
    "fedl2g": (OWN * 10, 100),
    "fedorgp": (OWN * D, None),
    "pfedmoe": (CNN_5 - HEADER, CNN_5 - HEADER),
}


def test_every_method_is_in_the_tables():
    assert FLOATS.keys() == set(ANY)


def keys_of(method):
    return {key: value for key, value in short(method).items() if key != "d1"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The lines of the same run without any exchange."""
    with forgotten():
        config = small(tmp_path_factory.mktemp("alone"), **FEDERATION | TINY, method="standalone")
        return simulate(config)[0].read_rounds()


@pytest.mark.parametrize("method", PRODUCT)
def test_a_federation(tmp_path, alone, method):
    """A class has one owner, a client is never sampled, the run is cut and resumed."""
    with forgotten():
        folder = check_method(method, tmp_path, **TINY, **keys_of(method))
    owners = np.array([line.split(",")[1:] for line in folder.partition.read_text().split()[1:]])
    assert 1 in (owners.astype(int) > 0).sum(axis=0)
    with folder.clients.open() as file:
        newest = {row["client"]: row["generation"] for row in csv.DictReader(file)}
    assert newest == {"0": "0", "1": "3", "2": "2", "3": "3"}
    last = folder.read_rounds()[-1]
    for direction, floats in zip(("uplink", "downlink"), FLOATS[method], strict=True):
        assert floats is None or last[f"{direction}_floats"] == 2 * floats
    if method != "standalone":
        assert last["train_loss"] != alone[-1]["train_loss"]
    assert ("test_accuracy_before_mean" in last) == (method == "fedapen")


def test_the_mean_is_weighted_one_to_three(tmp_path):
    """(100 x 1 + 300 x 5) / 400."""
    for method in AVERAGED:
        strategy = make_strategy(small(tmp_path, method=method), [[0], [1]], [100, 300], 4)
        shapes = list(strategy.arrays().values())
        both = {"0": filled(shapes, 1), "1": filled(shapes, 5)}
        strategy.aggregate(uploads_of(strategy, both), 1)
        for array in strategy.arrays().values():
            assert (array == 4.0).all() and array.dtype == np.float32, method


@pytest.mark.parametrize("method", PRODUCT)
def test_an_upload_is_a_copy(tmp_path, method):
    config = small(tmp_path, method=method, **short(method))
    client = make_client(config, 0, tmp_path)
    strategy = make_strategy(config, [client.seen().tolist()], [50], 4)
    down = strategy.download(strategy.roster.infos["0"], 1).to_ndarrays()
    sent, _, _ = client.fit(down, {"round": 1, "generation": 0, "evaluate": False})
    kept = deepcopy(sent)
    tensors = [t for module in client.modules.values() for t in module.state_dict().values()]
    for tensor in tensors:
        tensor.zero_()
    assert all(np.array_equal(a, b) for a, b in zip(sent, kept, strict=True))


DIVERGING = {"fedgh": "", "fedtgp": "trainable", "fedorgp": "trainable", "fedgen": "generator"}


@pytest.mark.parametrize("method", DIVERGING)
def test_a_server_that_diverges_keeps_what_it_trains(tmp_path, method):
    config = small(tmp_path, method=method, server_lr=1e38, server_epochs=3)
    strategy = make_strategy(config, [[0, 1]], [50], 4)
    before = strategy.arrays()
    rows = np.ones((2, 500), np.float32)
    vectors = ClassVectors(np.arange(2), np.full(2, 25), rows)
    header = ModelArrays((np.ones((4, 500), np.float32), np.ones(4, np.float32)))
    upload = header if method == "fedgen" else vectors
    numbers = strategy.aggregate(uploads_of(strategy, {"0": upload}), 1)
    assert numbers["server_discarded"] == 1.0
    kept = [name for name in before if name.startswith(DIVERGING[method])]
    assert kept and all(np.array_equal(strategy.arrays()[n], before[n]) for n in kept)
    adam = [array for name, array in strategy.arrays().items() if name.startswith("adam")]
    assert not any(array.any() for array in adam) and bool(adam) == (method == "fedgen")


STEPS = {
    "pfedes": [{"model"}, {"extractor"}],
    "fedapen": [{"ensemble"}, {"model", "small"}],
    "pfedafm": [{"model", "mixture"}, {"extractor"}],
}


@pytest.mark.parametrize("method", STEPS)
def test_a_step_leaves_the_other_networks_bit_identical(tmp_path, monkeypatch, method):
    """With running statistics, which a forward pass moves as well."""
    keys = TINY | {"models": ["shufflenet_v2_x0_5"], "dataset": "synthetic:48x4", **keys_of(method)}
    client = make_client(small(tmp_path, method=method, **keys), 0, tmp_path)
    trained, plain = [], loop.train

    def watched(phase, *rest):
        before = deepcopy(client.modules)
        loss = plain(phase, *rest)
        changed = {name for name, m in before.items() if not same(m, client.modules[name], 0)}
        fixed = [client.modules[name] for name in before.keys() - changed]
        assert all(p.grad is None for module in fixed for p in module.parameters())
        trained.append(changed)
        return loss

    monkeypatch.setattr(loop, "train", watched)
    client.fit(some_arrays(client.shared()), ROUND)
    assert trained == STEPS[method]


# --- files and keys -----------------------------------------------------------------------------


def test_a_method_is_four_files_and_its_preset_explains_every_key():
    common = {kebab(name) for name in RunConfig.model_fields}
    for name, method in METHODS.items():
        for folder, suffix in (("strategies", ".py"), ("clients", ".py"), ("configs", ".yaml")):
            assert (ROOT / folder / f"{name}{suffix}").is_file(), (name, folder)
        assert (ROOT / "tests" / "methods" / f"test_{name}.py").is_file(), name
        preset = ROOT / "configs" / f"{name}.yaml"
        text = preset.read_text(encoding="utf-8")
        head, about, *_ = text.splitlines()
        assert f"{head} ".startswith(f"# fedhet run {name} ") and about.startswith("# ")
        assert load_config(preset).method == name
        assert method_keys(name) <= set(yaml.safe_load(text)), name
        assert all(not line or "# " in line for line in text.splitlines()), name
        assert not method_keys(name) & common, name
        assert all(field.description for field in method.params.model_fields.values()), name


UNWEIGHTED = {"standalone", "fd", "fedproto", "fedgh", "fedtgp", "fedorgp", "fedssa", "fedl2g"}


@pytest.mark.parametrize("method", METHODS)
def test_weighting_is_refused_where_nothing_is_weighted(method):
    values = {"method": method, "weighting": "uniform"}
    if method not in UNWEIGHTED:
        assert build_config(values).weighting == "uniform"
        return
    why = f"^weighting: 'uniform' has no effect: method={method}: "
    with pytest.raises(UserError, match=why):
        build_config(values)


def test_whole_headers_are_weighted():
    assert build_config({"weighting": "uniform", "upload-rows": "whole"}).weighting == "uniform"

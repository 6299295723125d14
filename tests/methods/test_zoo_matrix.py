"""Every method on every architecture, and in the federations where methods break."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from flwr.app import Message
from PIL import Image

from fedhet.config.load import load_config, method_keys
from fedhet.config.registry import METHODS
from fedhet.config.schema import RunConfig, kebab
from fedhet.models.names import MODEL_NAMES, TORCHVISION_NAMES
from fedhet.protocol.messages import arrays_of, to_record
from fedhet.site.modules import forgotten
from fedhet.testing import check_method, simulate, small

ROOT = Path(__file__).resolve().parents[2]
SHORT = {  # fewer epochs of what a method trains beside the models
    "pfedes": {"extractor_epochs": 1},
    "fedapen": {"ensemble_epochs": 2, "holdout": 0.2},
    "fedtgp": {"server_epochs": 3},
    "fedgen": {"server_epochs": 3},
}


@pytest.fixture(autouse=True)
def _forget():
    """A hundred pairs of method and architecture need not stay in memory."""
    with forgotten():
        yield


def run(tmp_path, method, *, refused="", **changes):
    """Run a small federation to its end; returns the lines of its rounds and its clients.

    ``refused`` is a reason for which replies may be left out.
    """
    values = {"batch_size": 8, "rounds": 1, "start_timeout": 5, "image_size": 16}
    values |= SHORT.get(method, {}) | changes
    folder, _ = simulate(small(tmp_path, method=method, **values))
    records = folder.read_rounds()
    for record in records:
        assert all(refused and refused in failure["reason"] for failure in record["failures"])
        assert record["replied"] + record["failed"] == record["sampled"] > 0
        if record["replied"]:
            assert 0 <= record["test_accuracy_mean"] <= 100
            assert record["train_loss"] is not None
    return records, folder.clients.read_text().splitlines()[1:]


@pytest.mark.parametrize(("turn", "method"), enumerate(METHODS))
def test_every_method_trains_every_kind_of_architecture(tmp_path, turn, method):
    """One client of each, side by side; every architecture with half of the methods.

    A method touches of a network its extractor and its header alone, which all have; the five CNNs
    are one class of other widths.
    """
    names = MODEL_NAMES
    if method != "standalone":
        some = [TORCHVISION_NAMES[(turn + k) % len(TORCHVISION_NAMES)] for k in range(2)]
        names = ("cnn-4", *some)
    values = {
        "models": list(names),
        "clients": len(names),
        "dataset": f"synthetic:{20 * len(names)}x2",
    }
    _, clients = run(tmp_path, method, image_size=32, **values)
    assert [line.split(",")[2] for line in clients] == list(names)


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_of_one(tmp_path, method):
    run(tmp_path, method, clients=1, dataset="synthetic:40x2", rounds=2)


@pytest.fixture(scope="session")
def one_class(tmp_path_factory):
    """A folder of 60 images of one class."""
    folder = tmp_path_factory.mktemp("images") / "cat"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(60):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k:02}.png")
    return str(folder.parent)


@pytest.mark.parametrize("method", METHODS)
def test_one_class_in_the_world(tmp_path, one_class, method):
    # FedKD divides by a cross-entropy that is 0 where there is nothing to tell apart.
    refused = "max-update-norm" if method == "fedkd" else ""
    source = {"dataset": "image-folder", "data_path": one_class, "classes_per_client": 1}
    records, _ = run(tmp_path, method, refused=refused, rounds=2, **source)
    assert refused or records[-1]["test_accuracy_mean"] == 100


@pytest.mark.parametrize("method", METHODS)
def test_every_class_has_one_owner(tmp_path, method):
    run(tmp_path, method, clients=2, dataset="synthetic:80x4", rounds=2)


@pytest.mark.parametrize("method", METHODS)
def test_clients_that_are_never_sampled_are_scored_as_initialised(tmp_path, method):
    records, clients = run(
        tmp_path, method, clients=4, fraction=0.25, dataset="synthetic:80x4", rounds=1
    )
    assert records[-1]["sampled"] == 1 and records[-1]["evaluated_clients"] == 4
    assert sorted(line.split(",")[3] for line in clients) == ["0", "0", "0", "1"]


@pytest.mark.parametrize("method", METHODS)
def test_resumed_it_ends_with_the_same_bytes(tmp_path, method):
    """What a strategy keeps in its arrays and a client in its state is all that there is."""
    few = {"batch_size": 8, "dataset": "synthetic:80x4", "clients": 2, "image_size": 16}
    check_method(method, tmp_path, **few, **SHORT.get(method, {}))


ATTACKS = {  # what becomes of a reply's arrays, and what the reason says
    1: (lambda arrays: [*arrays, np.zeros(3, np.float32)], "array"),
    2: (lambda arrays: [np.full_like(a, np.nan) if a.dtype.kind == "f" else a for a in arrays],
        "NaN"),
    3: (lambda arrays: [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays], ""),
    4: (lambda arrays: [np.repeat(a, 2, axis=-1) if a.ndim else a for a in arrays], ""),
    5: (lambda arrays: [a * np.float32(1e6) if a.dtype.kind == "f" else a for a in arrays], ""),
    6: (lambda arrays: arrays[:-1], "array"),
}  # fmt: skip


@pytest.mark.parametrize("method", [m for m in METHODS if m != "standalone"])
def test_hostile_payloads_are_left_out_and_named(tmp_path, method):
    """Six clients lie, each in its own way; the seventh alone decides what the server has."""
    honest = []

    def lie(node, message, reply):
        if message.metadata.message_type != "train":
            return reply
        content, arrays = reply.content, arrays_of(reply)
        if node not in ATTACKS:
            honest.append(arrays)
            return reply
        content["arrays"] = to_record(ATTACKS[node][0](arrays))
        return Message(content, reply_to=message)

    values = {"method": method, "batch_size": 8, "rounds": 1, "image_size": 16}
    values["dataset"] = "synthetic:280x4"
    config = small(tmp_path, **values, clients=7, **SHORT.get(method, {}))
    record = simulate(config, tamper=lie)[0].read_rounds()[0]
    reasons = {failure["client"]: failure["reason"] for failure in record["failures"]}
    assert record["replied"] == 1 and sorted(reasons) == [str(node) for node in ATTACKS]
    for node, (_, word) in ATTACKS.items():
        assert word in reasons[str(node)] and "\n" not in reasons[str(node)]
    assert record["uplink_floats"] == sum(a.size for a in honest[0] if a.dtype.kind == "f")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_four_files(method):
    for path in (
        f"strategies/{method}.py",
        f"clients/{method}.py",
        f"configs/{method}.yaml",
        f"tests/methods/test_{method}.py",
    ):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("method", METHODS)
def test_a_preset_names_its_command_and_explains_every_key(method):
    path = ROOT / "configs" / f"{method}.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# fedhet run {method}\n# ")
    assert load_config(path).method == method
    assert method_keys(METHODS[method]) <= set(yaml.safe_load(text))
    for line in text.splitlines():
        assert not line or "# " in line, line


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_keys_are_its_own_and_described(method):
    common = {kebab(name) for name in RunConfig.model_fields}
    assert not method_keys(METHODS[method]) & common
    assert all(field.description for field in METHODS[method].params.model_fields.values())

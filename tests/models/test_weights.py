"""``NAME weights=FILE``: what fits is taken, what does not is one line, a node reads its own."""

from types import SimpleNamespace

import pytest
import torch
from helpers.seeded import seeded
from safetensors.torch import save_file
from torchvision.models import get_model

from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.export.model import export
from fedhet.files import read_tensors
from fedhet.models import build_model
from fedhet.rng import torch_seeded
from fedhet.site.local_data import assigned_model, check_no_weights
from fedhet.testing import make_client, simulate, small

ROWS = Inputs.table(("a", "b"))
NETWORK = "shufflenet_v2_x0_5"


def built(name, **changes):
    return build_model(name, **({"classes": 3, "d": 6} | changes))


def written(tmp_path, tensors, name="own.safetensors"):
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / name)
    return tmp_path / name


def test_a_models_own_tensors_and_without_a_head_it_is_drawn_as_always(tmp_path):
    other = built("mlp-5", inputs=ROWS).state_dict()
    whole = built(f"mlp-5 weights={written(tmp_path, other)}", inputs=ROWS).state_dict()
    assert all(torch.equal(whole[key], other[key]) for key in whole)
    file = written(tmp_path, {k: v for k, v in other.items() if not k.startswith("head")})
    with torch_seeded(1, "test"):
        plain = built("mlp-5", inputs=ROWS, classes=9)
    with torch_seeded(1, "test"):
        model = built(f"mlp-5 weights={file}", inputs=ROWS, classes=9)
    assert torch.equal(model.head.weight, plain.head.weight)
    assert torch.equal(model.layers[0].weight, other["layers.0.weight"])


def test_what_was_exported_starts_another_run(tmp_path):
    keys = {"dataset": "synthetic:60x2", "image_size": 16, "clients": 1, "classes_per_client": 1}
    config = small(tmp_path, method="fedmrl", rounds=1, **keys)
    folder, _ = simulate(config)
    export(next(folder.path.glob("state/*/0")), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    again = small(tmp_path, models=[f"cnn-5 weights={file}"], **keys)
    client = make_client(again, 0, tmp_path / "states")
    kept, _ = read_tensors(file, "pt")
    assert torch.equal(client.model.conv1.weight, kept["parts.model.conv1.weight"])


def test_a_librarys_network_sees_images_as_it_was_trained(tmp_path):
    """Grey ones in three channels, normalised by ImageNet's mean and deviation."""
    with torch_seeded(4, "test"):
        network = get_model(NETWORK, weights=None).eval()
    file = written(tmp_path, network.state_dict())
    network.fc = torch.nn.Identity()
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    for inputs in (Inputs.image(32), Inputs.image(32, grey=True)):
        model = built(f"{NETWORK} weights={file}", inputs=inputs).eval()
        x = torch.rand(2, *inputs.shape) * 2 - 1
        pixels = ((x + 1) / 2).expand(-1, 3, -1, -1)
        expected = torch.relu(model.projection(network((pixels - mean) / std)))
        assert torch.allclose(model.features(x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: t.pop("layers.0.bias"), "lacks 'layers.0.bias'"),
        (lambda t: t.update(more=torch.ones(2)), "has 'more', which the model lacks"),
        (lambda t: t.update({"layers.0.bias": torch.ones(63)}),
         r"'layers.0.bias' is float32 of shape \(63,\), must be float32 of shape \(64,\)"),
        (lambda t: t.update({"head.bias": torch.ones(4)}), "remove the head"),
        (lambda t: t["layers.1.bias"].fill_(torch.nan), "'layers.1.bias' holds NaN or infinity"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path, spoil, says):
    tensors = built("mlp-5", inputs=ROWS).state_dict()
    spoil(tensors)
    file = written(tmp_path, tensors)
    with pytest.raises(UserError, match=f"model 'mlp-5': weights '{file}'.*{says}") as error:
        built(f"mlp-5 weights={file}", inputs=ROWS)
    assert "\n" not in str(error.value)


def test_a_run_starts_from_them_and_its_place_stays_at_home(tmp_path):
    """In rows of clients, in states and in the card is the model, not the file."""
    start = built("mlp-5", inputs=Inputs.table(tuple("abcde")), d=16).state_dict()
    start["layers.0.weight"].fill_(0.125)
    file = written(tmp_path, {k: v for k, v in start.items() if not k.startswith("head")})
    config = small(
        tmp_path, dataset=seeded("table", 60, 2), partition="iid", lr=1e-30, representation=16,
        models=[f"mlp-5 weights={file}", "mlp-4"], rounds=1, momentum=0.0,
    )  # fmt: skip
    folder, _ = simulate(config)
    rows = [line.split(",") for line in folder.clients.read_text().splitlines()[1:]]
    assert [row[2] for row in rows] == ["mlp-5", "mlp-4", "mlp-5"]
    for client, own in (("0", True), ("1", False), ("2", True)):
        state, _ = read_tensors(next(folder.path.glob(f"state/*/{client}/*.safetensors")), "pt")
        assert bool((state["model/layers.0.weight"] == 0.125).all()) is own
        about = next(folder.path.glob(f"state/*/{client}/client.json")).read_text()
        assert str(file) not in about and "mlp" in about


def test_a_node_reads_its_own_file_alone():
    config = build_config({"models": "cnn-5 weights=/etc/own.safetensors"})
    with pytest.raises(UserError, match="not allowed on a network.*--model 'cnn-5 weights=FILE'"):
        check_no_weights(config)
    zero, own = SimpleNamespace(index=0, client="0"), "cnn-4 weights=/data/a.safetensors"
    with pytest.raises(UserError, match="not allowed on a network"):
        assigned_model(config, {}, zero, simulated=False)
    assert assigned_model(config, {"model": own}, zero, simulated=False) == own

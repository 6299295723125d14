"""``NAME weights=FILE``: what fits is taken, what does not is one line, a node reads its own."""

import pytest
import torch
from safetensors.torch import save_file

from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs
from fedhet.errors import RunFailedError, UserError
from fedhet.export.save import export
from fedhet.models import build_model
from fedhet.models.names import with_weights
from fedhet.models.small import small_name
from fedhet.reading.tensors import read_tensors
from fedhet.rng import torch_seeded
from fedhet.site.local_data import assigned_model, check_no_weights
from fedhet.testing import make_client, simulate, small

ROWS = Inputs.table(("a", "b"))


def built(name, **changes):
    return build_model(name, **({"classes": 3, "d": 6} | changes))


def written(tmp_path, tensors, name="own.safetensors"):
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / name)
    return tmp_path / name


def same(one, other):
    return all(torch.equal(one[key], other[key]) for key in one)


def test_a_models_own_tensors(tmp_path):
    other = built("mlp-5", inputs=ROWS).state_dict()
    file = written(tmp_path, other)
    assert same(built(f"mlp-5 weights={file}", inputs=ROWS).state_dict(), other)


def test_without_a_head_it_is_drawn_as_always(tmp_path):
    other = built("mlp-5", inputs=ROWS).state_dict()
    file = written(tmp_path, {k: v for k, v in other.items() if not k.startswith("head")})
    with torch_seeded(1, "test"):
        plain = built("mlp-5", inputs=ROWS, classes=9)
    with torch_seeded(1, "test"):
        model = built(f"mlp-5 weights={file}", inputs=ROWS, classes=9)
    assert torch.equal(model.head.weight, plain.head.weight)
    assert torch.equal(model.layers[0].weight, other["layers.0.weight"])


@pytest.mark.parametrize("left_out", ["", "fc.", "num_batches_tracked"])
def test_a_network_of_a_library_by_its_own_names(tmp_path, left_out):
    """As torchvision has it, with 1000 classes; an old file counts no batches."""
    from torchvision.models import resnet18  # noqa: PLC0415  (late, as the zoo does)

    network = resnet18(weights=None).state_dict()
    network["bn1.running_mean"].fill_(0.25)
    file = written(
        tmp_path, {k: v for k, v in network.items() if not left_out or left_out not in k}
    )
    model = built(f"resnet18 weights={file}")
    assert torch.equal(model.network.conv1.weight, network["conv1.weight"])
    assert (model.network.bn1.running_mean == 0.25).all()
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 3)


def test_what_was_exported_starts_another_run(tmp_path):
    config = small(tmp_path, method="fedmrl", rounds=1, dataset="synthetic:60x2", image_size=16)
    folder, _ = simulate(config)
    export(next(folder.path.glob("state/*/0")), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    name = f"cnn-5 weights={file}"
    again = small(tmp_path, dataset="synthetic:60x2", image_size=16, models=[name])
    client = make_client(again, 0, tmp_path / "states")
    kept, _ = read_tensors(file, "pt")
    assert torch.equal(client.model.conv1.weight, kept["parts.model.conv1.weight"])


def nan(tensors):
    tensors["layers.1.bias"][2] = torch.nan


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: t.pop("layers.0.bias"), "lacks 'layers.0.bias'"),
        (lambda t: t.update(more=torch.ones(2)), "has 'more', which it does not"),
        (lambda t: t.update({"layers.0.bias": torch.ones(63)}),
         r"'layers.0.bias' is float32 \(63,\), must be float32 \(64,\)"),
        (lambda t: t.update({"layers.0.bias": torch.ones(64).half()}),
         r"'layers.0.bias' is float16 \(64,\), must be float32"),
        (lambda t: t.update({"head.bias": torch.ones(4)}), "leave the head out"),
        (nan, "'layers.1.bias' holds NaN or infinity"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path, spoil, says):
    tensors = built("mlp-5", inputs=ROWS).state_dict()
    spoil(tensors)
    file = written(tmp_path, tensors)
    with pytest.raises(UserError, match=f"model 'mlp-5': weights '{file}'.*{says}") as error:
        built(f"mlp-5 weights={file}", inputs=ROWS)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(UserError, match="model 'mlp-5': weights '.*' cannot be read: No such file"):
        built(f"mlp-5 weights={tmp_path}/absent", inputs=ROWS)
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x04K\x01." * 9)
    with pytest.raises(UserError, match=r"model 'mlp-5': weights '.*pickle.pt': header is damaged"):
        built(f"mlp-5 weights={tmp_path}/pickle.pt", inputs=ROWS)


@pytest.mark.parametrize(
    "name", ["cnn-5 wieghts=a", "cnn-5 weights=", "cnn-5 ", "cnn-5 a.safetensors"]
)
def test_other_words_behind_a_name(name):
    with pytest.raises(UserError, match="is not of the form NAME, or NAME weights=FILE"):
        with_weights(name)


def test_a_group_and_a_shared_model_take_none():
    with pytest.raises(UserError, match="group '@table-5 weights=a' is unknown"):
        build_config({"models": "@table-5 weights=a"})
    with pytest.raises(UserError, match="small-model: 'cnn-5 weights=a' has weights of its own"):
        build_config({"method": "fml", "small-model": "cnn-5 weights=a"})
    assert small_name(build_config({"models": "cnn-3 weights=a"}), "image") == "cnn-3"


def test_a_run_starts_from_them_and_its_place_stays_at_home(tmp_path):
    """In rows of clients, in states and in the card is the model, not the file."""
    start = built("mlp-5", inputs=Inputs.table(tuple("abcde")), d=16).state_dict()
    start["layers.0.weight"].fill_(0.125)
    file = written(tmp_path, {k: v for k, v in start.items() if not k.startswith("head")})
    config = small(
        tmp_path, dataset="synthetic-table:60x2:5", partition="iid", lr=1e-30, representation=16,
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

    class Zero:
        index, client = 0, "0"

    with pytest.raises(UserError, match="not allowed on a network"):
        assigned_model(config, {}, Zero(), simulated=False)
    own = "cnn-4 weights=/data/a.safetensors"
    assert assigned_model(config, {"model": own}, Zero(), simulated=False) == own


def test_deployed_nodes_start_from_their_own_files_and_do_not_say_where(tmp_path):
    tensors = built("cnn-5", classes=2, d=500, image_size=16).state_dict()
    file = written(tmp_path, tensors)
    few = {"dataset": "synthetic:60x2", "image_size": 16, "rounds": 1, "start_timeout": 2}

    def nodes(own):
        def prepare(grid):
            for number, context in enumerate(grid.contexts.values()):
                context.node_config["state-dir"] = str(tmp_path / own / str(number))
                if number == 0 and own:
                    context.node_config["model"] = own

        return prepare

    name = f"cnn-5 weights={file}"
    folder, _ = simulate(small(tmp_path, **few), simulated=False, before=nodes(name))
    rows = [line.split(",")[2] for line in folder.clients.read_text().splitlines()[1:]]
    assert rows == ["cnn-5"] * 3
    written_down = (one.read_bytes() for one in folder.path.rglob("*") if one.is_file())
    assert not any(file.name.encode() in text for text in written_down)
    asked = small(tmp_path, models=[name], name="asked", **few)
    with pytest.raises(RunFailedError, match="the model that it is to train cannot be built there"):
        simulate(asked, simulated=False, before=nodes(""))

"""All models by name keep the contract, with their sizes and FLOPs; a user's factory is checked."""

import copy
import json
import sys
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from fedhet.config.load import build_config
from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.data.preparation import preparation
from fedhet.errors import UserError
from fedhet.export.model import export
from fedhet.models.flops import FlopCounter, forward_flops, model_sizes
from fedhet.models.names import MODELS
from fedhet.models.networks import exchanged
from fedhet.models.zoo import build_model, check_model
from fedhet.plugins import giving
from fedhet.rng import torch_seeded
from fedhet.testing import cut_and_resume, simulate, small


class Good(nn.Module):
    def __init__(self, classes, d, image_size):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4, d),
        )  # fmt: skip
        self.head = nn.Linear(d, classes)

    def features(self, x):
        return self.body(x)


class WithForward(Good):
    def forward(self, x):
        return self.head(self.features(x))


def tied(classes, d, image_size):
    model = Good(classes, d, image_size)
    model.twin = model.body[4]
    model.again = model.body[0].weight
    return model


def but(change):
    """A factory of models that are changed."""

    def factory(classes, d, image_size):
        model = Good(classes, d, image_size)
        change(model, model.body)
        return model

    return factory


MISTAKES = {
    "other_forward": (but(lambda m, body: setattr(m, "forward", lambda x: 2 * m.head(body(x)))),
                      r"forward\(x\) must equal head\(features\(x\)\)"),
    "wrong_width": (but(lambda m, body: setattr(m, "features", lambda x: body(x)[:, 1:])),
                    r"is \(torch.float32, \(2, 5\)\), must be \(torch.float32, \(2, 6\)\)"),
    "raises": (but(lambda m, _: setattr(m, "features", lambda x: json.loads("two\nlines"))),
               "fails: JSONDecodeError: "),
    "no_features": (but(lambda m, _: setattr(m, "features", None)), "has no features"),
    "wrong_head": (but(lambda m, _: setattr(m, "head", nn.Linear(6, 5))),
                   "head is .*out_features=5, .* must be a Linear of .*out_features=4"),
    "no_bias": (but(lambda m, _: setattr(m, "head", nn.Linear(6, 4, bias=False))), "bias=False"),
    "nothing": (lambda **_: None, "got a NoneType, must be a torch.nn.Module"),
    "fails": (lambda **_: 1 / 0, "fails: ZeroDivisionError"),
    "evaluating": (but(lambda m, _: m.eval()), "is in evaluation mode"),
    "constant": (3, "is a int, must be a factory"),
    "missing": (None, "has no attribute 'missing'"),
}  # fmt: skip


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module with factories of models."""
    module = ModuleType("fedhet_test_mine")
    vars(module).update(Good=Good, WithForward=WithForward, tied=tied)
    vars(module).update({name: made for name, (made, _) in MISTAKES.items() if made})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize("factory", ["Good", "WithForward"])
def test_a_users_factory(mine, factory):
    model = build_model(f"{mine}:{factory}", classes=4, d=6, inputs=Inputs.image(20))
    assert torch.equal(model.body[1].running_var, torch.ones(4)), "the check left BatchNorm alone"
    x = torch.randn(3, 3, 20, 20)
    assert model(x).shape == (3, 4)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.head.weight.zero_()
        twin.head.bias.zero_()
    assert not twin(x).any(), "a copy's forward uses the copy's head"
    assert model(x).any()


@pytest.mark.parametrize("factory", MISTAKES)
def test_a_users_mistakes(mine, factory):
    with pytest.raises(UserError, match=MISTAKES[factory][1]) as error:
        build_model(f"{mine}:{factory}", classes=4, d=6, inputs=Inputs.image(20))
    assert f"{mine}:{factory}" in str(error.value)
    assert "\n" not in str(error.value)


def test_tied_weights_stay_tied_in_sums_a_resumed_run_and_an_export(mine, tmp_path):
    keys = {
        "method": "fedavg", "small_model": f"{mine}:tied", "secure_sum": "masked",
        "image_size": 20, "models": [f"{mine}:tied"], "dataset": "synthetic:60x4",
    }  # fmt: skip
    folder, _ = simulate(small(tmp_path, **keys))
    cut = cut_and_resume(small(tmp_path, **keys), 2)
    assert cut.read_rounds()[-1]["sha256"] == folder.read_rounds()[-1]["sha256"]
    export(next(folder.path.glob("state/*/0")), tmp_path / "model", trust=True)
    kept = load_file(tmp_path / "model" / "model.safetensors")
    weights = [kept[f"parts.model.{name}.weight"] for name in ("body.4", "twin")]
    assert torch.equal(*weights)
    names = exchanged(build_model(f"{mine}:tied", classes=4, d=6, inputs=Inputs.image(20)))
    assert "body.4.weight" in names and "twin.weight" not in names, "sent once"


def test_an_embedding_that_is_too_small_for_the_words_is_a_line_when_it_is_built():
    def words(classes):
        return nn.Sequential(nn.Embedding(100, 8), nn.Flatten(), nn.Linear(32, classes))

    inputs = Inputs("tokens", (4,), vocabulary=101)
    with (
        giving({"m:words:0123456789abcdef": words}),
        pytest.raises(UserError, match="101 token ids, f"),
    ):
        build_model("m:words:0123456789abcdef", classes=2, d=32, inputs=inputs)


SIZES = {  # parameters at 10 and at 100 classes
    "cnn-1": (2_621_558, 2_666_648), "cnn-2": (1_815_142, 1_860_232),
    "cnn-3": (1_320_558, 1_365_648), "cnn-4": (1_060_358, 1_105_448), "cnn-5": (670_058, 715_148),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_of_the_papers(name):
    for classes, expected in zip((10, 100), SIZES[name], strict=True):
        made = build_model(name, classes=classes)
        assert sum(p.numel() for p in made.parameters()) == expected


VGG = pytest.param("vgg11", marks=pytest.mark.matrix)  # 129 million parameters


@pytest.mark.parametrize("name", ["squeezenet1_1", "mnasnet0_5", "mobilenet_v3_small", VGG])
def test_what_ends_the_network_is_cut_and_what_stands_before_it_trains(name):
    """A convolution, a Linear, the last of two Linears, the last of three."""
    model = build_model(name, classes=3, d=7).train()
    x = torch.rand(2, 3, 32, 32)
    assert model.features(x).shape == (2, 7) and model.head.weight.shape == (3, 7)
    model(x).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [("cnn-1", 15, "image-size: 15 is not allowed: at least 16"),
     ("alexnet", 32, "'alexnet'.*a forward of two examples, image .*, fails"),
     ("maxvit_t", 32, "'maxvit_t'.*takes no image of"),
     ("examples.tiny_net:make", (20, 36), r"takes image_size, .* of shape \(3, 20, 36\): let it"),
     ("vit_b_32", 40, "'vit_b_32'.*takes no image of .*indivisible")],
)  # fmt: skip
def test_a_network_that_does_not_fit_the_images(name, size, says):
    with pytest.raises(UserError, match=says):
        build_model(name, classes=3, inputs=Inputs.image(size))


def test_names_of_timm_and_the_nearest_to_a_misspelt_one():
    with pytest.raises(UserError, match="'resnet5O'.*resnet50.*any classifier of torchvision"):
        build_config({"models": "resnet5O"})
    timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")
    assert timm.is_model("resnet10t")
    assert build_model("timm:resnet10t", classes=3, d=7)(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(UserError, match="timm has no model 'resnet10'.*resnet10t"):
        build_model("timm:resnet10", classes=3)


# CNN-1 at 32 x 32, 10 classes: outputs x multiply-adds per output.
CONV1 = 28 * 28 * 16 * (3 * 25)
CONV2 = 10 * 10 * 32 * (16 * 25)
FC = [800 * 2000, 2000 * 500, 500 * 10]
MULTIPLY_ADDS = CONV1 + CONV2 + sum(FC)


def training_flops(step):
    with FlopCounter() as counter:
        step().backward()
    return counter.total


def test_training_flops_of_cnn_1():
    model = build_model("cnn-1", classes=10)
    batch = 4
    x, y = torch.randn(batch, 3, 32, 32), torch.arange(batch)
    # Backward: once for the weights, once for the input, which conv1 does not need.
    expected = 2 * batch * (3 * MULTIPLY_ADDS - CONV1)
    assert training_flops(lambda: nn.functional.cross_entropy(model(x), y)) == expected


def test_training_costs_three_forwards_or_less():
    """Convolutions in groups included, which torch's counter takes for whole ones."""
    model = build_model("shufflenet_v2_x1_0", classes=3, d=5)
    x = torch.randn(2, 3, 32, 32)
    ratio = training_flops(lambda: model(x).sum()) / (2 * forward_flops(model, Inputs.image(32)))
    assert 2.5 < ratio <= 3


def test_sizes_of_models():
    """torchvision's documented parameters at 1000 classes, less its FC, plus projection and head.

    GoogLeNet's documented 6,624,904 has no auxiliary heads.
    """
    documented = {
        "resnet18": (11_689_512, 512), "mobilenet_v2": (3_504_872, 1280),
        "googlenet": (6_624_904, 1024), "shufflenet_v2_x1_0": (2_278_604, 1024),
    }  # fmt: skip
    rng = torch.get_rng_state()
    first, *rows = model_sizes(["cnn-1", *documented], 10, 500, Inputs.image(32))
    assert torch.equal(torch.get_rng_state(), rng)
    assert first == ("cnn-1", 2_621_558, "10.00", 0, 2 * MULTIPLY_ADDS)
    for (name, count, *_), (total, width) in zip(rows, documented.values(), strict=True):
        assert count == total - (width + 1) * 500 + 501 * 10, name
    channels = 2 * (4800 + 3)  # mean and deviation, of BatchNorms and of the images
    assert rows[0][3] == channels + 20, "and 20 counters"


def test_an_operator_without_a_formula_is_named_once(caplog):
    x = torch.randn(4, 8)
    for _ in range(2):
        with caplog.at_level("WARNING", logger="fedhet"), FlopCounter() as counter:
            torch.fft.rfft(x)
            x.relu().sum()
    assert counter.total == 0
    assert len(caplog.records) == 1 and "_fft_r2c has no formula" in caplog.text


CLASSES, D = 3, 12
INPUTS = {
    IMAGE: Inputs.image(32),
    SIGNAL: Inputs(SIGNAL, (2, 20)),
    TABLE: Inputs.table(
        ("age", "sex", "pain", "rate"), (("sex", ("f", "m")), ("pain", ("a", "b", "c")))
    ),
    TOKENS: Inputs(TOKENS, (9,), 30),
}  # fmt: skip
LARGE = {"resnet18", "mobilenet_v2", "googlenet"}  # ShuffleNet stands for them by default
ALL = [
    pytest.param(kind, name, marks=pytest.mark.matrix if name in LARGE else ())
    for kind in INPUTS for name in MODELS[kind]
]  # fmt: skip


def seeded(kind, name):
    with torch_seeded(3, "test"):
        return build_model(name, classes=CLASSES, d=D, inputs=INPUTS[kind])


def inputs_of(kind, count=4):
    drawn = torch.Generator().manual_seed(0)
    if kind == TOKENS:
        return torch.randint(0, 30, (count, 9), generator=drawn)
    return torch.randn(count, *INPUTS[kind].shape, generator=drawn)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_contract(kind, name, caplog):
    model, alone, x = seeded(kind, name), seeded(kind, name).eval(), inputs_of(kind)
    again = alone.state_dict()
    assert all(torch.equal(v, again[k]) for k, v in model.state_dict().items())
    both = alone(x)
    assert torch.allclose(both[:2], alone(x[:2]), atol=1e-5), "an example's answer is its own"
    check_model(model, name, CLASSES, D, INPUTS[kind])
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters()), "no parameter is left unused"
    assert forward_flops(model, INPUTS[kind]) > 0 and not caplog.records


def test_a_vector_per_column_of_a_table():
    """Numbers, gaps and categories of a row as the preparation lays them out, by hand."""
    inputs = INPUTS[TABLE]
    tokens = seeded(TABLE, "ft-transformer").tokens
    prepared = preparation(inputs)
    gap = float("nan")
    x = prepared(torch.tensor([[2.0, 1.0, 2.0, gap], [gap, gap, 0.0, 5.0]]))
    found, w = tokens(x), tokens.weight  # columns in order: age, rate; then sex, pain
    assert found.shape == (2, 5, 64)
    assert torch.equal(found[0, 0], tokens.reader[0, 0]) and torch.equal(found[1, 0], found[0, 0])
    first = [2 * w[0], w[1] * 0 + w[3], w[5], w[8]]  # w: age, rate, their gaps, f m, a b c
    second = [w[2], 5 * w[1], 0 * w[4], w[6]]
    for row, expected in enumerate((first, second)):
        assert torch.allclose(found[row, 1:], torch.stack(expected) + tokens.bias, atol=1e-6)


def test_an_inception_module_by_hand():
    module = seeded(SIGNAL, "inception-time").blocks[0][0].eval()
    x = inputs_of(SIGNAL)
    narrow = F.conv1d(x, module.bottleneck.weight)
    parts = [F.conv1d(narrow, c.weight, padding=c.kernel_size[0] // 2) for c in module.convolutions]
    assert [c.kernel_size[0] for c in module.convolutions] == [39, 19, 9]
    widest = F.pad(x, (1, 1), value=float("-inf")).unfold(2, 3, 1).amax(dim=3)
    parts.append(F.conv1d(widest, module.pooled.weight))
    expected = F.relu(torch.cat(parts, dim=1) / (1 + 1e-5) ** 0.5)  # of a fresh BatchNorm
    assert torch.allclose(module(x), expected, atol=1e-5)

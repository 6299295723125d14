"""Every built-in model for signals, tables and texts keeps the contract; three of them by hand."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedhet.config.load import build_config
from fedhet.data.inputs import KINDS, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.data.preparation import preparation
from fedhet.errors import UserError
from fedhet.models import GROUPS, MODELS, build_model, check_model, forward_flops
from fedhet.models.names import MORE, RESNETS, is_known
from fedhet.rng import torch_seeded

CLASSES, D = 3, 12
INPUTS = {
    SIGNAL: Inputs(SIGNAL, (2, 20)),
    TABLE: Inputs.table(
        ("age", "sex", "pain", "rate"), (("sex", ("f", "m")), ("pain", ("a", "b", "c")))
    ),
    TOKENS: Inputs(TOKENS, (9,), 30),
}  # fmt: skip
ALL = [(kind, name) for kind in INPUTS for name in (*MODELS[kind], *MORE[kind])]


def seeded(kind: str, name: str) -> nn.Module:
    with torch_seeded(3, "test"):
        return build_model(name, classes=CLASSES, d=D, inputs=INPUTS[kind])


def batch(kind: str, count: int = 4) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(0)
    if kind == TOKENS:
        return torch.randint(0, 30, (count, 9), generator=drawn)
    return torch.randn(count, *INPUTS[kind].shape, generator=drawn)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_contract(kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, x = seeded(kind, name), batch(kind)
    check_model(model, name, CLASSES, D, INPUTS[kind])
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters()), "no parameter is left unused"
    again = seeded(kind, name).state_dict()
    assert all(torch.equal(v, again[k]) for k, v in seeded(kind, name).state_dict().items())
    assert forward_flops(model, INPUTS[kind]) > 0 and not caplog.records
    alone = build_model(name, classes=CLASSES, d=D, inputs=INPUTS[kind]).eval()
    both = alone(x)
    assert torch.allclose(both[:2], alone(x[:2]), atol=1e-5), "an example's answer is its own"


@pytest.mark.parametrize("name", [*MODELS[SIGNAL], *MORE[SIGNAL]])
def test_signals_of_one_step_and_of_an_odd_length(name: str) -> None:
    for steps in (1, 37):
        model = build_model(name, classes=2, d=5, inputs=Inputs(SIGNAL, (1, steps)))
        assert model(torch.randn(2, 1, steps)).shape == (2, 2)


def test_a_vector_per_column_of_a_table() -> None:
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


def test_tables_of_numbers_alone_and_of_categories_alone() -> None:
    for inputs in (Inputs.table(("a", "b")), Inputs.table(("k",), (("k", ("x", "y")),))):
        model = build_model("ft-transformer", classes=2, d=5, inputs=inputs)
        assert model(torch.randn(3, *inputs.shape)).shape == (3, 2)


def test_an_inception_module_by_hand() -> None:
    module = seeded(SIGNAL, "inception-time").blocks[0][0].eval()
    x = batch(SIGNAL)
    narrow = F.conv1d(x, module.bottleneck.weight)
    parts = [F.conv1d(narrow, c.weight, padding=c.kernel_size[0] // 2) for c in module.convolutions]
    assert [c.kernel_size[0] for c in module.convolutions] == [39, 19, 9]
    widest = F.pad(x, (1, 1), value=float("-inf")).unfold(2, 3, 1).amax(dim=3)
    parts.append(F.conv1d(widest, module.pooled.weight))
    expected = F.relu(torch.cat(parts, dim=1) / (1 + 1e-5) ** 0.5)  # of a fresh BatchNorm
    assert torch.allclose(module(x), expected, atol=1e-5)


def test_a_residual_network_of_a_table_is_its_first_layer_where_blocks_are_zero() -> None:
    model = seeded(TABLE, "resnet-table").eval()
    x = batch(TABLE)
    with torch.no_grad():
        for block in model.blocks:
            block[-1].weight.zero_()
            block[-1].bias.zero_()
    expected = F.relu(model.fc(F.relu(model.norm(model.first(x)))))
    assert torch.equal(model.features(x), expected)


def test_harcnns_have_their_convolutions_and_strides() -> None:
    for name, layers, stride in (("harcnn-1x3", 1, 3), ("harcnn-2x1", 2, 1), ("harcnn-3x2", 3, 2)):
        convolutions = list(seeded(SIGNAL, name).convolutions)
        assert [c.stride[0] for c in convolutions] == [stride] * layers
        assert [c.out_channels for c in convolutions] == [32, 64, 128][:layers]


def test_transformers_have_their_layers_and_heads() -> None:
    for name, layers, heads in (("transformer-3", 3, 4), ("transformer-4x16", 4, 16)):
        found = list(seeded(TOKENS, name).encoder.layers)
        assert [layer.self_attn.num_heads for layer in found] == [heads] * layers


def test_the_logistic_one_is_linear_in_its_words() -> None:
    model = seeded(TOKENS, "logistic").eval()
    words = torch.tensor([[1, 0, 0], [2, 0, 0], [1, 2, 0], [0, 0, 0]])
    one, two, both, none = model(words)
    assert torch.allclose(both, (one + two) / 2, atol=1e-6)
    assert torch.equal(none, model.head.bias)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_is_of_one_kind_and_can_be_asked_for(group: str) -> None:
    kinds = [kind for kind in KINDS if all(is_known(name, kind) for name in GROUPS[group])]
    assert kinds, group
    if kinds[0] not in INPUTS:
        assert build_config({"models": group}).models == GROUPS[group]
        return
    other = {SIGNAL: "synthetic-signal", TABLE: "synthetic-table", TOKENS: "synthetic-tokens"}
    assert build_config({"models": group, "dataset": other[kinds[0]]}).models == GROUPS[group]
    with pytest.raises(UserError, match="and this run's examples are images"):
        build_config({"models": group})


def test_the_small_residual_networks_of_htflib() -> None:
    """One block in each of the first stages, 64 channels doubled by each."""
    sizes = []
    for name, stages in RESNETS.items():
        model = build_model(name, classes=3, d=7)
        assert model.projection.in_features == 64 * 2 ** (stages - 1)
        blocks = [m for m in model.modules() if type(m).__name__ == "BasicBlock"]
        assert len(blocks) == stages and model(torch.rand(2, 3, 32, 32)).shape == (2, 3)
        sizes.append(sum(p.numel() for p in model.parameters()))
    assert all(more > less for more, less in pairwise(sizes))

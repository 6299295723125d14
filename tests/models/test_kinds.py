"""Every built-in model keeps the contract; three of them by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.data.preparation import preparation
from fedhet.models import MODELS, build_model, check_model, forward_flops
from fedhet.rng import torch_seeded

CLASSES, D = 3, 12
INPUTS = {
    IMAGE: Inputs.image(32),
    SIGNAL: Inputs(SIGNAL, (2, 20)),
    TABLE: Inputs.table(
        ("age", "sex", "pain", "rate"), (("sex", ("f", "m")), ("pain", ("a", "b", "c")))
    ),
    TOKENS: Inputs(TOKENS, (9,), 30),
}  # fmt: skip
ALL = [(kind, name) for kind in (SIGNAL, TABLE, TOKENS) for name in MODELS[kind]]
LARGE = {"resnet18", "mobilenet_v2", "googlenet"}  # ShuffleNet stands for them by default
ALL += [
    pytest.param(IMAGE, name, marks=pytest.mark.matrix if name in LARGE else ())
    for name in MODELS[IMAGE]
]


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
    model, alone, x = seeded(kind, name), seeded(kind, name).eval(), batch(kind)
    again = alone.state_dict()
    assert all(torch.equal(v, again[k]) for k, v in model.state_dict().items())
    both = alone(x)
    assert torch.allclose(both[:2], alone(x[:2]), atol=1e-5), "an example's answer is its own"
    check_model(model, name, CLASSES, D, INPUTS[kind])
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters()), "no parameter is left unused"
    assert forward_flops(model, INPUTS[kind]) > 0 and not caplog.records


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

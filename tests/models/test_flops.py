"""FLOPs against formulas written out here, and the table of ``fedhet models``."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedhet.data.inputs import Inputs
from fedhet.models import MODEL_NAMES, build_model, cnn, forward_flops, model_table, training_flops
from fedhet.models.flops import FlopCounter

# CNN-1 at 32 x 32, 10 classes: outputs x multiply-adds per output.
CONV1 = 28 * 28 * 16 * (3 * 25)
CONV2 = 10 * 10 * 32 * (16 * 25)
FC = [800 * 2000, 2000 * 500, 500 * 10]
MULTIPLY_ADDS = CONV1 + CONV2 + sum(FC)


def test_forward_flops_of_cnn_1() -> None:
    assert forward_flops(cnn("cnn-1", 10), Inputs.image(32)) == 2 * MULTIPLY_ADDS == 9_651_600


def test_training_flops_of_cnn_1() -> None:
    model = cnn("cnn-1", 10)
    batch = 4
    x, y = torch.randn(batch, 3, 32, 32), torch.arange(batch)
    # Backward: once for the weights, once for the input, which conv1 does not need.
    expected = 2 * batch * (3 * MULTIPLY_ADDS - CONV1)
    assert training_flops(lambda: nn.functional.cross_entropy(model(x), y)) == expected


@pytest.mark.parametrize("name", ["cnn-1", "resnet18", "googlenet"])
def test_the_count_is_that_of_torchs_counter(name: str) -> None:
    model = build_model(name, classes=3, d=5)
    x, y = torch.randn(2, 3, 32, 32), torch.arange(2)

    def step() -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(step())
    assert training_flops(step) == counter.get_total_flops() > 0


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_in_groups_costs_its_own_part(*, groups: int, transposed: bool) -> None:
    """torch's own formula took the weights' gradient for that of a full convolution."""
    layer = (nn.ConvTranspose1d if transposed else nn.Conv1d)(8, 16, 3, 2, groups=groups)
    x = torch.randn(2, 8, 21, requires_grad=True)
    steps = 21 if transposed else 10  # each meets the kernel
    forward = 2 * 2 * steps * 3 * 8 * 16 // groups
    assert training_flops(lambda: layer(x).sum()) == 3 * forward


@pytest.mark.parametrize("name", ["mobilenet_v2", "shufflenet_v2_x1_0"])
def test_training_costs_three_forwards_or_less(name: str) -> None:
    model = build_model(name, classes=3, d=5)
    x = torch.randn(2, 3, 32, 32)
    ratio = training_flops(lambda: model(x).sum()) / (2 * forward_flops(model, Inputs.image(32)))
    assert 2.5 < ratio <= 3


def test_a_frozen_part_costs_less() -> None:
    model = cnn("cnn-5", 10).requires_grad_(requires_grad=False)
    model.head.requires_grad_()
    x = torch.randn(2, 3, 32, 32)
    head = 2 * 2 * 500 * 10
    assert (
        training_flops(lambda: model(x).sum()) == 2 * forward_flops(model, Inputs.image(32)) + head
    )


@pytest.mark.parametrize("training", [True, False])
def test_forward_flops_leaves_the_model_untouched(*, training: bool) -> None:
    class Counting(nn.Module):  # writes a buffer even in eval mode
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x

    inner = build_model("mobilenet_v2", classes=3, d=5)
    model = nn.Sequential(Counting(), inner).train(training)
    frozen = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    frozen.training = not training
    flags = [m.training for m in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    assert forward_flops(model, Inputs.image(32)) > 0
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), rng)


def test_model_table() -> None:
    rng = torch.get_rng_state()
    rows = model_table(["cnn-1", "resnet18"], classes=10, d=500, image_size=32)
    assert torch.equal(torch.get_rng_state(), rng)
    assert rows[0] == {
        "name": "cnn-1",
        "kind": "image",
        "parameters": 2_621_558,
        "mib": 2_621_558 * 4 / 2**20,
        "buffers": 0,
        "buffers_mib": 0.0,
        "forward_flops": 2 * MULTIPLY_ADDS,
    }
    assert rows[1]["buffers"] == 2 * 4800 + 20, "mean and variance of 4800 channels, 20 counters"
    assert rows[1]["buffers_mib"] == (2 * 4800 * 4 + 20 * 8) / 2**20


def test_model_table_of_all_names() -> None:
    rows = model_table(MODEL_NAMES, classes=10)
    assert [row["name"] for row in rows] == list(MODEL_NAMES)
    assert all(row["forward_flops"] > 0 for row in rows)


def test_recurrent_layers_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Every weight matrix meets every step once; an LSTM was counted as 0."""
    inputs = Inputs("signal", (6, 128))
    model = build_model("lstm", classes=5, inputs=inputs)
    gates = 4 * 64 * (6 + 64)
    forward = 2 * (128 * gates + 64 * 500 + 500 * 5)
    assert forward_flops(model, inputs) == forward
    x = torch.randn(3, 6, 128)
    linear = 2 * (64 * 500 + 500 * 5)
    assert training_flops(lambda: model(x).sum()) == 3 * 3 * (2 * 128 * gates + linear)
    gru = build_model("gru", classes=5, inputs=inputs)
    assert forward_flops(gru, inputs) == pytest.approx(
        2 * (128 * 3 * 64 * (6 + 64) + 64 * 500 + 500 * 5)
    )
    assert not caplog.records


def test_a_transformer_costs_the_same_in_evaluation() -> None:
    """Its fast path is one operator without a formula, and was counted as 0."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    fast = torch.backends.mha.get_fastpath_enabled()
    length = 10
    with torch.no_grad():
        x = torch.randn(1, length, 16)
        counted = []
        for training in (True, False):
            encoder.train(training)
            with FlopCounter() as counter:
                encoder(x)
            counted.append(counter.total)
    projections = length * (16 * 48 + 16 * 16 + 2 * 16 * 32)
    attention = 2 * length * length * 16
    assert counted == [2 * (projections + attention)] * 2
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_an_operator_without_a_formula_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 8)
    for _ in range(2):
        with caplog.at_level("WARNING", logger="fedhet"), FlopCounter() as counter:
            torch.fft.rfft(x)
            x.relu().sum()
    assert counter.total == 0
    named = [record.getMessage() for record in caplog.records]
    assert len(named) == 1 and "_fft_r2c has no formula and is counted as 0" in named[0]

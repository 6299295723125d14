"""FLOPs against formulas written out here, and the sizes that ``fedhet models`` prints."""

import pytest
import torch
from torch import nn

from fedhet.data.inputs import Inputs
from fedhet.models import build_model, forward_flops, model_sizes, training_flops
from fedhet.models.flops import FlopCounter

# CNN-1 at 32 x 32, 10 classes: outputs x multiply-adds per output.
CONV1 = 28 * 28 * 16 * (3 * 25)
CONV2 = 10 * 10 * 32 * (16 * 25)
FC = [800 * 2000, 2000 * 500, 500 * 10]
MULTIPLY_ADDS = CONV1 + CONV2 + sum(FC)


def test_training_flops_of_cnn_1() -> None:
    model = build_model("cnn-1", classes=10)
    batch = 4
    x, y = torch.randn(batch, 3, 32, 32), torch.arange(batch)
    # Backward: once for the weights, once for the input, which conv1 does not need.
    expected = 2 * batch * (3 * MULTIPLY_ADDS - CONV1)
    assert training_flops(lambda: nn.functional.cross_entropy(model(x), y)) == expected


def test_training_costs_three_forwards_or_less() -> None:
    """Convolutions in groups included, which torch's counter takes for whole ones."""
    model = build_model("shufflenet_v2_x1_0", classes=3, d=5)
    x = torch.randn(2, 3, 32, 32)
    ratio = training_flops(lambda: model(x).sum()) / (2 * forward_flops(model, Inputs.image(32)))
    assert 2.5 < ratio <= 3


def test_a_frozen_part_costs_less() -> None:
    model = build_model("cnn-5", classes=10).requires_grad_(requires_grad=False)
    model.head.requires_grad_()
    x = torch.randn(2, 3, 32, 32)
    head = 2 * 2 * 500 * 10
    assert (
        training_flops(lambda: model(x).sum()) == 2 * forward_flops(model, Inputs.image(32)) + head
    )


def test_sizes_of_models() -> None:
    rng = torch.get_rng_state()
    rows = model_sizes(["cnn-1", "resnet18"], 10, 500, Inputs.image(32))
    assert torch.equal(torch.get_rng_state(), rng)
    assert rows[0] == {
        "name": "cnn-1", "kind": "image", "parameters": 2_621_558, "mib": 2_621_558 * 4 / 2**20,
        "buffers": 0, "forward_flops": 2 * MULTIPLY_ADDS,
    }  # fmt: skip
    assert 2 * MULTIPLY_ADDS == 9_651_600
    channels = 2 * (4800 + 3)  # mean and deviation, of BatchNorms and of the images
    assert rows[1]["buffers"] == channels + 20, "and 20 counters"


def test_an_operator_without_a_formula_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 8)
    for _ in range(2):
        with caplog.at_level("WARNING", logger="fedhet"), FlopCounter() as counter:
            torch.fft.rfft(x)
            x.relu().sum()
    assert counter.total == 0
    named = [record.getMessage() for record in caplog.records]
    assert len(named) == 1 and "_fft_r2c has no formula and is counted as 0" in named[0]

"""CNN-1 ... CNN-5: sizes of the papers, other image sizes, and the pooling order."""

import pytest
import torch
from torch.nn.functional import max_pool2d, relu

from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.models import SplitModel, build_model
from fedhet.rng import torch_seeded

SIZES = {  # parameters at 10 and at 100 classes
    "cnn-1": (2_621_558, 2_666_648),
    "cnn-2": (1_815_142, 1_860_232),
    "cnn-3": (1_320_558, 1_365_648),
    "cnn-4": (1_060_358, 1_105_448),
    "cnn-5": (670_058, 715_148),
}


def cnn(name: str, classes: int, d: int = 500, size: int = 32) -> SplitModel:
    return build_model(name, classes=classes, d=d, inputs=Inputs.image(size))


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_of_the_papers(name: str) -> None:
    for classes, expected in zip((10, 100), SIZES[name], strict=True):
        assert sum(p.numel() for p in cnn(name, classes).parameters()) == expected


def test_other_image_sizes_down_to_16() -> None:
    for size in (16, 33):
        assert cnn("cnn-5", 7, 12, size)(torch.zeros(2, 3, size, size)).shape == (2, 7)
    with pytest.raises(UserError, match="image-size: 15 is not allowed: at least 16"):
        cnn("cnn-1", 10, size=15)


def test_pooling_before_relu_is_the_papers_network() -> None:
    with torch_seeded(0, "test"):
        model, x = cnn("cnn-5", 10), torch.randn(4, 3, 32, 32)

    def paper() -> torch.Tensor:
        h = max_pool2d(relu(model.conv1(x)), 2)
        h = max_pool2d(relu(model.conv2(h)), 2)
        return model.head(relu(model.fc2(relu(model.fc1(h.flatten(1))))))

    outputs, gradients = [], []
    for forward in (paper, lambda: model(x)):
        model.zero_grad()
        outputs.append(forward())
        outputs[-1].square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert torch.equal(*outputs)
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)

"""Classifiers of torchvision and timm by their names, cut at their last layer."""

import pytest
import torch

from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.models.zoo import build_model

VGG = pytest.param("vgg11", marks=pytest.mark.matrix)  # 129 million parameters


@pytest.mark.parametrize("name", ["squeezenet1_1", "mnasnet0_5", "mobilenet_v3_small", VGG])
def test_what_ends_the_network_is_cut_and_what_stands_before_it_trains(name):
    """A convolution, a Linear, the last of two Linears, the last of three."""
    model = build_model(name, classes=3, d=7).train()
    x = torch.rand(2, 3, 32, 32)
    assert model.features(x).shape == (2, 7) and model.head.weight.shape == (3, 7)
    model(x).sum().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None]
    assert not still, still


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("alexnet", 32, "a forward of two 32 x 32 images fails"),
        ("maxvit_t", 32, "takes no 32 x 32 images"),
        ("vit_b_32", 40, "takes no 40 x 40 images: .*indivisible"),
    ],
)
def test_a_network_that_does_not_fit_the_images_is_one_line(name, size, says):
    with pytest.raises(UserError, match=f"'{name}'.*{says}") as error:
        build_model(name, classes=3, inputs=Inputs.image(size))
    assert "\n" not in str(error.value)


def test_timm_by_name():
    timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")
    assert timm.is_model("resnet10t")
    assert build_model("timm:resnet10t", classes=3, d=7)(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(UserError, match="timm has no model 'resnet10'.*resnet10t"):
        build_model("timm:resnet10", classes=3)


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="'resnet5O'.*resnet50.*any classifier of torchvision"):
        build_config({"models": "resnet5O"})

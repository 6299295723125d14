"""Classifiers of torchvision and timm by their names, cut at their last layer."""

import pytest
import torch

from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.models.names import MORE_OF_TORCHVISION, TORCHVISION_NAMES
from fedhet.models.zoo import build_model


def test_every_classifier_of_torchvision_has_its_name_here():
    from torchvision import models  # noqa: PLC0415  (late, as the zoo does)

    here = {*TORCHVISION_NAMES, *MORE_OF_TORCHVISION}
    assert here >= set(models.list_models(module=models))


@pytest.mark.parametrize("name", ["squeezenet1_1", "mnasnet0_5", "mobilenet_v3_small", "vgg11"])
def test_what_ends_the_network_is_cut_and_what_stands_before_it_trains(name):
    """A convolution, a Linear, the last of two Linears, the last of three."""
    model = build_model(name, classes=3, d=7).train()
    x = torch.rand(2, 3, 32, 32)
    assert model.features(x).shape == (2, 7) and model.head.weight.shape == (3, 7)
    model(x).sum().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None]
    assert not still, still


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("alexnet", "a forward of two 32 x 32 images fails"),
        ("maxvit_t", "takes no 32 x 32 images"),
    ],
)
def test_a_network_that_is_too_large_for_the_images_is_one_line(name, says):
    with pytest.raises(UserError, match=f"model '{name}'.*{says}") as error:
        build_model(name, classes=3)
    assert "\n" not in str(error.value)


def test_patches_that_do_not_fit_the_images_are_one_line():
    inputs = Inputs.image(40)
    with pytest.raises(UserError, match="'vit_b_32' takes no 40 x 40 images: .*indivisible"):
        build_model("vit_b_32", classes=3, inputs=inputs)


def test_timm_by_name():
    timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")
    assert timm.is_model("resnet10t")
    assert build_model("timm:resnet10t", classes=3, d=7)(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(UserError, match="timm has no model 'resnet10'.*resnet10t"):
        build_model("timm:resnet10", classes=3)


def test_a_group_of_htflib_is_its_networks():
    assert build_config({"models": "@htfe-img-4"}).models == (
        "cnn-1", "googlenet", "mobilenet_v2", "resnet18",
    )  # fmt: skip


def test_a_misspelt_name_is_answered_with_the_nearest(tmp_path):
    (tmp_path / "signals.npz").touch()
    with pytest.raises(UserError, match="'resnet5O'.*resnet50.*any classifier of torchvision"):
        build_config({"models": "resnet5O"})
    with pytest.raises(UserError, match="model 'vit_b_16' is for images"):
        build_config({"models": "vit_b_16", "dataset": "signals", "site": "who",
                      "partition": "natural",
                      "data-path": str(tmp_path / "signals.npz")})  # fmt: skip

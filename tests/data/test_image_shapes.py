"""Images that are not 8-bit square RGB: grey ones, other proportions, and what gets lost."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedhet.config.load import build_config
from fedhet.data import decode
from fedhet.data.cache import open_dataset
from fedhet.data.inputs import Inputs, load_inputs
from fedhet.errors import UserError
from fedhet.export.model import load_model
from fedhet.export.predict import predict
from fedhet.export.save import export
from fedhet.models import build_model
from fedhet.testing import simulate, small
from fedhet.training.augment import crop_flip, two_views

RNG = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    """A scan of 16 bits, a wide photograph, a square one, a grey one, ten of each class."""
    scan = RNG.integers(0, 65536, (20, 20)).astype(np.uint16)
    photo = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for name, pictures in {"a": (scan, photo), "b": (photo[:, :20], photo[:, :20, 0])}.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        for k in range(10):
            Image.fromarray(pictures[k % 2]).save(tmp_path / "in" / name / f"{k}.png")
    return tmp_path / "in", scan, photo


def test_what_images_lose_is_said_in_a_line_each(folder, tmp_path, monkeypatch):
    root, scan, photo = folder
    data = open_dataset("image-folder", data_path=str(root), image_size=20, cache_dir=tmp_path)
    assert data.warnings == (
        "5 images of other proportions were squashed to 20 x 20",
        "5 images of more than 8 bits a channel were cut to 8",
    )
    assert np.array_equal(data.examples[0][..., 1], (scan >> 8).astype(np.uint8))
    wide = open_dataset(
        "image-folder", data_path=str(root), image_size=(20, 30), cache_dir=tmp_path
    )
    assert wide.inputs.shape == (3, 20, 30) and np.array_equal(wide.examples[1], photo)
    assert wide.warnings[0] == "15 images of other proportions were squashed to 30 x 20"
    # Workers of their own count the same.
    monkeypatch.setattr(decode, "_PER_WORKER", 5)
    monkeypatch.setattr(decode, "_cores", lambda: 2)
    again = open_dataset(
        "image-folder", data_path=str(root), image_size=20, cache_dir=tmp_path / "2"
    )
    assert again.warnings == data.warnings and np.array_equal(again.examples, data.examples)


def test_grey_images_keep_one_channel(folder, tmp_path):
    root, scan, photo = folder
    data = open_dataset(
        "image-folder", data_path=str(root), image_size=20, grey=True, cache_dir=tmp_path
    )
    assert data.examples.shape == (20, 20, 20, 1) and data.inputs == Inputs.image(20, grey=True)
    assert np.array_equal(data.examples[0][..., 0], (scan >> 8).astype(np.uint8))
    assert np.array_equal(data.examples[11][..., 0], photo[:, :20, 0])
    assert load_inputs(data.inputs.dump()) == data.inputs


def test_keys():
    config = build_config({"image-size": "48x64", "grey": "true"})
    assert config.image_size == (48, 64) and config.flat()["image-size"] == "48x64"
    assert build_config(config.flat()) == config
    square = build_config({"image-size": "64x64"})
    assert square.image_size == 64 and "grey" not in square.flat()
    for wrong in ("8x64", "64x", "large", "600"):
        with pytest.raises(UserError, match=f"image-size: '{wrong}' is not allowed"):
            build_config({"image-size": wrong})


@pytest.mark.parametrize("grey", [True, False])
def test_models_of_such_images(grey):
    inputs = Inputs.image((20, 36), grey=grey)
    x = torch.from_numpy(inputs.blank(2))
    for name in ("cnn-1", "cnn-5", *(() if grey else ("resnet18",))):
        assert build_model(name, classes=3, d=8, inputs=inputs)(x).shape == (2, 3)
    if grey:
        with pytest.raises(UserError, match="'resnet18' takes RGB images: say grey=false"):
            build_model("resnet18", classes=3, d=8, inputs=inputs)
    else:
        with pytest.raises(UserError, match="'vit_b_16' takes square images, and these are 20 x 3"):
            build_model("vit_b_16", classes=3, d=8, inputs=inputs)
    with pytest.raises(UserError, match=r"takes image_size, .* of shape \(\d, 20, 36\): let it"):
        build_model("examples.tiny_net:make", classes=3, d=8, inputs=inputs)


@pytest.mark.parametrize("channels", [1, 3])
def test_views_and_crops_keep_the_shape(channels):
    generator = torch.Generator().manual_seed(0)
    images = torch.from_numpy(RNG.integers(0, 256, (6, 20, 36, channels), dtype=np.uint8))
    assert crop_flip(images, generator).shape == images.shape
    views = two_views(images.permute(0, 3, 1, 2) / 127.5 - 1, generator)
    assert views.shape == (12, channels, 20, 36) and views.abs().max() <= 1.0001


@pytest.mark.parametrize("method", ["fedssa", "pfedes", "fedclassavg", "fedavg", "fedgen"])
def test_a_run(tmp_path, method):
    config = small(
        tmp_path, method=method, dataset="synthetic:120x4", image_size="16x24", grey="true",
        clients=2, rounds=1, models=["cnn-5"], augment="crop-flip",
    )  # fmt: skip
    run, _ = simulate(config)
    assert run.read_rounds()[0]["replied"] == 2


def test_its_model_predicts_files_of_any_size(folder, tmp_path):
    config = small(
        tmp_path, dataset="image-folder", data_path=str(folder[0]), image_size="16x24",
        grey="true", clients=2, rounds=1, classes_per_client=1,
    )  # fmt: skip
    run, _ = simulate(config)
    (state,) = run.path.glob("state/*/0")
    export(state, tmp_path / "model")
    assert load_model(tmp_path / "model")[0].inputs == Inputs.image((16, 24), grey=True)
    done = predict(tmp_path / "model", [folder[0]], tmp_path / "out.csv")
    assert done.examples == 20 and "squashed to 24 x 16" in done.warning

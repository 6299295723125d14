"""Images that are not 8-bit square RGB: grey ones, other proportions, and what gets lost."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedhet.config.load import build_config
from fedhet.data.cache import open_dataset
from fedhet.data.inputs import Inputs, load_inputs
from fedhet.data.preparation import preparation
from fedhet.errors import UserError
from fedhet.export.model import export, load_model
from fedhet.export.predict import predict
from fedhet.models import build_model
from fedhet.testing import simulate, small

RNG = np.random.default_rng(0)


def opened(root, tmp_path, size):
    return open_dataset(
        "image-folder", data_path=str(root), image_size=size, cache_dir=tmp_path / "cache"
    )


def scans(root, images):
    """Write half of the images as those of one class, and the others as those of another."""
    for k, image in enumerate(images):
        path = root / "ab"[2 * k // len(images)] / f"{k:02}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


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


def test_scans_keep_their_values_and_bytes_beside_them_are_stretched(folder, tmp_path):
    root, scan, photo = folder
    data = opened(root, tmp_path, 20)
    assert data.examples.shape == (20, 20, 20, 1) and data.examples.dtype == np.float32
    assert np.array_equal(data.examples[0][..., 0], scan)
    grey = np.asarray(Image.fromarray(photo[:, :20]).convert("L"))
    assert np.allclose(data.examples[10][..., 0], grey * 257.0)
    assert data.inputs.shape == (3, 20, 20) and data.inputs.scan
    assert data.warnings == ("5 images of other proportions were squashed to 20 x 20",)
    assert (
        "5 images of more than 8 bits, values" in data.notes[0] and "levels each" in data.notes[0]
    )
    assert data.notes[1] == "15 images of 8 bits are stretched to 0 to 65535"
    assert load_inputs(data.inputs.dump()) == data.inputs


def test_images_of_8_bits_keep_their_bytes(tmp_path):
    photo = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for name in "ab":
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.fromarray(photo).save(tmp_path / "in" / name / "1.png")
    wide = opened(tmp_path / "in", tmp_path, (20, 30))
    assert wide.inputs == Inputs.image((20, 30)) and np.array_equal(wide.examples[1], photo)


SCANS = {
    "10 bits in 16": lambda a: a.astype(np.uint16),
    "signed": lambda a: a.astype(np.int32) - 1024,
    "float": lambda a: (a / 1000).astype(np.float32),
    "all 16 bits": lambda a: (a * 65).astype(np.uint16),
}


@pytest.mark.parametrize("case", SCANS)
def test_a_scan_is_prepared_by_its_own_range(tmp_path, case):
    values = RNG.integers(0, 1000, (40, 16, 16))
    values[:20] //= 4
    scans(tmp_path / "in", SCANS[case](values))
    data = opened(tmp_path / "in", tmp_path, 16)
    made = preparation(data.inputs)
    made.fit(torch.from_numpy(np.array(data.examples)))
    found = made(torch.from_numpy(np.array(data.examples)))
    assert found.shape == (40, 3, 16, 16)
    expected = 2 * values.astype(np.float32) / values.max() - 1
    assert np.abs(found[:, 1].numpy() - expected).max() < 0.02
    assert len(found.unique()) > 700


def exported(config, model):
    (state,) = simulate(config)[0].path.glob("state/*/0")
    export(state, model)


def test_a_run_of_scans_keeps_its_range_and_predicts_with_it(tmp_path):
    scans(tmp_path / "in", RNG.integers(0, 1000, (40, 16, 16)).astype(np.uint16))
    keys = {"dataset": "image-folder", "data_path": str(tmp_path / "in"), "image_size": 16,
            "clients": 2, "rounds": 1, "partition": "iid"}  # fmt: skip
    exported(small(tmp_path, **keys), tmp_path / "model")
    model, card = load_model(tmp_path / "model")
    assert model.window() == pytest.approx((0, 999), abs=3) and card["inputs"]["scan"]
    done = predict(tmp_path / "model", [tmp_path / "in"], tmp_path / "out.csv")
    assert len(done.frame) == 40 and not done.warning
    places = sorted((tmp_path / "in").rglob("*.tif"))
    array = np.stack([np.asarray(Image.open(place), dtype=np.float32) for place in places])
    by_path, by_array = model.predict(tmp_path / "in"), model.predict(array[..., None])
    assert (by_path.to_numpy() == by_array.to_numpy()).all()
    exported(small(tmp_path / "w", **keys, window="0,4095"), tmp_path / "fixed")
    assert load_model(tmp_path / "fixed")[0].window() == (0, 4095)


def test_keys():
    config = build_config({"image-size": "48x64", "grey": "true"})
    assert config.image_size == (48, 64) and config.flat()["image-size"] == "48x64"
    assert build_config(config.flat()) == config
    square = build_config({"image-size": "64x64"})
    assert square.image_size == 64 and "grey" not in square.flat()


@pytest.mark.parametrize("grey", [True, False])
def test_models_of_such_images(grey):
    inputs = Inputs.image((20, 36), grey=grey)
    x = torch.from_numpy(inputs.blank(2))
    for name in ("cnn-1", "cnn-5", "resnet18"):
        assert build_model(name, classes=3, d=8, inputs=inputs)(x).shape == (2, 3)
    with pytest.raises(UserError, match="'vit_b_16' needs square images; these are 20 x 3"):
        build_model("vit_b_16", classes=3, d=8, inputs=inputs)
    with pytest.raises(UserError, match=r"takes image_size, .* of shape \(\d, 20, 36\): let it"):
        build_model("examples.tiny_net:make", classes=3, d=8, inputs=inputs)


@pytest.mark.parametrize("method", ["pfedes", "fedclassavg"])
def test_a_run(tmp_path, method):
    """Of those that look at images: an extractor on grey ones, and views."""
    config = small(
        tmp_path, method=method, dataset="synthetic:120x4", image_size="16x24", grey="true",
        clients=2, rounds=1, models=["cnn-5"], augment="crop-flip",
    )  # fmt: skip
    run, _ = simulate(config)
    assert run.read_rounds()[0]["replied"] == 2


def test_its_model_predicts_files_of_any_size(folder, tmp_path):
    for path in folder[0].glob("*/*"):
        Image.fromarray(np.asarray(Image.open(path).convert("L"))).save(path)
    config = small(
        tmp_path, dataset="image-folder", data_path=str(folder[0]), image_size="16x24",
        grey="true", clients=2, rounds=1, classes_per_client=1,
    )  # fmt: skip
    exported(config, tmp_path / "model")
    assert load_model(tmp_path / "model")[0].inputs == Inputs.image((16, 24), grey=True)
    done = predict(tmp_path / "model", [folder[0]], tmp_path / "out.csv")
    assert len(done.frame) == 20 and "squashed to 24 x 16" in done.warning

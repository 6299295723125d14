"""Image folders and zips: every kind of file in them, also grey ones, wide ones and scans."""

import io
import zipfile
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from PIL import Image

from fedhet.config.load import build_config
from fedhet.data.cache import open_dataset
from fedhet.data.images import Decoded, decode_all
from fedhet.data.inputs import Inputs, load_inputs
from fedhet.data.preparation import preparation
from fedhet.errors import UserError
from fedhet.export.model import export, load_model, predict
from fedhet.site.local_data import load_partition
from fedhet.testing import simulate, small

RNG = np.random.default_rng(0)


def _file(mode="RGB", colour=(200, 100, 50), size=(8, 8), kind="PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, kind)
    return buffer.getvalue()


def _write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(root)


def _zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


def _open(path, tmp_path, **options):
    keys = {"image_size": 8} | options
    return open_dataset("image-folder", data_path=path, cache_dir=tmp_path / "cache", **keys)


PAIR = {"cat/b.png": _file(), "cat/a.png": _file(colour=(1, 2, 3)), "dog/1.png": _file()}


def test_every_kind_of_image_becomes_rgb_of_one_size(tmp_path):
    palette = io.BytesIO()
    Image.new("RGB", (5, 5), (10, 200, 30)).quantize(4).save(palette, "GIF")
    files = {
        "a/0_grey.png": _file("L", 77),
        "a/1_alpha.PNG": _file("RGBA", (200, 100, 50, 128)),
        "a/2_palette.gif": palette.getvalue(),
        "a/3_cmyk.jpg": _file("CMYK", (0, 255, 255, 0), kind="JPEG"),
        "a/4_odd.bmp": _file(size=(17, 31), kind="BMP"),
        "a/5_tiny.webp": _file(size=(1, 1), kind="WEBP"),
        "a/7_bits.tiff": _file("1", 1, kind="TIFF"),
    }
    data = _open(_write(tmp_path / "in", files), tmp_path)
    assert data.examples.shape == (7, 8, 8, 3) and data.examples.dtype == np.uint8
    orange, on_white = (200, 100, 50), (227, 177, 152)  # half of it shines through
    expected = [(77,) * 3, on_white, (10, 200, 30), (255, 0, 0), orange, orange, (255,) * 3]
    for image, path, colour in zip(data.examples, data.paths, expected, strict=True):
        assert np.abs(image.astype(int) - colour).max() <= 6, path
    assert data.warnings == ("1 images of other proportions were squashed to 8 x 8",)


def test_bad_files_are_named_in_one_warning_with_a_count(tmp_path):
    bad = {
        "cat/broken.png": b"\x89PNG\r\n\x1a\n rubbish",
        "cat/cut.png": _file(size=(64, 64))[:60],
        "dog/empty.jpg": b"",
        "dog/notes.txt": b"hello",
        "dog/deeper/1.png": _file(),
        "README.md": b"about",
    }
    hidden = {"cat/.hidden.png": b"", "__MACOSX/x/1.png": _file(), ".git/x.png": b""}
    data = _open(_write(tmp_path / "in", PAIR | bad | hidden), tmp_path)
    assert data.paths == ("cat/a.png", "cat/b.png", "dog/1.png")
    assert data.labels.tolist() == [0, 0, 1]
    assert data.examples[0, 0, 0].tolist() == [1, 2, 3]
    (warning,) = data.warnings
    assert warning.startswith("ignored 6 files") and warning.endswith(
        ": README.md, dog/deeper/1.png, dog/notes.txt, cat/broken.png, cat/cut.png, ..."
    )


@pytest.mark.parametrize("prefix", ["", "top/"])
def test_a_zip_is_the_same_as_its_folder(tmp_path, prefix):
    files = {prefix + name: content for name, content in PAIR.items()}
    files |= {"__MACOSX/cat/._a.png": b"", f"{prefix}LICENSE": b"text", f"{prefix}dog/x.png": b""}
    zipped = _open(_zip(tmp_path / "in.zip", files), tmp_path)
    folder = _open(_write(tmp_path / "in", PAIR | {"LICENSE": b"t", "dog/x.png": b""}), tmp_path)
    assert zipped.paths == ("cat/a.png", "cat/b.png", "dog/1.png")
    assert "ignored 2 files" in zipped.warnings[0] and zipped.digest == folder.digest
    for name in ("paths", "classes", "warnings"):
        assert getattr(zipped, name) == getattr(folder, name)


def test_a_class_without_readable_images_is_dropped_unless_classes_are_given(tmp_path):
    root = _write(tmp_path / "in", PAIR | {"bat/x.png": b"rubbish", "cow/y.txt": b""})
    natural = _open(root, tmp_path)
    assert natural.classes == ("cat", "dog") and natural.labels.tolist() == [0, 0, 1]
    assert natural.warnings[0] == "dropped 1 classes without a readable image: bat"
    assert "cow/y.txt" in natural.warnings[1]
    named = _open(root, tmp_path, classes=["dog", "cow", "eel", "bat", "cat"])
    assert named.classes == ("dog", "cow", "eel", "bat", "cat")
    assert named.labels.tolist() == [0, 4, 4]
    assert named.paths == ("dog/1.png", "cat/a.png", "cat/b.png")
    with pytest.raises(UserError, match="ant, dog: folder 'bat' is none of them"):
        _open(root, tmp_path, classes=["ant", "dog"])


WRONG = {
    "": "data-path is empty",
    "missing": "does not exist",
    "no.zip": "no folder and no zip file",
    "text.zip": "no <class>/<image>",
    "bad": "of 1 files none is an image .a/1.png",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_paths_are_one_line(tmp_path, name):
    (tmp_path / "no.zip").write_bytes(b"this is no zip")
    _zip(tmp_path / "text.zip", {"a/b.txt": b""})
    _write(tmp_path / "bad", {"a/1.png": b"x"})
    with pytest.raises(UserError, match=WRONG[name]) as caught:
        _open(name and str(tmp_path / name), tmp_path)
    assert "\n" not in str(caught.value)
    assert [p for p in (tmp_path / "cache").glob("*") if p.suffix != ".lock"] == []


def test_a_daemon_decodes_many_images_in_order(tmp_path):
    """A node's ClientApp runs in a daemonic process, which may have no children."""
    folder, cache = tmp_path / "in", tmp_path / "cache"
    colours = [(k % 256, k // 256, 0) for k in range(600)]
    _write(folder, {f"a/{k:03}.png": _file(colour=one) for k, one in enumerate(colours)})
    _write(folder, {"a/004.png": b"rubbish", "b/1.png": _file()})
    daemon = get_context("spawn").Process(
        target=open_dataset, args=("image-folder",), daemon=True,
        kwargs={"data_path": str(folder), "cache_dir": cache, "image_size": 16},
    )  # fmt: skip
    daemon.start()
    daemon.join(120)
    (entry,) = [one for one in cache.iterdir() if one.is_dir()]
    data = _open(str(folder), tmp_path, image_size=16)
    assert daemon.exitcode == 0 and [one for one in cache.iterdir() if one.is_dir()] == [entry]
    assert data.examples[:-1, 3, 3].tolist() == [list(one) for one in colours if one[:2] != (4, 0)]


def test_what_only_calls_itself_a_png_is_not_handed_to_other_programs(tmp_path):
    """Pillow would run Ghostscript on this one."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert list(decode_all(tmp_path, ["a.png"], Inputs.image(8))) == [Decoded(None)]


def test_photographs_are_turned_as_their_exif_says(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0] = 250
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(pixels).save(buffer, "PNG", exif=exif)
    data = _open(_write(tmp_path / "in", {"a/1.png": buffer.getvalue(), **PAIR}), tmp_path)
    assert np.array_equal(data.examples[0], np.rot90(pixels, -1))
    assert data.notes == ("1 photographs were turned upright, as their EXIF says",)


LEVELS = {
    "splits": (("train/a", "train/b", "test/a", "test/b"), "",
               r"8 images lie one level deeper, as in train/a: give data-path=.*in/train$"),
    "beside others": (("Data/a", "Data/b", "Few"), "", r"4 images lie one level deeper, as in Data/a, "  # noqa: E501
                      r"and 2 images where they should be: give data-path=.*in/Data$"),
    "patients": (("ill/p", "ill/q", "well/r", "well/s"), "", "; if ill, well are the classes, put"),
    "too low": (("a", "b"), "a", r"2 images lie in the folder itself.*data-path=.*in, if it has"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEVELS)
def test_a_folder_of_another_level_is_named(tmp_path, case):
    folders, given, message = LEVELS[case]
    _write(tmp_path / "in", {f"{folder}/{k}.png": _file() for folder in folders for k in range(2)})
    with pytest.raises(UserError, match=message):
        _open(str(tmp_path / "in" / given), tmp_path)


def test_folders_of_sites_are_clients_in_a_zip_too(tmp_path):
    files = {f"{site}/{name}/{k}.png": _file(colour=(k, 0, 0))
             for site in ("Ward 1", "north") for name in ("ill", "well") for k in range(10)}  # fmt: skip  # noqa: E501
    root = _zip(tmp_path / "in.zip", files)
    data = _open(root, tmp_path)
    assert data.classes == ("ill", "well") and data.site_names == ("Ward-1", "north")
    assert np.bincount(data.sites).tolist() == [20, 20]
    assert data.notes[1] == "clients: 'Ward 1' is Ward-1"
    values = {"dataset": "image-folder", "data-path": root, "partition": "natural"}
    assert load_partition(build_config(values), 0)[1].ids == ("Ward-1", "north")


def scans(root, images):
    """Write half of the images as those of one class, and the others as those of another."""
    for k, image in enumerate(images):
        path = root / "ab"[2 * k // len(images)] / f"{k:02}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


@pytest.fixture
def folder(tmp_path):
    """A photograph and its middle in grey, ten of each class."""
    photo = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for name, picture in {"a": photo, "b": photo[:, :20, 0]}.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        for k in range(10):
            Image.fromarray(picture).save(tmp_path / "in" / name / f"{k}.png")
    return tmp_path / "in"


def test_scans_keep_their_values_and_are_of_one_depth(folder, tmp_path):
    values = RNG.integers(0, 65536, (4, 20, 20)).astype(np.uint16)
    scans(tmp_path / "own", values)
    data = _open(str(tmp_path / "own"), tmp_path, image_size=20)
    assert np.array_equal(data.examples[..., 0], values) and data.examples.dtype == np.float32
    assert data.inputs.shape == (3, 20, 20) and data.inputs.scan and not data.warnings
    assert f"8 bits, values {values.min()} to {values.max()} once resized: " in data.notes[0]
    assert load_inputs(data.inputs.dump()) == data.inputs
    scans(folder, values)
    with pytest.raises(UserError, match="'a/00.tif' has more than 8 bits, unlike images before"):
        _open(str(folder), tmp_path)


SCANS = {
    "signed": lambda a: a.astype(np.int32) - 1024,
    "float": lambda a: (a / 1000).astype(np.float32),
    "all 16 bits": lambda a: (a * 65).astype(np.uint16),
}


@pytest.mark.parametrize("case", SCANS)
def test_a_scan_is_prepared_by_its_own_range(tmp_path, case):
    values = RNG.integers(0, 1000, (40, 16, 16))
    values[:20] //= 4
    scans(tmp_path / "in", SCANS[case](values))
    data = _open(str(tmp_path / "in"), tmp_path, image_size=16)
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
    return load_model(model)[0]


def test_a_run_of_scans_takes_the_window_and_its_model_no_image_of_8_bits(folder, tmp_path):
    scans(tmp_path / "own", RNG.integers(0, 1000, (40, 16, 16)).astype(np.uint16))
    config = small(
        tmp_path, dataset="image-folder", data_path=str(tmp_path / "own"), image_size=16,
        clients=2, rounds=1, partition="iid", window="0,4095",
    )  # fmt: skip
    model = exported(config, tmp_path / "model")
    fitted = model.parts["preparation"]
    assert model.inputs.scan and (float(fitted.low), float(fitted.high)) == (0, 4095)
    with pytest.raises(UserError, match="a/0.png' has 8 bits, and the images of training have"):
        model.predict(folder)


@pytest.mark.parametrize("method", ["pfedes", "fedclassavg"])
def test_a_model_of_grey_images_predicts_files_of_any_size(folder, tmp_path, method):
    """Of methods that look at images: an extractor on grey ones, and views."""
    for path in folder.glob("*/*"):
        Image.open(path).convert("L").save(path)
    config = small(
        tmp_path, method=method, dataset="image-folder", data_path=str(folder),
        image_size="16x24", grey="true", clients=2, rounds=1, classes_per_client=1,
        models=["cnn-5"], augment="crop-flip",
    )  # fmt: skip
    assert exported(config, tmp_path / "model").inputs == Inputs.image((16, 24), grey=True)
    done = predict(tmp_path / "model", [folder], tmp_path / "out.csv")
    assert len(done.frame) == 20 and "squashed to 24 x 16" in done.warning

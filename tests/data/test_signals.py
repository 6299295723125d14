"""Signals out of NPZ files, also of strangers; and a user's own data of every kind."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from fedhet.config.load import build_config
from fedhet.data.cache import open_dataset
from fedhet.data.data_file import Reading
from fedhet.data.inputs import SIGNAL, TOKENS, Inputs, load_inputs
from fedhet.data.user_function import Data
from fedhet.errors import UserError
from fedhet.reading.npz import NpzFile
from fedhet.site.local_data import load_partition

X = np.arange(4 * 2 * 8, dtype=np.int16).reshape(4, 2, 8)
Y = np.array(["walk", "sit", "walk", "sit"])


@pytest.fixture
def opened(tmp_path):
    def open_(reading=Reading(), **arrays):  # noqa: B008
        path = tmp_path / "data.npz"
        if arrays:
            np.savez_compressed(path, **arrays)
        return open_dataset(
            "signals", data_path=str(path), reading=reading, cache_dir=tmp_path / "cache"
        )

    return open_


def test_windows_classes_and_clients(opened):
    site = Reading(site=("subject", "device"), scale=1000.0)
    data = opened(site, x=X, y=Y, subject=np.array(["s1", "s1", "s2", "s2"]), device=[0, 1, 0, 0])
    assert data.examples.dtype == np.int16 and np.array_equal(data.examples, X)
    assert data.classes == ("sit", "walk") and data.labels.tolist() == [1, 0, 1, 0]
    assert data.inputs == Inputs(SIGNAL, (2, 8), scale=1000.0)
    assert data.site_names == ("s1-0", "s1-1", "s2-0") and data.sites.tolist() == [0, 1, 2, 2]


def test_bytes_stay_short_and_wide_numbers_become_float32(opened):
    assert opened(x=X.astype(np.uint8), y=Y).examples.dtype == np.int16
    wide = opened(x=X.astype(np.int64) * 100_000, y=[0, 1, 0, 1])
    assert wide.examples.dtype == np.float32 and wide.examples.max() == 6_300_000


def array_bytes(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def lying(shape, dtype="<f4"):
    """A header that claims much and has nothing behind it."""
    file = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def hostile(tmp_path, method=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(tmp_path / "data.npz", "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


HOSTILE = {
    "pickle": (dict(x=X, y=np.array([{}] * 4, dtype=object)), "'y' holds Python objects, which"),
    "shape": (dict(x=X[0], y=Y), r"x is int16 of shape \(2, 8\), must be numbers \(n, chan"),
    "labels": (dict(x=X, y=Y[:3]), r"'y' has shape \(3,\), and x has 4 examples"),
    "infinite": (dict(x=np.full((4, 1, 3), np.inf), y=Y), r"x\[0\] is not finite"),
    "fortran": (dict(x=np.asfortranarray(X), y=Y), "'x' is stored column by column"),
    "long texts": (dict(x=X, y=np.array(["a" * 300] * 4)), "'y' is <U300, must be whole numbers"),
    "no y": (dict(x=X), "y: .*|dataset signals: .*has no column 'y'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_arrays_that_are_no_signals(tmp_path, opened, case):
    arrays, message = HOSTILE[case]
    hostile(tmp_path, **{name: array_bytes(array) for name, array in arrays.items()})
    with pytest.raises(UserError, match=message) as found:
        opened()
    assert "\n" not in str(found.value)


def header(text, version=1, claimed=0):
    """A header of any text, also of one that is not there."""
    length = (claimed or len(text)).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


def about(descr="'<f4'", shape="(4, 2, 8)"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


NO_HEADER = "'x' has no sound header"
BOMBS = {
    "a header of gigabytes": (header("", 2, 3 << 30), "'x' has a header of 3,221,225,472 bytes"),
    "no end": (header("{'descr': ("), NO_HEADER),
    "no key": (header("{[]: 1}"), NO_HEADER),
    "deep": (header(about(shape="-" * 3000 + "1")), NO_HEADER),
    "no type": (header(about("()")), NO_HEADER),
    "half a type": (header(about("('<f4',)")), NO_HEADER),
    "a side without an end": (header(about(shape="(" + "9" * 3000 + ", 2, 8)")), "'x' has "),
    "claims gigabytes": (lying((10**6, 64, 10**6)), "is too large: at most"),
    "many claims": (lying((10**12, 1, 1)), "is too large: at most"),
    "cut off": (lying((4, 2, 8)) + b"\0" * 100, "'x' is cut off"),
    "negative": (lying((4, -2, 8)), "a shape that no array has"),
    "no array": (b"hello", "no sound NPZ file"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_files_made_to_burst_memory(tmp_path, opened, case):
    content, message = BOMBS[case]
    hostile(tmp_path, x=content, y=array_bytes(Y))
    with pytest.raises(UserError, match=message):
        opened()


def test_texts_that_are_none_and_few_texts_in_many_bytes(tmp_path, opened):
    for code in (0x110000, 0xD800):
        raw = np.array(["a"] * 4)
        raw.view(np.uint32)[2] = code
        hostile(tmp_path, x=array_bytes(X), y=array_bytes(raw))
        with pytest.raises(UserError, match="'y' holds what is no text"):
            opened()
    swapped = Y.astype(Y.dtype.newbyteorder(">"))
    hostile(tmp_path, x=array_bytes(X), y=array_bytes(swapped))
    assert opened().classes == ("sit", "walk")
    many = np.full(300_000, "\U0001f600" * 200)  # a KB of the zip, 240 MB of characters
    hostile(tmp_path, y=array_bytes(many))
    tracemalloc.start()
    assert set(NpzFile(tmp_path / "data.npz").column("y", len(many))) == {many[0]}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20


def test_a_zip_of_another_method_and_no_zip(tmp_path, opened):
    hostile(tmp_path, zipfile.ZIP_LZMA, x=array_bytes(X), y=array_bytes(Y))
    with pytest.raises(UserError, match="'x' is compressed in a way that is not read"):
        opened()
    (tmp_path / "data.npz").write_bytes(b"no zip at all")
    with pytest.raises(UserError, match="no sound NPZ file"):
        opened()
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    data = bytearray((tmp_path / "data.npz").read_bytes())
    at = data.index(X.tobytes()[:16])
    data[at] ^= 1
    (tmp_path / "data.npz").write_bytes(data)
    with pytest.raises(UserError, match="no sound NPZ file"):
        opened()


# --- a user's own ------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Open what a function returns, as a data set of that name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def open_(returned, **keywords):
        name = f"own_kind_{len(made)}_{tmp_path.name.replace('-', '_')}"
        made.append(returned)
        (tmp_path / f"{name}.py").write_text("def load(data_path):\n    return RETURNED()\n")
        module = __import__(name)
        module.RETURNED = lambda: returned
        return open_dataset(f"{name}:load", cache_dir=tmp_path / "cache", **keywords)

    return open_


LABELS = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((4, 6, 6, 1), np.uint8),
        np.zeros((4, 6, 6), np.int64),
        np.full((4, 3, 6, 6), 255, np.uint8),
        np.zeros((4, 6, 6, 3), np.uint16),
    ],
)
def test_images_that_lose_nothing_by_it_become_uint8(load, images):
    data = load(Data(images, LABELS, ["a", "b"], kind="image"), image_size=16)
    assert data.examples.shape == (4, 16, 16, 3) and data.examples.dtype == np.uint8
    assert data.examples.max() == images.max()


def test_images_that_would_lose_are_refused_and_squashed_ones_named(load):
    scans = 256 * (np.zeros((4, 6, 6), np.uint16) + LABELS[:, None, None].astype(np.uint16))
    with pytest.raises(UserError, match=r"images are uint16\[4, 6, 6\] from 0 to 256, must be"):
        load(Data(scans, LABELS, "ab", kind="image"))
    found = load((np.zeros((4, 20, 60), np.uint8), LABELS, "ab"))
    assert found.warnings == ("4 images of other proportions were squashed to 32 x 32",)


def test_a_table_signals_and_tokens_of_ones_own(load):
    rows = load((np.array([[1.0, np.nan]] * 4), LABELS, "ab"))
    assert rows.inputs == Inputs.table(("0", "1")) and np.isnan(rows.examples[:, 1]).all()
    named = Data(rows.examples, LABELS, "ab", columns=["age", "sex"], categories={"sex": "fm"})
    assert load(named).inputs.shape == (4,)
    signals = load((np.zeros((4, 3, 9)), LABELS, "ab"))
    assert signals.inputs == Inputs(SIGNAL, (3, 9)) and signals.examples.dtype == np.float32
    with pytest.raises(UserError, match=r"int64\[4, 5\]: which of image, signal, table, tokens"):
        load((np.ones((4, 5), np.int64), LABELS, "ab"))
    words = Data(np.ones((4, 5), np.int64), LABELS, "ab", kind="tokens", vocabulary=9)
    assert load(words).inputs == Inputs(TOKENS, (5,), 9)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(np.ones((4, 5)), LABELS, "ab", kind="film"), "kind 'film' is unknown"),
        (Data(np.ones((4, 5)), LABELS, "ab", clients=[1, 2]), "2 clients, 4 labels"),
        (Data(np.full((4, 5), 9), LABELS, "ab", kind="tokens", vocabulary=9), "from 9 to 9, and"),
        (Data(np.ones((4, 5)), LABELS, "ab", columns=["x"]), r"numbers \(n, 1\), one for each"),
        (Data(np.full((4, 1), 2.0), LABELS, "ab", columns=["s"], categories={"s": "fm"}),
         "column 's' must hold places in its 2 categories"),
        (Data(np.full((4, 2, 3), np.nan), LABELS, "ab"), "example 0 is not finite"),
    ],
)  # fmt: skip
def test_own_data_that_are_not_what_they_say(load, data, message):
    with pytest.raises(UserError, match=message):
        load(data)


def test_classes_that_no_example_has_are_one_line(load):
    with pytest.raises(UserError, match="^classes: the data set has no example of the classes"):
        load((np.ones((4, 5)), LABELS, "abcd"), classes=("c", "d"))


def test_own_data_name_their_clients(load, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))
    found = load(Data(x, np.arange(40) % 2, "ab", clients=[f"h{k % 2}" for k in range(40)]))
    assert found.site_names == ("h0", "h1")
    name = sorted(p.stem for p in tmp_path.glob("own_kind_*.py"))[-1]
    config = build_config({"dataset": f"{name}:load", "partition": "natural", "models": ["mlp-5"]})
    assert load_partition(config, 0)[1].ids == ("h0", "h1")


# --- what crosses the wire ---------------------------------------------------------------------


def test_inputs_are_read_back_as_they_were_written():
    table = Inputs.table(("a", "s"), (("s", ("f", "m")),))
    for inputs in (Inputs.image(32), Inputs(SIGNAL, (6, 128), scale=10.0), table,
                   Inputs(TOKENS, (48,), 5000, ("text",))):  # fmt: skip
        assert load_inputs(inputs.text()) == inputs == load_inputs(inputs.dump())


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "[" * 100_000, '{"kind": "image"}', '{"kind": "film", "shape": [1]}',
        '{"kind": "signal", "shape": [1000000, 1000000]}', '{"kind": "signal", "shape": [-1, 5]}',
        '{"kind": "signal", "shape": [2, 5], "vocabulary": 7}', '{"kind": "tokens", "shape": [5]}',
        '{"kind": "tokens", "shape": [5], "vocabulary": 1e9}', '{"kind": "table", "shape": [9]}',
        '{"kind": "signal", "shape": [2, 5], "scale": 0}',
        '{"kind": "image", "shape": [3, true, 3]}',
        '{"kind": "table", "shape": [2], "columns": ["a"], "categories": [["b", []]]}',
        '{"kind": "signal", "shape": [2, 5], "more": 1}',
    ],
)  # fmt: skip
def test_a_strangers_inputs_are_not_believed(text):
    with pytest.raises(ValueError, match="inputs: "):
        load_inputs(text)

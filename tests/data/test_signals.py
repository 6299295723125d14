"""Signals out of NPZ files, also of strangers; and a user's own data of every kind."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedhet.data.cache import open_dataset
from fedhet.data.inputs import SIGNAL, TOKENS, Inputs, Reading, load_inputs
from fedhet.data.sources import Data
from fedhet.errors import UserError

X = np.arange(4 * 2 * 8, dtype=np.int16).reshape(4, 2, 8)
Y = np.array(["walk", "sit", "walk", "sit"])


@pytest.fixture
def csv_of(opened):
    return lambda text, **reading: opened(text, Reading(**reading), "w.csv", "signals")


@pytest.fixture
def npz_of(opened, tmp_path):
    def open_(reading=Reading(), **arrays):  # noqa: B008
        if arrays:
            np.savez_compressed(tmp_path / "data.npz", **arrays)
        return opened(None, reading, "data.npz", "signals")

    return open_


def test_windows_classes_and_clients(npz_of):
    site = Reading(site=("subject", "device"), scale=1000.0)
    data = npz_of(site, x=X, y=Y, subject=np.array(["s1", "s1", "s2", "s2"]), device=[0, 1, 0, 0])
    assert data.examples.dtype == np.int16 and np.array_equal(data.examples, X)
    assert data.classes == ("sit", "walk") and data.labels.tolist() == [1, 0, 1, 0]
    assert data.inputs == Inputs(SIGNAL, (2, 8), scale=1000.0)
    assert data.site_names == ("s1-0", "s1-1", "s2-0") and data.sites.tolist() == [0, 1, 2, 2]
    wide = npz_of(x=X.astype(np.int64) * 100_000, y=[0, 1, 0, 1])
    assert wide.examples.dtype == np.float32 and wide.examples.max() == 6_300_000


HOSTILE = {
    "pickle": (dict(x=X, y=np.array([{}] * 4, dtype=object)), "'y' holds Python objects"),
    "shape": (dict(x=X[0, 0], y=Y), r"x of shape \(8,\) is int16, must be numbers \(n, chan"),
    "labels": (dict(x=X, y=Y[:3]), r"'y' has shape \(3,\), and x has 4"),
    "no y": (dict(x=X), "target: .* has no column 'y'; it has x"),
    "no x": (dict(z=X, y=Y), "signals: .* has no column 'x'.*; it has z, y"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_arrays_that_are_no_signals(npz_of, case):
    arrays, message = HOSTILE[case]
    with pytest.raises(UserError, match=message):
        npz_of(**arrays)


def test_damage_is_named(tmp_path, npz_of, opened):
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    data = bytearray((tmp_path / "data.npz").read_bytes())
    data[data.index(X.tobytes()[:16])] ^= 1
    for damaged, message in ((b"PK\x03\x04 no zip", "not a valid NPZ"), (data, "'x' is damaged")):
        (tmp_path / "data.npz").write_bytes(damaged)
        with pytest.raises(UserError, match=message):
            npz_of()
    np.save(tmp_path / "data.npy", X)
    with pytest.raises(UserError, match="one NumPy array without labels: save windows as an NPZ"):
        opened(None, Reading(), "data.npy", "signals")


LABELLED = {
    "a column": dict(X=X, Y=Y[:, None]), "one-hot": dict(x=X, y=np.eye(2)[[1, 0, 1, 0]]),
    "bytes": dict(x=np.asfortranarray(X), y=Y.astype("S")),
    "floats": dict(x=X, label=[1.0, 0.0, 1.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELLED)
def test_labels_and_arrays_as_people_keep_them(npz_of, case, monkeypatch):
    monkeypatch.setattr("fedhet.data.table._CHUNK", 3)
    data = npz_of(**LABELLED[case])
    assert np.array_equal(data.examples, X) and data.labels.tolist() == [1, 0, 1, 0]


LONG = np.arange(4 * 32 * 2, dtype=np.float32).reshape(4, 32, 2)


def test_time_comes_first_where_that_axis_is_much_longer(npz_of):
    guessed = npz_of(x=LONG, y=Y)
    assert np.array_equal(guessed.examples, LONG.transpose(0, 2, 1))
    assert "is taken as 2 channels of 32 steps: axes=channels-time takes" in guessed.notes[1]
    asked = npz_of(Reading(axes="channels-time"), x=LONG, y=Y)
    assert np.array_equal(asked.examples, LONG) and len(asked.notes) == 1
    other = npz_of(Reading(axes="time-channels"), x=X, y=Y)
    assert np.array_equal(other.examples, X.transpose(0, 2, 1))
    assert npz_of(x=X[:, 0], y=Y).inputs.shape == (1, 8)


def test_windows_with_gaps_and_without_label_are_left_out(npz_of):
    x = X.astype(np.float32)
    x[1, 0, 3], x[2, 1, 0] = np.nan, np.inf
    data = npz_of(Reading(site=("who",)), x=x, y=Y, who=["a", "a", "b", "b"])
    assert np.array_equal(data.examples, X[[0, 3]]) and data.sites.tolist() == [0, 1]
    assert "2 of 4 rows; 2 rows with gaps in the window are left out" in data.notes[0]
    assert len(npz_of(x=X, y=np.array(["walk", "", "sit", "?"])).labels) == 2


def test_a_csv_of_one_row_a_window(csv_of):
    rows = "".join(f"{k},{k + 1},{9 - k},{k * k},{k % 2},p{k % 3}\n" for k in range(6))
    text = "x1,x2,y1,y2,label,who\n" + rows
    one = csv_of(text, target="label", site=("who",))
    assert one.inputs.shape == (1, 4) and one.examples[2, 0].tolist() == [2, 3, 7, 4]
    two = csv_of(text, target="label", site=("who",), channels=("x", "y"))
    assert two.inputs.shape == (2, 2) and two.examples[2].tolist() == [[2, 3], [7, 4]]
    assert two.site_names == ("p0", "p1", "p2")
    with pytest.raises(UserError, match="channels: .* columns: {'x': 2, 'y1': 1}"):
        csv_of(text, target="label", site=("who",), channels=("x", "y1"))


def test_a_csv_of_one_row_a_step(csv_of):
    steps = [(w, t) for w in range(6) for t in range(4)]
    text = "who,t,a,b,do\n" + "".join(
        f"p{w % 2},{t},{w * 10 + t},{-t},{'ws'[w % 2]}\n" for w, t in steps
    )
    data = csv_of(text, target="do", site=("who",), time="t")
    assert data.inputs.shape == (2, 4) and len(data.labels) == 6
    assert data.examples[1].tolist() == [[10, 11, 12, 13], [0, -1, -2, -3]]
    assert data.labels.tolist() == [1, 0] * 3 and "6 windows of 4 steps, " in data.notes[1]


def test_recordings_are_cut_into_windows(csv_of):
    rows = "".join(f"{t},{t},{'ws'[t >= 25]}\n" for t in range(42))
    data = csv_of("t,a,do\n" + rows, target="do", time="t", length=10)
    assert data.labels.tolist() == [1, 1, 0] and data.examples[2, 0, 0] == 25
    assert "cut into 3 windows of 10 steps (length), 12 steps left" in data.notes[1]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Open what a function returns, as a data set of that name."""
    names = (f"own_kind_{k}" for k in range(9))

    def open_(returned, **keywords):
        monkeypatch.setitem(
            sys.modules, name := next(names), SimpleNamespace(load=lambda data_path: returned)
        )
        return open_dataset(f"{name}:load", cache_dir=tmp_path / "cache", **keywords)

    return open_


LABELS = np.array([0, 1, 0, 1])


def test_images_become_uint8_or_are_refused_where_they_would_lose(load):
    for images in (np.zeros((4, 6, 6), np.int64), np.full((4, 3, 6, 6), 255, np.uint8)):
        data = load(Data(images, LABELS, ["a", "b"], kind="image"), image_size=16)
        assert data.examples.shape == (4, 16, 16, 3) and data.examples.dtype == np.uint8
        assert data.examples.max() == images.max()
    scans = 256 * (np.zeros((4, 6, 6), np.uint16) + LABELS[:, None, None].astype(np.uint16))
    with pytest.raises(UserError, match=r"images are uint16\[4, 6, 6\] from 0 to 256, must be"):
        load(Data(scans, LABELS, "ab", kind="image"))
    found = load((np.zeros((4, 20, 60), np.uint8), LABELS, "ab"))
    assert found.warnings == ("4 images of other proportions were squashed to 32 x 32",)


def test_a_table_and_tokens_of_ones_own(load):
    rows = load((np.array([[1.0, np.nan]] * 4), LABELS, "ab"))
    assert rows.inputs == Inputs.table(("0", "1")) and np.isnan(rows.examples[:, 1]).all()
    named = Data(rows.examples, LABELS, "ab", columns=["age", "sex"], categories={"sex": "fm"})
    assert load(named).inputs.shape == (4,)
    with pytest.raises(UserError, match=r"int64\[4, 5\].* one of image, signal, table, tokens"):
        load((np.ones((4, 5), np.int64), LABELS, "ab"))
    words = Data(np.ones((4, 5), np.int64), LABELS, "ab", kind="tokens", vocabulary=9)
    assert load(words).inputs == Inputs(TOKENS, (5,), 9)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(np.ones((4, 5)), LABELS, "ab", kind="film"), "kind 'film' is unknown"),
        (Data(np.ones((4, 5)), LABELS, "ab", clients=[1, 2]), "2 clients, 4 labels"),
        (Data(np.full((4, 5), 9), LABELS, "ab", kind="tokens", vocabulary=9), "from 9 to 9, and"),
        (Data(np.ones((4, 5)), LABELS, "ab", columns=["x"]), r"or NaN, \(n, 1\)"),
        (Data(np.full((4, 1), 2.0), LABELS, "ab", columns=["s"], categories={"s": "fm"}),
         "column 's' must hold places in 2 categories"),
        (Data(np.full((4, 2, 3), np.nan), LABELS, "ab"), "example 0 is not finite"),
    ],
)  # fmt: skip
def test_own_data_that_are_not_what_they_say(load, data, message):
    with pytest.raises(UserError, match=message):
        load(data)
    with pytest.raises(UserError, match="the data set has no example of the named classes"):
        load((np.ones((4, 5)), LABELS, "abcd"), classes=("c", "d"))


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{", "[" * 100_000, '{"kind": "image"}', '{"kind": "film", "shape": [1]}',
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

"""`hf:NAME` out of local copies: no test reaches the hub."""

import numpy as np
import pytest
from PIL import Image

from fedhet.data.inputs import Inputs, Reading
from fedhet.errors import UserError
from fedhet.site.local_data import load_local
from fedhet.testing import small

datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
pytest.importorskip("flwr_datasets", reason="the extra `hf` is not installed")


NAME = "hf:my/data"


def pictures(count=12):
    rng = np.random.default_rng(0)
    grey = [Image.fromarray(rng.integers(0, 255, (20, 20), dtype=np.uint8)) for _ in range(count)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"]),
         "who": datasets.Value("string")}
    )  # fmt: skip
    rows = {"image": grey, "label": [k % 2 for k in range(count)], "who": ["a", "b", "c"] * 4}
    return datasets.Dataset.from_dict(rows, features=features), grey


def test_images_with_class_labels_and_clients(tmp_path, opened):
    data, grey = pictures()
    data.save_to_disk(str(tmp_path / "copy"))
    found = opened(None, Reading(site=("who",)), "copy", NAME, image_size=20)
    assert found.inputs == Inputs.image(20) and found.classes == ("cat", "dog")
    assert np.array_equal(found.examples[3][..., 1], np.asarray(grey[3]))
    assert found.labels.tolist() == [0, 1] * 6 and found.site_names == ("a", "b", "c")


def test_splits_of_a_saved_dict(tmp_path, opened):
    data, _ = pictures()
    parts = {"train": data.select(range(8)), "test": data.select(range(8, 12))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "copy"))
    assert len(opened(None, Reading(), "copy", NAME).labels) == 8
    assert len(opened(None, Reading(), "copy", f"{NAME} split=train+test").labels) == 12
    with pytest.raises(UserError, match="cannot be loaded from .*copy: KeyError: 'valid'"):
        opened(None, Reading(), "copy", f"{NAME} split=valid")
    with pytest.raises(UserError, match="cannot be loaded from .*: .*data-path=FOLDER names a loc"):
        opened(None, Reading(), "nowhere", NAME)


ROWS = {
    "age": [40, None, 42.5, 43], "sex": ["m", "f", None, "f"], "ill": ["no", "yes", "no", "yes"],
    "text": ["Oil up", "oil", "goal", None], "ward": ["a", "a", "b", "b"],
}  # fmt: skip


def test_a_folder_of_parquet_files_as_a_table_and_as_texts(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "copy").mkdir()
    datasets.Dataset.from_dict(ROWS).to_parquet(str(tmp_path / "copy" / "train.parquet"))
    reading = Reading(target="ill", site=("ward",), ignore=("text",), categories=(("sex", ()),))
    table = opened(None, reading, "copy", NAME)
    nan = np.nan
    expected = np.array([[40, 0], [nan, 1], [42.5, nan], [43, 1]], np.float32)
    assert np.array_equal(table.examples, expected, equal_nan=True)
    assert table.classes == ("no", "yes") and table.site_names == ("a", "b")
    reading = Reading(target="ill", text="text", length=3, vocabulary=60)
    texts = opened(None, reading, "copy", NAME)
    assert texts.examples[0, 0] == texts.examples[1, 0] > 0 and texts.inputs.shape == (3,)


WRONG = [
    ("hf:a/b splits=train", Reading(), "must be written hf:NAME"),
    ("hf:a/b", Reading(), "target: '' is not allowed: .* has 0 columns of class labels"),
    ("hf:a/b", Reading(target="il"), "target: .* has no column 'il' .did you mean 'ill'"),
]


@pytest.mark.parametrize(("name", "reading", "message"), WRONG)
def test_what_is_wrong_is_one_line(tmp_path, opened, name, reading, message):
    datasets.Dataset.from_dict(ROWS).save_to_disk(str(tmp_path / "copy"))
    with pytest.raises(UserError, match=message) as found:
        opened(None, reading, "copy", name)
    assert "\n" not in str(found.value)


def test_a_node_downloads_nothing(tmp_path):
    config = small(tmp_path, dataset="hf:own/rows", target="y", models=["mlp-5"])
    with pytest.raises(UserError, match="a node does not download data"):
        load_local(config, {"partition-id": 0, "num-partitions": 2}, simulated=False)

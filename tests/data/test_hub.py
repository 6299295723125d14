"""`hf:NAME` out of local copies, and the partitioners of flwr-datasets: no test reaches the hub."""

import sys

import numpy as np
import pytest
from helpers.partitions import partition
from PIL import Image

from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs, Reading
from fedhet.engines.session import resolve_clients
from fedhet.errors import UserError
from fedhet.site.local_data import load_local, load_partition
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
    with pytest.raises(UserError, match="cannot be loaded: KeyError: 'valid'"):
        opened(None, Reading(), "copy", f"{NAME} split=valid")
    with pytest.raises(UserError, match="cannot be loaded: .*data-path=FOLDER names a loc"):
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
    expected = [[40, 0], [np.nan, 1], [42.5, np.nan], [43, 1]]
    assert np.array_equal(table.examples, expected, equal_nan=True)
    assert table.classes == ("no", "yes") and table.site_names == ("a", "b")
    reading = Reading(target="ill", text="text", length=3, vocabulary=60)
    texts = opened(None, reading, "copy", NAME)
    assert texts.examples[0, 0] == texts.examples[1, 0] > 0 and texts.inputs.shape == (3,)


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("hf:a/b splits=train", "", "must be hf:NAME"),
        ("hf:a/b", "", "target: dataset 'hf:a/b' needs it: one of age, sex, ill"),
        ("hf:a/b", "il", "target: .* has no column 'il' .did you mean 'ill'"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, opened, name, target, message):
    datasets.Dataset.from_dict(ROWS).save_to_disk(str(tmp_path / "copy"))
    with pytest.raises(UserError, match=message):
        opened(None, Reading(target=target), "copy", name)


def test_a_node_downloads_nothing(tmp_path):
    config = small(tmp_path, dataset="hf:own/rows", target="y", models=["mlp-5"])
    with pytest.raises(UserError, match="a node does not download data"):
        load_local(config, {"partition-id": 0, "num-partitions": 2}, simulated=False)


# --- partitioners of flwr-datasets ---

LABELS = np.arange(600, dtype=np.int64) % 3
NAMES = ("a", "b", "c")


def made(kind, clients=4, **keys):
    return partition(LABELS, f"flwr:{kind}", clients, names=NAMES, **keys)


def held(parts):
    return [np.sort(np.concatenate([c.train, c.val, c.test])).tolist() for c in parts.clients]


@pytest.mark.parametrize(
    "kind",
    [
        "IidPartitioner", "PathologicalPartitioner num_classes_per_partition=2",
        "SizePartitioner partition_sizes=[300,100,150,50]",
        "InnerDirichletPartitioner partition_sizes='[100, 90, 80, 70]' alpha=1.0",
        "ContinuousPartitioner strictness=0.5",
    ],
)  # fmt: skip
def test_everything_goes_to_one_client_and_the_same_again(kind):
    first = made(kind)
    everybody = sum(held(first), [])
    assert first.ids == ("0", "1", "2", "3") and len(set(everybody)) == len(everybody) <= 600
    assert held(made(kind)) == held(first) and all(len(one.train) for one in first.clients)


def test_it_is_the_partitioners_own_deal():
    from flwr_datasets.partitioner import DirichletPartitioner

    own = DirichletPartitioner(num_partitions=4, partition_by="label", alpha=0.3, seed=5)
    own.dataset = datasets.Dataset.from_dict({"label": LABELS, "index": range(600)})
    expected = [sorted(own.load_partition(k)["index"]) for k in range(4)]
    assert held(made("DirichletPartitioner alpha=0.3", seed=5)) == expected
    assert held(made("DirichletPartitioner alpha=0.3", seed=6)) != expected
    assert held(made("DirichletPartitioner alpha=0.3 seed=5", seed=6)) == expected


def test_by_the_datas_own_clients():
    sites = {"sites": np.arange(600, dtype=np.int32) // 200, "site_names": ("x", "y", "z")}
    natural = made("NaturalIdPartitioner partition_by=site", 0, **sites)
    assert held(natural) == [list(range(k * 200, (k + 1) * 200)) for k in range(3)]
    with pytest.raises(UserError, match=r"clients 7 is not allowed: 'flwr:Nat.*' makes 3"):
        made("NaturalIdPartitioner partition_by=site", 7, **sites)


REFUSED = {
    "DirichletPartitoner alpha=1": "no 'DirichletPartitoner' .*did you mean 'DirichletPartitioner'",
    "DirichletPartitioner": "required positional argument: 'alpha'; it takes .*alpha",
    "DirichletPartitioner alfa=1": "unexpected keyword argument 'alfa'",
    "DirichletPartitioner alpha=1 self_balancing=no": "self_balancing=no is not allowed: true or",
    "DirichletPartitioner alpha=[": "must be flwr:CLASS .*not valid YAML",
    "NaturalIdPartitioner partition_by=site": "cannot be made: ",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_does_not_take_is_one_line(kind):
    with pytest.raises(UserError, match=REFUSED[kind]) as found:
        made(kind)
    assert "\n" not in str(found.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(UserError, match=r"needs pip install 'fedhet\[hf\]'"):
        made("IidPartitioner")


def test_keys_and_their_number_of_clients():
    sizes = build_config({"partition": "flwr:SizePartitioner partition_sizes=[900,500,300]"})
    assert resolve_clients(sizes).clients == 3 == len(load_partition(sizes, 0)[1].ids)
    assert resolve_clients(build_config({"partition": "flwr:IidPartitioner"})).clients == 10

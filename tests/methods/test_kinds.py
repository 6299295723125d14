"""Methods on signals, tables and tokens: what differs from images, and the products."""

import numpy as np
import pytest
import torch
from helpers.patched import forgotten
from helpers.products import ANY, short
from helpers.seeded import seeded

from fedhet.clients.base import PREPARATION
from fedhet.config.load import build_config
from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.data.preparation import preparation
from fedhet.errors import UserError
from fedhet.models.names import MODELS, SMALLEST, TORCHVISION_NAMES
from fedhet.testing import make_client, simulate, small

KINDS = (IMAGE, SIGNAL, TABLE, TOKENS)
SORTS = {  # of each kind: those left out are of other widths or depths
    IMAGE: ("cnn-5", *TORCHVISION_NAMES),
    SIGNAL: ("conv1d-5", "lstm", "gru", "inception-time"),
    TABLE: ("mlp-5", "resnet-table", "ft-transformer"),
    TOKENS: ("fasttext", "textcnn", "bilstm", "gru", "transformer-1"),
}
SHARED = ("fedmrl", "fml", "fedkd", "fedapen", "fedavg", "pfedafm", "pfedmoe")


@pytest.fixture(autouse=True)
def _forget():
    with forgotten():
        yield


def keys(method, kind, **changes):
    values = {
        "method": method, "dataset": dataset(kind, 120), "batch_size": 8, "partition": "iid",
        "representation": 16, "start_timeout": 5,
    }  # fmt: skip
    return values | short(method) | changes


def dataset(kind, count):
    return f"synthetic:{count}x3" if kind == IMAGE else seeded(kind, count)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ANY)
def test_every_method_trains_every_kind(tmp_path, method, kind):
    """One client of every sort of network, side by side; five methods: tests/test_same_bytes.py."""
    models = SORTS[kind]
    changes = {"models": list(models), "clients": len(models), "rounds": 1}
    changes["dataset"] = dataset(kind, 30 * len(models))
    if method == "pfedes" and kind == TOKENS:
        with pytest.raises(UserError, match="method: 'pfedes' is not allowed with dataset=.*word"):
            small(tmp_path, **keys(method, kind, **changes))
        return
    folder, _ = simulate(small(tmp_path, **keys(method, kind, **changes)))
    (record,) = folder.read_rounds()
    assert record["replied"] == len(models) and not record["failures"]


def test_the_small_model_is_the_smallest_of_the_kind(tmp_path):
    for kind, smallest in ((SIGNAL, "Conv1d"), (TABLE, "MLP"), (TOKENS, "TokenModel")):
        for method in SHARED:
            config = small(tmp_path, **keys(method, kind, models=[MODELS[kind][1]]))
            client = make_client(config, 0, tmp_path)
            shared = client.modules.get("student") or client.shared()
            assert type(shared).__name__ == smallest, method


def test_small_model_is_a_key_of_those_that_share_one(tmp_path):
    chosen = keys("fml", TABLE, models=["mlp-1"], small_model="mlp-3")
    client = make_client(small(tmp_path, **chosen), 0, tmp_path)
    assert [layer.out_features for layer in client.shared().layers] == [256, 16]
    of_images = {"models": ["shufflenet_v2_x0_5"], "small_model": "cnn-4", "image_size": 16}
    client = make_client(small(tmp_path, method="fml", **of_images), 0, tmp_path)
    assert client.shared().fc1.out_features == 800
    with pytest.raises(UserError, match="small-model: 'mlp-3' has no effect: method=fedssa"):
        small(tmp_path, **keys("fedssa", TABLE, models=["mlp-1"], small_model="mlp-3"))
    with pytest.raises(UserError, match="model 'cnn-1' is for images; this run's examples are"):
        small(tmp_path, **keys("fml", TABLE, models=["mlp-1"], small_model="cnn-1"))


def test_other_peoples_models_need_a_word_on_the_small_one():
    for method in SHARED:
        values = {"method": method, "models": ["tiny_net:make"]}
        with pytest.raises(UserError, match=f"small-model: .*method={method} shares a small model"):
            build_config(values)
        build_config(values | {"small-model": SMALLEST["image"]})
    build_config({"method": "fedssa", "models": ["tiny_net:make"]})


# --- preparation -------------------------------------------------------------------------------


def test_a_client_is_prepared_by_its_own_train_split_alone(tmp_path):
    config = small(tmp_path, **keys("fedssa", SIGNAL, models=["conv1d-5"]))
    client = make_client(config, 1, tmp_path)
    data = client.setup.data
    own = np.array(data.dataset.examples[data.split.train], dtype=np.float64)
    fitted = client.modules[PREPARATION]
    assert np.allclose(fitted.mean[:, 0], own.mean(axis=(0, 2)), atol=1e-5)
    assert np.allclose(fitted.deviation[:, 0], own.std(axis=(0, 2)), atol=1e-5)
    inputs, _ = client.examples("train").batch(torch.arange(len(own)))
    assert inputs.mean().abs() < 1e-5 and abs(inputs.std().item() - 1) < 0.02
    sent = client.upload().to_ndarrays()
    assert not any(array.size == fitted.mean.numel() for array in sent)


def test_a_table_without_a_word_on_gaps():
    """Numbers by hand: median for a gap, a column that says so, one-hot categories."""
    inputs = Inputs.table(("a", "kind"), (("kind", ("x", "y", "z")),))
    module = preparation(inputs)
    train = torch.tensor([[1.0, 0.0], [3.0, 1.0], [float("nan"), 2.0], [100.0, float("nan")]])
    module.fit(train)
    filled = np.array([1.0, 3.0, 3.0, 100.0])  # torch's median: the lower one of an even number
    assert module.median.item() == 3.0
    numbers = (filled - filled.mean()) / filled.std()
    expected = np.column_stack([numbers, [0, 0, 1, 0], np.vstack([np.eye(3), np.zeros(3)])])
    assert np.allclose(module(train), expected, atol=1e-6)


@pytest.mark.parametrize("method", ANY)
def test_a_client_with_one_example_trains_networks_with_batchnorm(tmp_path, method):
    """Of its two rows one is test; a batch of one has no variance."""
    draw = np.random.default_rng(0)
    rows = [
        f"{'abbbb'[k % 5]},{draw.normal():.2f},{k % 2}" for k in range(40) if k % 5 or k in (0, 10)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *rows]) + "\n")
    values = keys(method, TABLE, models=["resnet-table"], rounds=1, partition="natural", clients=2)
    values |= {"dataset": "table", "data_path": str(tmp_path / "t.csv"), "site": "site",
               "target": "y", "split": (1, 0, 1)}  # fmt: skip
    folder, _ = simulate(small(tmp_path, **values))
    (record,) = folder.read_rounds()
    assert record["replied"] == 2 and not record["failures"]

"""The partitioners of flwr-datasets by name, on whatever data."""

import numpy as np
import pytest
from helpers.partitions import partition

from fedhet.config.load import build_config
from fedhet.engines.session import resolve_clients
from fedhet.errors import UserError
from fedhet.site.local_data import load_partition

pytest.importorskip("flwr_datasets", reason="the extra `hf` is not installed")
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
    everybody = sorted(index for mine in held(first) for index in mine)
    assert first.ids == ("0", "1", "2", "3") and len(set(everybody)) == len(everybody) <= 600
    assert held(made(kind)) == held(first)
    assert all(len(client.train) for client in first.clients)


def test_it_is_the_partitioners_own_deal():
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    own = DirichletPartitioner(num_partitions=4, partition_by="label", alpha=0.3, seed=5)
    own.dataset = Dataset.from_dict({"label": LABELS, "index": range(600)})
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


WRONG = {
    "DirichletPartitoner alpha=1": "no 'DirichletPartitoner' .*did you mean 'DirichletPartitioner'",
    "DirichletPartitioner": "missing a required argument: 'alpha'; it takes .*alpha",
    "DirichletPartitioner alfa=1": "unexpected keyword argument 'alfa'",
    "DirichletPartitioner alpha=1 self_balancing=no": "self_balancing=no is not allowed: true or",
    "DirichletPartitioner alpha=[": "must be written flwr:CLASS .*not valid YAML",
    "DirichletPartitioner alpha=1 num_partitions=3": "num_partitions: write clients=3",
    "NaturalIdPartitioner partition_by=site": "cannot be made: ",
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_it_does_not_take_is_one_line(kind):
    with pytest.raises(UserError, match=WRONG[kind]) as found:
        made(kind)
    assert "\n" not in str(found.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets.partitioner", None)
    with pytest.raises(UserError, match=r"needs flwr-datasets: pip install 'fedhet\[hf\]'"):
        made("IidPartitioner")


def test_keys_and_their_number_of_clients():
    sizes = build_config({"partition": "flwr:SizePartitioner partition_sizes=[900,500,300]"})
    assert resolve_clients(sizes).clients == 3 == len(load_partition(sizes, 0)[1].ids)
    assert resolve_clients(build_config({"partition": "flwr:IidPartitioner"})).clients == 10

"""The state store: generations, crashes, damage."""

from functools import partial
from unittest.mock import Mock

import pytest
import torch
from helpers.patched import forgotten
from torch import nn

from fedhet.errors import Refused
from fedhet.rng import torch_seeded
from fedhet.site import state
from fedhet.site.state import FileStore


def bundle(value: float) -> dict[str, torch.Tensor]:
    return {
        "model/weight": torch.full((2, 3), value),
        "model/count": torch.tensor(int(value)),  # 0-d, as BatchNorm's num_batches_tracked
        "metrics/test_accuracy": torch.tensor(value, dtype=torch.float64),
    }


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "x" / "0", sync=False)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def kept(store):
    return store.generations(), store.generations(".aside")


def test_what_a_servers_word_undoes_is_set_aside_until_a_later_round_is_accepted(store):
    store.save(1, 0, bundle(1))
    store.save(2, 1, bundle(2))
    third = store.save(3, 2, bundle(3))
    store.save(4, 2, bundle(4))  # the server says that 3 was never accepted
    assert kept(store) == ([2, 4], [3])
    for _ in range(3):  # again and again: no disk fills up, and what was there first stays
        store.save(4, 2, bundle(40))
        store.save(5, 2, bundle(50))
        assert kept(store) == ([2, 5], [3]) and same(store.load(3, third), bundle(3))
    store.save(6, 5, bundle(6))  # 5 was accepted
    assert kept(store) == ([5, 6], [])


def test_a_rollback_that_is_cut_off_loses_nothing(tmp_path, monkeypatch):
    store = FileStore(tmp_path, sync=False)
    store.save(1, 0, bundle(1))
    second = store.save(2, 1, bundle(2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fedhet.site.state.save_file", Mock(side_effect=KeyboardInterrupt))
        store.save(3, 1, bundle(3))
    assert kept(store) == ([1], [2]) and same(store.load(2, second), bundle(2))
    store.save(3, 1, bundle(3))
    assert kept(store) == ([1, 3], [2]) and same(store.load(2, second), bundle(2))


def test_a_crash_between_write_and_rename_leaves_the_previous_generation(tmp_path, monkeypatch):
    store = FileStore(tmp_path, sync=True)
    store.save(1, 0, bundle(1))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pathlib.Path.replace", Mock(side_effect=KeyboardInterrupt))
        store.save(2, 1, bundle(2))
    assert same(store.load(1), bundle(1))
    with pytest.raises(Refused):
        store.load(2)
    store.save(2, 1, bundle(2))
    assert {p.name for p in tmp_path.iterdir()} == {f"0000000{k}.safetensors" for k in (1, 2)}


class Counting(nn.Module):
    """A layer with two buffers that no state keeps: a constant, and one drawn for a client."""

    def __init__(self, drawn: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        if drawn:
            self.register_buffer("noise", torch.rand(3), persistent=False)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_no_buffer_passes_from_one_client_to_the_next(drawn, fresh):
    def build(client, purpose):
        with torch_seeded(0, purpose, client):
            return {"net": Counting(drawn)}

    with forgotten():
        cpu, second = torch.device("cpu"), partial(build, "1")
        modules, _ = state.instance("net", partial(build, "0"), cpu, fresh=True)
        modules["net"].seen += 7
        again, _ = state.instance("net", second, cpu, fresh=fresh)
        assert again["net"] is modules["net"] and float(again["net"].seen) == 0
        assert not drawn or torch.equal(again["net"].noise, second("init")["net"].noise)

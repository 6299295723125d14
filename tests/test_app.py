"""``fedhet.ClientApp`` and ``fedhet.ServerApp``: the methods in a Flower app of one's own."""

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedhet
from fedhet.config.registry import METHODS
from fedhet.engines.grid import Inline
from fedhet.engines.launch import FIRST_NODE, contexts_of, one_run
from fedhet.errors import Damaged
from fedhet.plugins import is_given, name_of
from fedhet.protocol.flower import simulating
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.rng import torch_seeded


@pytest.fixture(autouse=True)
def _limit(monkeypatch):
    """Put back what a ServerApp sets for the rest of its process."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


class Net(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 24), nn.Linear(24, classes)

    def forward(self, x):
        return self.b(self.a(x).relu())


class Wide(Net):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.a, self.b = nn.Linear(8, 48), nn.Linear(48, classes)


class Mine(Net):
    """Of no module that could be imported, as what a notebook defines."""

    __module__ = "__main__"


def load(context: Context):
    """Return a node's own rows: labels are places in the run's `classes`."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    y = rng.integers(0, 2, 60)
    return (rng.normal(size=(60, 4)) + y[:, None]).astype("float32"), y


class WithFlowersCall(Inline):
    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def grid_of(client, nodes: int) -> Inline:
    """Return a grid whose nodes answer by an app in this process."""
    contexts = contexts_of("", nodes)

    def answer(message):
        try:
            return client(message, contexts[message.metadata.dst_node_id])
        except ValueError as error:  # no handler: Flower makes an error reply of it
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    return WithFlowersCall(answer, nodes)


def federate(client, server, nodes: int = 3, **run_config) -> dict:
    """Run both doors in this process; return the summary of the newest run."""
    with one_run(), simulating():
        server(grid_of(client, nodes), Context(1, 0, {}, RecordDict(), run_config, series_id=0))
    newest = max(Path(run_config["out"]).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return json.loads((newest / "summary.json").read_text()) | {"folder": newest}


KEYS = {
    "clients": 3, "rounds": 2, "classes": ["ill", "well"], "representation": 24, "local_epochs": 1,
    "batch_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [{"method": "fedssa"}, {"method": "fedmrl", "d1": 8, "small_model": Mine},
     {"method": METHODS["fedproto"]},
     {"method": "fedssa", "secure_sum": "masked", "max_images": 1000}],
)  # fmt: skip
def test_an_app_of_ones_own_runs_any_method_also_with_masks(tmp_path, keys):
    client = fedhet.ClientApp(models=[Mine, Wide], data=load, small_model=Mine)
    summary = federate(client, fedhet.ServerApp(**KEYS, **keys), out=str(tmp_path))
    assert summary["status"] == "completed" and summary["failures"] == []
    assert summary["test_accuracy_mean"] is not None
    run = fedhet.load_run(summary["folder"], models=[Mine, Wide])
    assert run.config["classes"] == ["ill", "well"] and run.config["dataset"] == "app:data"
    assert run.config["partition"] == "natural" and "engine" not in run.config
    assert run.config["models"] == [*map(name_of, (Mine, Wide, Mine))] and is_given(name_of(Mine))
    assert run.model("0").classes == ("ill", "well")
    assert "INFO: round 2/2" in (run.path / "log.txt").read_text()
    with pytest.raises(fedhet.UserError, match="give its ServerApp resume="):
        fedhet.resume(summary["folder"], rounds=3)


def snippet(name: str) -> dict:
    """Return the names that a snippet of the how-to defines."""
    page = (Path(__file__).resolve().parents[1] / "docs/how-to/flower-app.md").read_text()
    names: dict = {}
    exec(page.partition(f"```python {name}\n")[2].partition("```")[0], names)
    return names


def test_flowers_fedavg_averages_the_headers_of_our_clients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = snippet("client_app.py")
    grid = grid_of(page["app"], 3)
    start = page["mine"](contexts_of("", 1)[FIRST_NODE]).get_parameters({})
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
    result = strategy.start(grid, ArrayRecord(start), num_rounds=2)
    clients = [page["mine"](contexts_of("", 3)[FIRST_NODE + k]) for k in range(3)]
    sent = [client.get_parameters({}) for client in clients]
    shares = np.array([len(c.setup.data.split.train) for c in clients], dtype=float)
    header = result.arrays.to_numpy_ndarrays()
    for place, array in enumerate(header):
        mean = np.tensordot(shares / shares.sum(), np.stack([s[place] for s in sent]), axes=1)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-6)
    assert not np.allclose(header[0], start[0])
    assert {len(c.setup.store.generations()) for c in clients} == {2}  # rounds 1 and 2
    loss, count, metrics = clients[0].evaluate(header, {})
    assert count == len(clients[0].setup.data.split.test)
    assert loss == metrics["test_log_loss"] > 0
    assert np.array_equal(clients[0].model.head.weight.detach(), header[0])


def test_our_strategy_runs_with_clients_that_know_its_payload_alone(tmp_path):
    plain = snippet("plain_client.py")["plain"]
    keys = KEYS | {"method": "fedssa", "evaluate_every": 2}
    summary = federate(plain, fedhet.ServerApp(**keys), out=str(tmp_path))
    assert summary["failures"] == [] and summary["clients"] == 3
    arrays = load_checkpoint(RunFolder(summary["folder"]).checkpoint).arrays
    with torch_seeded(0, "global"):
        start = nn.Linear(24, 2).weight.detach().numpy()
    np.testing.assert_allclose(arrays["header.weight"], start + 1.0, rtol=1e-5)  # 0.5 a round


def test_the_run_config_replaces_arguments_and_a_run_is_resumed(tmp_path):
    client = fedhet.ClientApp(models=[Net, Net, Wide], data=load)
    server = fedhet.ServerApp(method="fedssa", **KEYS)
    words = {"out": str(tmp_path), "num-server-rounds": 9, "seed": 4}
    whole = federate(client, server, **words)
    cut = federate(client, server, rounds=1, **words)
    models = fedhet.load_run(whole["folder"]).clients.groupby("client")["model"].first()
    assert [name.split(":")[1] for name in models] == ["Net", "Net", "Wide"]
    assert (whole["rounds"], cut["rounds"], cut["seed"]) == (2, 1, 4)
    again = federate(client, server, resume=str(cut["folder"]), rounds=2, **words)
    assert again["run_sha256"] == whole["run_sha256"] != cut["run_sha256"]
    config = fedhet.load_run(cut["folder"]).config
    assert config["rounds"] == 2 and config["models"] == [*map(name_of, [Net, Net, Wide])]


def test_a_mistake_is_a_line_without_flowers_traceback():
    with pytest.raises(fedhet.UserError, match="rounds: '0' is not allowed") as error:
        federate(fedhet.ClientApp(models=Net, data=load), fedhet.ServerApp(**KEYS | {"rounds": 0}))
    assert len(traceback.format_exception(error.value)) == 1


def test_resume_goes_through_the_door_of_fedhet_resume(tmp_path, monkeypatch):
    client, server = fedhet.ClientApp(models=Net, data=load), fedhet.ServerApp(**KEYS)
    words = {"out": str(tmp_path), "rounds": 1}
    folder = federate(client, server, **words)["folder"]
    words |= {"resume": str(folder), "rounds": 2}
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
        with pytest.raises(fedhet.UserError, match="names code that would run as you: app:data"):
            federate(client, server, **words)
    lines = (folder / "rounds.jsonl").read_bytes()
    (folder / "rounds.jsonl").write_bytes(lines.replace(b"accuracy_mean", b"accuracy_Mean"))
    with pytest.raises(Damaged):
        federate(client, server, **words)


def test_a_node_whose_data_cannot_be_loaded_is_left_out_with_its_frames_alone(tmp_path, capsys):
    def broken(context):
        return load(context) if context.node_config["partition-id"] else {}["nothing"]

    client = fedhet.ClientApp(models=Net, data=broken)
    server = fedhet.ServerApp(method="fedssa", **KEYS | {"start_timeout": 10.0})
    assert federate(client, server, out=str(tmp_path))["clients"] == 2
    error = capsys.readouterr().err
    assert "fedhet: client 0, query: KeyError: 'nothing'" in error and error.count('File "') == 1

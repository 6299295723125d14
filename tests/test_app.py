"""``fedhet.ClientApp`` and ``fedhet.ServerApp``: the methods in a Flower app of one's own."""

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from torch import nn

import fedhet
from fedhet.config.registry import METHODS
from fedhet.engines.grid import Inline, SimulationGrid
from fedhet.engines.launch import one_run
from fedhet.engines.worker import contexts_of
from fedhet.errors import Damaged
from fedhet.protocol.flower import simulating


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


def load(context: Context):
    """Return a node's own rows: labels are places in the run's `classes`."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    y = rng.integers(0, 2, 60)
    return (rng.normal(size=(60, 4)) + y[:, None]).astype("float32"), y


def federate(client, server, nodes: int = 3, **run_config) -> dict:
    """Run both doors in this process; return the summary of the newest run."""
    contexts = contexts_of("", nodes)
    grid = SimulationGrid(Inline(lambda m: client(m, contexts[m.metadata.dst_node_id])), nodes)
    with one_run(), simulating():
        server(grid, Context(1, 0, {}, RecordDict(), run_config, series_id=0))
    newest = max(Path(run_config["out"]).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return json.loads((newest / "summary.json").read_text()) | {"folder": newest}


KEYS = {
    "clients": 3, "rounds": 2, "classes": ["ill", "well"], "representation": 24, "local_epochs": 1,
    "batch_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [{"method": "fedssa"}, {"method": "fedmrl", "d1": 8}, {"method": METHODS["fedproto"]},
     {"method": "fedssa", "secure_sum": "masked", "max_images": 1000}],
)  # fmt: skip
def test_an_app_of_ones_own_runs_any_method_also_with_masks(tmp_path, keys):
    client = fedhet.ClientApp(models=[Net, Wide], data=load)
    summary = federate(client, fedhet.ServerApp(**KEYS, **keys), out=str(tmp_path))
    assert summary["status"] == "completed" and summary["failures"] == []
    assert summary["test_accuracy_mean"] is not None
    config = fedhet.load_run(summary["folder"]).config
    assert config["classes"] == ["ill", "well"] and config["dataset"] == "app:data"


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
    assert fedhet.load_run(cut["folder"]).config["rounds"] == 2


def test_resume_goes_through_the_door_of_fedhet_resume(tmp_path, monkeypatch):
    client = fedhet.ClientApp(models=Net, data=load)
    words = {"out": str(tmp_path), "rounds": 1}
    folder = federate(client, fedhet.ServerApp(**KEYS), **words)["folder"]
    words = {"out": str(tmp_path), "rounds": 2, "resume": str(folder)}
    with pytest.raises(fedhet.UserError, match="is completed; to add rounds"):
        federate(client, fedhet.ServerApp(**KEYS), **words | {"rounds": 1})
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
        with pytest.raises(fedhet.UserError, match="names code that would run as you: app:data"):
            federate(client, fedhet.ServerApp(**KEYS), **words)
    lines = (folder / "rounds.jsonl").read_bytes()
    (folder / "rounds.jsonl").write_bytes(
        lines.replace(b"test_accuracy_mean", b"test_accuracy_Mean")
    )
    with pytest.raises(Damaged):
        federate(client, fedhet.ServerApp(**KEYS), **words)
    (folder / "rounds.jsonl").write_bytes(lines)
    assert federate(client, fedhet.ServerApp(**KEYS), **words)["rounds"] == 2


def test_a_node_whose_data_cannot_be_loaded_is_left_out_with_its_frames_alone(tmp_path, capsys):
    def broken(context):
        return load(context) if context.node_config["partition-id"] else {}["nothing"]

    client = fedhet.ClientApp(models=Net, data=broken)
    server = fedhet.ServerApp(method="fedssa", **KEYS | {"start_timeout": 10.0})
    assert federate(client, server, out=str(tmp_path))["clients"] == 2
    error = capsys.readouterr().err
    assert "fedhet: client 0, query: KeyError: 'nothing'" in error and error.count('File "') == 1

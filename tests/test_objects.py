"""fedhet from Python: runs, objects in place of names, and a Flower app of one's own."""

import asyncio
import json
import runpy
import subprocess
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import StackDataset, TensorDataset

import fedhet
from fedhet.config.registry import METHODS
from fedhet.data.objects import understand
from fedhet.engines import session
from fedhet.engines.grid import Inline
from fedhet.engines.launch import FIRST_NODE, contexts_of, one_run
from fedhet.engines.system import Interrupted
from fedhet.errors import Damaged
from fedhet.export.model import states_of
from fedhet.files import read_tensors
from fedhet.plugins import is_given, name_of
from fedhet.protocol.flower import simulating
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.rng import torch_seeded

RNG = np.random.default_rng(0)
KEYS = {
    "engine": "inline", "rounds": 2, "local_epochs": 1, "batch_size": 16, "representation": 32,
    "progress": False,
}  # fmt: skip


class Small(nn.Module):
    """A plain classifier without `features` and `head`."""

    def __init__(self, num_classes: int, inputs) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs.shape[0], 24), nn.ReLU())
        self.out = nn.Linear(24, num_classes)

    def forward(self, x):
        return self.out(self.net(x))


class Softmax(Small):
    def forward(self, x):
        return super().forward(x).softmax(dim=1)


def rows(count: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    y = RNG.integers(0, 3, count)
    x = RNG.normal(size=(count, 4)).astype(np.float32)
    x[:, 0] += 3 * y + shift
    return x, y


NORTH, SOUTH = rows(60), rows(50)
DATA = {"north": NORTH, "south": SOUTH}


def recall(y, p):
    return float((p.argmax(axis=1)[y == 1] == 1).mean()) if (y == 1).any() else float("nan")


def go(tmp_path: Path, **keys) -> fedhet.Run:
    return fedhet.run(out=tmp_path, **KEYS | {"models": [Small], "data": DATA} | keys)


def sha(run: fedhet.Run) -> str:
    return run.summary["run_sha256"]


def by_name(data_path: str) -> fedhet.Data:
    x = np.concatenate([NORTH[0], SOUTH[0]])
    y = np.concatenate([NORTH[1], SOUTH[1]])
    return fedhet.Data(x, y, ["0", "1", "2"], clients=["north"] * 60 + ["south"] * 50)


def test_the_same_by_name_has_the_same_bytes(tmp_path):
    given = go(tmp_path, models=[partial(Small)])
    named = fedhet.run(
        out=tmp_path, dataset="test_objects:by_name", models=["test_objects:Small"],
        partition="natural", **KEYS,
    )  # fmt: skip
    assert sha(given) == sha(named)
    assert named.config["models"] == ["test_objects:Small"]
    (model,) = given.config["models"]
    assert is_given(model) and model.startswith("functools:partial:")
    assert given.config["dataset"].startswith("table:builtins.dict:")


def test_frames_records_metrics_and_a_model(tmp_path):
    records = []
    run = go(tmp_path, metrics={"recall": recall}, on_round=records.append)
    assert list(run.rounds["round"]) == [1, 2] and len(records) == 2
    assert set(run.clients["client"]) == {"north", "south"}
    last = run.clients[run.clients["round"] == 2]
    assert run.rounds["test_recall_mean"].iloc[-1] == pytest.approx(last["test_recall"].mean())
    assert records[-1]["test_recall_mean"] == run.summary["test_recall_mean"]
    assert sha(run) == sha(go(tmp_path))  # metrics are beside the chain
    assert len(run.plot("recall").axes[0].lines) == 3
    with pytest.raises(fedhet.UserError, match="nobody|no client has 'f7'"):
        run.plot("f7")
    model = run.model("north")
    answers = model.predict(pd.DataFrame(NORTH[0][:5], columns=["0", "1", "2", "3"]))
    assert len(answers) == 5 and model.classes == ("0", "1", "2")


def test_on_round_ends_a_run_as_completed_and_it_goes_on(tmp_path):
    run = go(tmp_path, on_round=lambda record: record["round"] < 1)
    assert run.summary["status"] == "completed" and len(run.rounds) == 1
    assert sha(fedhet.resume(run, progress=False, rounds=2)) == sha(go(tmp_path))


def test_resume_asks_for_the_objects_again_and_refuses_others(tmp_path):
    path = go(tmp_path, rounds=1).path
    with pytest.raises(fedhet.UserError, match=r"was an object .*resume\(run, "):
        fedhet.resume(path, rounds=2, progress=False, metrics=None)
    other = {"north": NORTH, "south": (SOUTH[0] + 1, SOUTH[1])}
    for key, value in (("data", other), ("models", [partial(Small, inputs=None)])):
        with pytest.raises(fedhet.UserError, match=f"{key}: is not what this run was given"):
            fedhet.resume(path, rounds=2, progress=False, **{"data": DATA, key: value})
    again = fedhet.resume(path, rounds=2, progress=False, models=[Small], data=DATA)
    assert sha(again) == sha(go(tmp_path))


def test_items_of_a_data_set_may_be_dicts_with_a_label():
    one = understand({"n": StackDataset(image=NORTH[0], label=NORTH[1])}, ())
    assert one.name == understand({"n": NORTH}, ()).name
    with pytest.raises(fedhet.UserError, match="an item has image: give one example and its"):
        understand({"n": StackDataset(image=NORTH[0])}, ())


def test_a_template_is_copied_and_its_weights_are_the_start(tmp_path):
    with torch_seeded(5, "template"):
        template = Small(3, fedhet.Inputs.table(("a", "b", "c", "d")))
    before = {name: value.clone() for name, value in template.state_dict().items()}
    run = go(tmp_path, models=[template], rounds=1, lr=1e-12, method="standalone")
    kept = run.model("north").state_dict()
    (first,) = [value for name, value in kept.items() if name.endswith("network.net.0.weight")]
    assert torch.allclose(first, before["net.0.weight"], atol=1e-6)
    assert all(torch.equal(template.state_dict()[name], before[name]) for name in before)


def test_a_method_is_an_object_or_ours(tmp_path):
    mine = fedhet.Method(METHODS["lg_fedavg"].strategy, METHODS["lg_fedavg"].client, "mine")
    run = go(tmp_path, method=mine)
    assert is_given(run.config["method"])
    assert sha(run) == sha(go(tmp_path, method="lg_fedavg"))
    assert go(tmp_path, method=METHODS["fedproto"]).config["method"] == "fedproto"


class Part:
    def __init__(self, value: int) -> None:
        self.value = value


def test_all_parts_of_an_object_are_in_its_name():
    """What describes one part is made for it, and the next one may get its place in memory."""
    names = {name_of([Part(1), Part(value)], "t") for value in (2, 3, 2)}
    assert len(names) == 2


SCRIPT = """
import sys, warnings, numpy as np, fedhet; assert "torch" not in sys.modules
from torch import nn
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.a, self.b = nn.Linear(8, 24), nn.Linear(24, classes)
    def forward(self, x):
        warnings.warn("of mine")
        return self.b(self.a(x).relu())
rng = np.random.default_rng(1)
data = {name: (rng.normal(size=(40, 4)).astype("float32"), rng.integers(0, 2, 40)) for name in "ab"}
share = 0.5
run = fedhet.run(method="fedssa", models=[Net, lambda classes: Net(classes)], data=data, rounds=2,
    metrics={"high": lambda y, p: float((p.max(axis=1) > share).mean())}, engine=sys.argv[1],
    actors=2, out=sys.argv[2], representation=24, local_epochs=1, progress=False)
print(run.summary["run_sha256"], run.summary["test_high_mean"], len(run.model("a").classes))
log = (run.path / "log.txt").read_text()
assert "note: data: 80 rows" in log and f"{sys.argv[0]}:9: UserWarning: of mine" in log, log
"""


@pytest.mark.parametrize(
    "engines", [("inline", "processes"), pytest.param(("inline", "ray"), marks=pytest.mark.matrix)]
)
def test_a_script_without_a_guard_has_the_same_bytes_on_every_engine(tmp_path, engines):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    lines = []
    for engine in engines:
        command = [sys.executable, str(script), engine, str(tmp_path / engine)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1  # no worker runs the script again
        lines.append(done.stdout)
    assert lines[0] == lines[1]


FRAME = pd.DataFrame(NORTH[0], columns=list("abcd")).assign(
    ill=np.where(NORTH[1] == 0, "no", "yes"), clinic=["n", "s"] * 30
)


def pairs():
    data = StackDataset(torch.rand(20, 3, 16, 16), [0, 1] * 10)
    data.classes = ("cat", "dog")
    return data


def hugging(many: bool):
    datasets = pytest.importorskip("datasets", reason="needs datasets", exc_type=ImportError)
    columns = {name: datasets.Value("float64") for name in "abcd"}
    columns["ill"] = datasets.ClassLabel(names=["no", "yes"])
    rows = FRAME.drop(columns="clinic").assign(ill=(FRAME["ill"] == "yes").astype(int))
    one = datasets.Dataset.from_pandas(rows, features=datasets.Features(columns))
    return {"n": one, "s": datasets.DatasetDict({"train": one})} if many else one


def federated():
    flwr_datasets = pytest.importorskip(
        "flwr_datasets", reason="needs flwr-datasets", exc_type=ImportError
    )
    partitioner = flwr_datasets.partitioner.IidPartitioner(num_partitions=2)
    data = flwr_datasets.FederatedDataset(dataset="none", partitioners={"train": partitioner})
    data._dataset, data._dataset_prepared = {"train": hugging(many=False)}, True  # from no hub
    return data


TARGET = {"target": "ill", "models": ["mlp-5"]}


@pytest.mark.parametrize(
    ("make", "keys", "classes"),
    [
        (lambda: FRAME, TARGET | {"site": ["clinic"]}, ("no", "yes")),
        (lambda: dict.fromkeys("ns", FRAME.drop(columns="clinic")), TARGET, ("no", "yes")),
        (lambda: DATA, {"method": "fedmrl", "d1": 8, "small_model": partial(Small),
         "models": [Small, partial(Small)]}, ("0", "1", "2")),
        (lambda: {"n": TensorDataset(torch.tensor(NORTH[0]), torch.tensor(NORTH[1]))}, {},
         ("0", "1", "2")),
        (lambda: {"a": pairs(), "b": pairs()}, {"models": ["cnn-5"], "image_size": 16},
         ("cat", "dog")),
        (lambda: lambda client, clients: rows(30, float(clients.index(client))), {"clients": 2},
         ("0", "1", "2")),
        (lambda: {k: (torch.randn(30, 3, 32), ["x", "y"] * 15) for k in "ab"},
         {"models": ["conv1d-5"]}, ("x", "y")),
        (partial(hugging, many=True), TARGET, ("no", "yes")),
        (partial(hugging, many=False), TARGET | {"clients": 2, "partition": "iid"}, ("no", "yes")),
        (federated, TARGET, ("no", "yes")),
        (lambda: FRAME.assign(clinic=["n"] * 30 + ["s"] * 30, person=np.arange(60) // 2),
         TARGET | {"site": ["clinic"], "group": ["person"], "keep_predictions": True},
         ("no", "yes")),
    ],
)  # fmt: skip
def test_forms_of_data_that_are_run(tmp_path, make, keys, classes):
    run = go(tmp_path, data=make(), rounds=1, **{"models": ["mlp-5"]} | keys)
    assert run.summary["status"] == "completed" and not run.summary["failures"]
    assert tuple(run.model(run.clients["client"][0]).classes) == classes
    for path in states_of(run.path, trust=True) if "group" in keys else ():
        tests = read_tensors(path / "predictions.safetensors", "numpy")[0]["test/row"]
        assert set(np.unique(tests // 2, return_counts=True)[1]) == {2}  # nobody is in two splits


def test_float_images_are_said_to_be_stored_as_bytes_all_in_one_range():
    y = np.arange(20) % 2
    images = np.linspace(0, 1, 20 * 3 * 16 * 16, dtype=np.float32).reshape(20, 3, 16, 16)
    (note,) = understand({"a": (images, y), "b": (2 * images - 1, y)}, ()).notes
    assert note.startswith("data: float images from -1 (client 'b') to 1 (client 'a') are taken as")
    one = understand({"a": (images, y)}, ()).data.examples
    assert one.min() == 0 and one.max() == 255
    both = understand({"a": (images, y), "b": (-images, y)}, ()).data.examples
    assert both[:20].min() == both[20:].max() == 128  # 0 is the middle for both


def test_test_rows_that_are_given_are_the_test_split(tmp_path):
    data = {"n": (*NORTH, *rows(7)), "s": SOUTH}
    run = go(tmp_path, data=data, keep_predictions=True, rounds=1)
    tests = {
        path.name: read_tensors(path / "predictions.safetensors", "numpy")[0]["test/row"]
        for path in states_of(run.path, trust=True)
    }
    assert tests["n"].tolist() == list(range(60, 67)) and 3 <= len(tests["s"]) <= 7


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"n": NORTH, "s": (SOUTH[0][:, :3], SOUTH[1])}, r"'n' is float32 of shape \(4,\), .*'s'"),
        ({"n": (NORTH[0], NORTH[1][:-1])}, r"client 'n': y is int64 of shape \(59,\).* 60"),
        ({"n": (NORTH[0], NORTH[1] + 0.5)}, "client 'n': y has the value .*5, which is no class"),
        ({"n": (NORTH[0], [None] * 60)}, r"client 'n': y\[0\] is missing"),
        ({"n": (np.full((9, 2, 5), np.nan), [0] * 9)}, r"client 'n': x\[0, 0, 0\] is nan"),
        ({"n": (np.zeros((0, 3)), [])}, "data: client 'n': there is no example"),
        (None, "data: a NoneType must be"),
        ({"n": (np.array(["a b"]), [0])}, "x is <U3 .*; texts are a DataFrame with text="),
        ({"n": FRAME, "s": FRAME.rename(columns={"a": "e"})},
         "client 'n' has a column 'a', 's' has none"),
        ({"n": (np.zeros((9, 3, 8, 8), np.uint8), [0] * 9), "s": (np.zeros((9, 3, 8, 8)), [0] * 9)},
         "client 'n' is uint8 of shape .* of 's' float64 of shape .* all floats or none"),
        ({"n": (np.full((9, 3, 16, 16), 2.5), [0] * 9)}, "float images from 2.5 .client 'n'"),
        ({}, "there is no client"),
        ("ward.csv", "'ward.csv' is a path: files are read by"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_examples_are_one_line(data, part):
    with pytest.raises(fedhet.UserError, match=part):
        understand(data, ())


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"models": [Softmax]}, "no softmax"),
        ({"models": [nn.Flatten]}, "has no torch.nn.Linear"),
        ({"models": [lambda classes: 1 / 0]}, r"ZeroDivisionError: .* \(test_objects.py:\d+\)"),
        ({"data": DATA, "dataset": "digits"}, "not both"),
        ({"dataset": DATA}, "given as data="),
        ({"data": fedhet.Data(*NORTH, "012", kind="film")}, "kind 'film' is unknown"),
        ({"models": [lambda width: width]}, r"factory\(\), fails: TypeError: .*'width'$"),
        ({"metrics": {"accuracy_two": recall}}, "cannot be a metric's name"),
        ({"metrics": {"two": lambda y, p: "much"}, "rounds": 1}, "returns a str, must be a number"),
        ({"data": {"n": NORTH, "s": (SOUTH[0][:1], SOUTH[1][:1])}}, "client 's' has too few"),
        ({"length": 16}, r"read as table \(texts of a frame need text=\); it is for dataset=texts"),
        ({"on_round": lambda record: record["nothing"]}, r"on_round: KeyError: .*test_objects.py"),
    ],
)  # fmt: skip
def test_mistakes_of_the_caller_are_named(tmp_path, keys, part):
    with pytest.raises((fedhet.UserError, fedhet.RunFailed), match=part):
        go(tmp_path, **keys)


def test_the_stub_names_what_there_is_where_it_is():
    stub = (Path(fedhet.__file__).parent / "__init__.pyi").read_text()
    lines = [line.split() for line in stub.splitlines() if " as " in line]
    assert {words[-1]: words[1] for words in lines} == {
        name: f"fedhet.{module}" for name, module in fedhet._MODULES.items()
    }


SMALL = {
    "engine": "inline", "dataset": "synthetic:240x4", "models": ["cnn-5"], "clients": 2,
    "rounds": 1, "progress": False,
}  # fmt: skip


def test_run_resume_and_open_again_within_a_notebooks_event_loop(tmp_path, capsys):
    """The loop turns in another thread than the main one."""

    async def cell() -> fedhet.Run:
        return fedhet.run("quickstart", method="LG-FedAvg", out=tmp_path, **SMALL)

    found: list[fedhet.Run] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(cell())))
    thread.start()
    thread.join()
    (run,) = found
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("fedhet: warning: 4 classes occur at only one")
    assert run.summary["status"] == "completed" and run.config["method"] == "lg_fedavg"
    assert list(run.rounds["round"]) == [1]
    assert dict(run.clients[["client", "generation"]].values) == {"0": 1, "1": 1}
    assert run.clients["test_accuracy"].dtype == float
    longer = fedhet.resume(run, rounds=2, progress=False)
    assert len(fedhet.load_run(longer.path).rounds) == 2
    assert f"after 2 rounds ({run.path})" in str(run)
    model = run.model(1)
    with torch.inference_mode():
        assert model(torch.zeros(3, 3, 32, 32)).shape == (3, len(model.classes))
    with pytest.raises(fedhet.UserError, match="has no best state: run with keep-best=true"):
        run.model("1", best=True)
    with pytest.raises(fedhet.UserError, match="client: '9' has no state in .*: 0, 1"):
        run.model(9)
    (state,) = run.path.glob("state/*/1")
    state.rename(state.with_name("Klinikum-S-d-2"))
    assert run.model("Klinikum Süd").classes == model.classes


@pytest.mark.parametrize(("number", "raised"), [(2, KeyboardInterrupt), (15, SystemExit)])
def test_an_interruption_is_pythons_own(tmp_path, monkeypatch, number, raised):
    def interrupt(*_):
        raise Interrupted(number)

    monkeypatch.setattr(session, "simulate", interrupt)
    with pytest.raises(raised):
        fedhet.run("quickstart", out=tmp_path, **SMALL)


def test_what_it_lists_is_for_users():
    assert {name for name in dir(fedhet) if not name.startswith("__")} == set(fedhet.__all__)


def test_the_example_of_a_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "first_run.py"))
    said = capsys.readouterr().out
    assert "3 rounds" in said and "did you mean 'rounds'" in said


# --- ClientApp and ServerApp: the methods in a Flower app of one's own ---------------------------


@pytest.fixture(autouse=True)
def _limit(monkeypatch):
    """Put back what a ServerApp sets for the rest of its process."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


class Wide(Small):
    def __init__(self, num_classes: int, inputs) -> None:
        super().__init__(num_classes, inputs)
        self.net[0], self.out = nn.Linear(inputs.shape[0], 48), nn.Linear(48, num_classes)


class Mine(Small):
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


IN_AN_APP = {
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
    summary = federate(client, fedhet.ServerApp(**IN_AN_APP, **keys), out=str(tmp_path))
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
    keys = IN_AN_APP | {"method": "fedssa", "evaluate_every": 2}
    summary = federate(plain, fedhet.ServerApp(**keys), out=str(tmp_path))
    assert summary["failures"] == [] and summary["clients"] == 3
    arrays = load_checkpoint(RunFolder(summary["folder"]).checkpoint).arrays
    with torch_seeded(0, "global"):
        start = nn.Linear(24, 2).weight.detach().numpy()
    np.testing.assert_allclose(arrays["header.weight"], start + 1.0, rtol=1e-5)  # 0.5 a round


def test_the_run_config_replaces_arguments_and_a_run_is_resumed(tmp_path):
    client = fedhet.ClientApp(models=[Small, Small, Wide], data=load)
    server = fedhet.ServerApp(method="fedssa", **IN_AN_APP)
    words = {"out": str(tmp_path), "num-server-rounds": 9, "seed": 4}
    whole = federate(client, server, **words)
    cut = federate(client, server, rounds=1, **words)
    models = fedhet.load_run(whole["folder"]).clients.groupby("client")["model"].first()
    assert [name.split(":")[1] for name in models] == ["Small", "Small", "Wide"]
    assert (whole["rounds"], cut["rounds"], cut["seed"]) == (2, 1, 4)
    again = federate(client, server, resume=str(cut["folder"]), rounds=2, **words)
    assert again["run_sha256"] == whole["run_sha256"] != cut["run_sha256"]
    config = fedhet.load_run(cut["folder"]).config
    assert config["rounds"] == 2 and config["models"] == [*map(name_of, [Small, Small, Wide])]


def test_a_mistake_is_a_line_without_flowers_traceback():
    with pytest.raises(fedhet.UserError, match="rounds: '0' is not allowed") as error:
        server = fedhet.ServerApp(**IN_AN_APP | {"rounds": 0})
        federate(fedhet.ClientApp(models=Small, data=load), server)
    assert len(traceback.format_exception(error.value)) == 1


def test_resume_goes_through_the_door_of_fedhet_resume(tmp_path, monkeypatch):
    client, server = fedhet.ClientApp(models=Small, data=load), fedhet.ServerApp(**IN_AN_APP)
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

    client = fedhet.ClientApp(models=Small, data=broken)
    server = fedhet.ServerApp(method="fedssa", **IN_AN_APP | {"start_timeout": 10.0})
    assert federate(client, server, out=str(tmp_path))["clients"] == 2
    error = capsys.readouterr().err
    assert "fedhet: client 0, query: KeyError: 'nothing'" in error and error.count('File "') == 1

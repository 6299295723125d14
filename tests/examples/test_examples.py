"""The examples, run as a user would, in the folder where they lie; the notebooks."""

import json
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from engines.commands import NOTEBOOK, PROXIES
from helpers.pictures import images_of
from nbclient import NotebookClient
from test_same_bytes import signals, table, texts

import fedhet
from fedhet import plugins
from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.engines import session
from fedhet.errors import UserError
from fedhet.protocol.payload import ModelArrays
from fedhet.testing import check_method, make_client, make_strategy, simulate, small, uploads_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLASSES = ("disc", "square", "cross", "ring")
FEW = ("engine=inline", "clients=2", "classes-per-client=2", "local-epochs=1", "batch-size=16")
TINY = {"image_size": 16, "representation": 64}
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def here(request, monkeypatch):
    """Stand among the examples, or in a folder of them: what lies there can be imported."""
    monkeypatch.chdir(EXAMPLES / getattr(request, "param", ""))
    monkeypatch.setattr("sys.path", list(sys.path))
    plugins.look_here()


def test_fedgh_and_fedrep_keep_the_contract_and_fedrep_trains_its_header_alone(tmp_path):
    check_method("fedgh:METHOD", tmp_path / "fedgh", image_size=16)
    run = check_method("fedrep:METHOD", tmp_path, models=["cnn-5"], **TINY)
    assert all(record["train_loss_header"] > 0 for record in run.read_rounds())
    client = make_client(small(tmp_path, method="fedrep:METHOD"), 0, tmp_path / "state")
    first, second = client.phases()
    assert list(first.frozen) == [client.model.head]
    assert [module for module, _ in second.groups] == [client.model.head]


ALL_THREE = {"clients": 3, "fraction": 1.0, "dataset": "synthetic:240x4", "classes_per_client": 2}
FEDMD = {"method": "fedmd:METHOD", "public": "synthetic:90x3", "alignment": 20}


def test_fedmd_keeps_the_contract_and_sends_logits_alone(tmp_path):
    first, *later = check_method(tmp_path=tmp_path, **FEDMD, **ALL_THREE, **TINY).read_rounds()
    assert first["downlink_floats"] == 0 and first["uplink_floats"] == 3 * 20 * 4
    assert "train_loss_digest" not in first
    for record in later:
        assert record["downlink_floats"] == record["uplink_floats"] == 3 * 20 * 4
        assert record["train_loss_digest"] > 0


def test_fedmd_averages_logits_without_weights_or_takes_their_median(tmp_path):
    values = [0.0, 1.0, 5.0]
    for rule, expected in (("mean", 2.0), ("median", 1.0)):
        config = small(tmp_path, aggregation=rule, **FEDMD)
        strategy = make_strategy(config, [[0], [1], [2]], [10, 20, 70], 4)
        assert strategy.download(strategy.roster.infos["0"], 1).logits.shape == (0, 4)
        like = strategy.reference(strategy.roster.infos["0"]).payload
        sent = {
            str(k): replace(like, logits=like.logits + np.float32(value))
            for k, value in enumerate(values)
        }
        strategy.aggregate(uploads_of(strategy, sent), 3)
        down = strategy.download(strategy.roster.infos["0"], 4)
        assert down.round.tolist() == [4] and (down.logits == np.float32(expected)).all()
        other = make_strategy(config, [[0]], [10], 4)
        other.load(strategy.arrays())
        assert (other.consensus.logits == down.logits).all()


def test_a_method_a_model_and_a_data_set_of_ones_own_run_resume_and_predict(tmp_path):
    words = ["method=fedgh:METHOD", "dataset=shapes:load", "models=tiny_net:make", *FEW]
    to = ["--out", str(tmp_path), "--name", "own"]
    assert execute(["run", "quickstart", *words, "rounds=1", *to]) == 0
    assert execute(["resume", str(tmp_path / "own"), "rounds=2"]) == 0
    run = fedhet.load_run(tmp_path / "own")
    assert run.summary["method"] == "fedgh:METHOD" and run.summary["rounds"] == 2
    assert set(run.clients["model"]) == {"tiny_net:make"}
    images = images_of(build_config(run.config), "0")
    said = run.model("0").predict(images.examples.numpy())["class"]
    right = [one == CLASSES[k] for one, k in zip(said, images.labels.tolist(), strict=True)]
    last = run.clients[run.clients["client"] == "0"].iloc[-1]
    assert 100.0 * sum(right) / len(right) == last["test_accuracy"]


def test_what_a_factory_froze_stays_as_it_was(tmp_path):
    config = small(tmp_path, method="standalone", models=["tiny_net:make"])
    client = make_client(config, 0, tmp_path / "state")
    before = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    client.fit([], {"round": 1, "generation": 0, "evaluate": False})
    after = client.model.state_dict()
    assert torch.equal(after["fixed.weight"], before["fixed.weight"])
    assert not torch.equal(after["body.1.weight"], before["body.1.weight"])


def test_a_server_that_cheats_gets_a_sum_and_four_refusals(tmp_path, capsys):
    example = runpy.run_path("cheating_server.py")
    example["main"](tmp_path)
    ash, birch, forged, total, again, marked = capsys.readouterr().out.splitlines()
    insists = "limit secure-sum: this site allows only masked sums, and secure-sum is off"
    assert (ash, birch) == (f"ash: {insists}", f"birch: {insists}")
    assert forged == "ash does not accept the key of elm"
    total_of = sum(example["COUNTS"].values())
    assert total == f"the sum: {total_of.tolist()}"
    assert again.startswith("ash: other-survivors-than-answered: ")
    assert marked == "no sum: the boxes of 'elm' did not open for 4 members"


def test_a_wrong_module_is_one_line(tmp_path):
    for key, value, text in (
        ("method", "fedrep:FedRepClient", "must be a fedhet.config.registry.Method$"),
        ("dataset", "shapes:CLASSES", "must be a function load.*$"),
        ("dataset", "shapes:", "form package.module:NAME$"),
    ):
        with pytest.raises(UserError, match=f"^.*{text}"):
            make_client(small(tmp_path, **{key: value}), 0, tmp_path / "state")


def test_the_preset_of_signals_runs_as_it_is(tmp_path, capsys):
    """Those of tables and texts run below, with models of one's own."""
    words = [f"data-path={signals(tmp_path)['data_path']}", f"out={tmp_path}", "site=subject"]
    words += ["partition=natural", "clients=0", "rounds=1", "engine=inline", "--json"]
    assert execute(["run", "kinds/signals", *words]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["clients"] == 3 and not summary["failures"]


@pytest.mark.parametrize(
    ("factories", "kind"),
    [(["own_rows:deep", "own_rows:wide"], table), (["own_words:make"], texts)],
)
def test_models_of_ones_own_as_a_user_runs_them(tmp_path, capsys, factories, kind):
    """In the folder of the module, with the command that stands in it; beside one of ours too."""
    module, preset = factories[0].partition(":")[0], kind.__name__
    command = f"fedhet run kinds/{preset} data-path=FILE.csv models={','.join(factories)}"
    assert command in (EXAMPLES / f"{module}.py").read_text()
    words = command.replace("FILE.csv", kind(tmp_path)["data_path"]).split()[1:]
    quick = ["rounds=1", "engine=inline", "representation=24", f"out={tmp_path}"]
    quick += ["clients=2", "local-epochs=1"] + ["target=num"] * (preset == "table")
    assert execute([*words, "name=own", *quick]) == 0, capsys.readouterr().err
    rows = [line.split(",") for line in (tmp_path / "own/clients.csv").read_text().splitlines()]
    assert {row[2] for row in rows[1:]} == set(factories)
    ours = {"table": "mlp-5", "texts": "textcnn"}[preset]
    mixed = [*words[:-1], f"models={factories[0]},{ours}", "method=fedavg", f"small-model={ours}"]
    assert execute([*mixed, "name=mixed", *quick]) == 0, capsys.readouterr().err


OWN = {"partition": "natural", "rounds": 3, "engine": "inline", "lr": 0.05, "representation": 32}


@pytest.mark.parametrize(
    ("module", "models", "clients"),
    [("own_table", ["@table-5"], 3), ("own_signals", ["conv1d-5", "conv1d-4"], 6)],
)
def test_what_data_of_ones_own_invent_can_be_learned(tmp_path, module, models, clients):
    """By the commands of docs/how-to/own-model.md."""
    values = {"dataset": f"{module}:load", "models": models, "out": str(tmp_path)}
    config = session.resolve_clients(build_config(OWN | values))
    assert config.clients == clients
    assert simulate(config)[0].read_rounds()[-1]["test_accuracy_mean"] > 60


ENTRIES = """
[fedhet.methods]
tiny_rep = tiny_federated.fedrep:METHOD

[fedhet.models]
tiny_one = tiny_federated.tiny_net:make

[fedhet.datasets]
tiny_shapes = tiny_federated.shapes:load
"""


def test_its_method_model_and_data_set_have_names_of_their_own(
    tmp_path, monkeypatch, capsys, request
):
    """The examples as pip leaves an installed package, in a folder on sys.path."""
    package = tmp_path / "site" / "tiny_federated"
    about = tmp_path / "site" / "tiny_federated-1.dist-info"
    about.mkdir(parents=True)
    shutil.copytree(EXAMPLES, package)
    (package / "__init__.py").touch()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-federated\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(package.parent)
    plugins.installed.cache_clear()
    request.addfinalizer(plugins.installed.cache_clear)
    words = ["method=tiny_rep", "models=tiny_one", "dataset=tiny_shapes", *FEW, "--json"]
    assert execute(["run", "quickstart", *words, "rounds=2", "--out", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["method"], summary["status"]) == ("tiny_rep", "completed")
    assert summary["failures"] == []


# --- two methods as the authors' programs compute them, by hand, and as methods of one's own ------

AS_PUBLISHED = pytest.mark.parametrize("here", ["as_published"], indirect=True)


@AS_PUBLISHED
@pytest.mark.parametrize(
    ("method", "changes"), [("fedmrl", {"d1": 8}), ("fedssa", {"t_stable": 2})]
)
def test_they_keep_the_contract(tmp_path, method, changes):
    check_method(f"{method}:METHOD", tmp_path, **TINY, **changes)


@AS_PUBLISHED
def test_fedmrl_takes_the_model_of_one_participant(tmp_path):
    config = small(tmp_path, method="fedmrl:METHOD", d1=8, **TINY)
    strategy = make_strategy(config, [[0], [1], [2]], [50, 100, 150], 4)
    like = strategy.download(strategy.roster.infos["0"], 1).flat
    sent = {str(k): ModelArrays(tuple(np.full_like(a, k) for a in like)) for k in range(3)}
    taken = []
    for round_ in range(1, 21):
        strategy.aggregate(uploads_of(strategy, sent), round_)
        values = np.concatenate([a.ravel() for a in strategy.arrays().values()])
        assert len(set(values.tolist())) == 1  # a mean of weights would be 4 / 3
        taken.append(values[0])
    assert set(taken) == {0, 1, 2}


@AS_PUBLISHED
def test_fedssa_averages_stored_rows_and_hands_a_model_on(tmp_path):
    config = small(tmp_path, method="fedssa:METHOD", t_stable=2, models=["cnn-5"], **TINY)
    strategy = make_strategy(config, [[0, 1], [1, 2], [1]], [50, 50, 50], 4)
    infos = strategy.roster.infos
    first = strategy.arrays()["header.weight"].copy()
    sent = strategy.download(infos["0"], 1)
    trained = type(sent)(
        sent.classes, sent.weight + 3, sent.bias, tuple(a + 1 for a in sent.tensors)
    )
    strategy.aggregate(uploads_of(strategy, {"0": trained}), 1)
    weight = strategy.arrays()["header.weight"]
    np.testing.assert_allclose(weight[0], first[0] + 3, rtol=1e-6)  # its only owner
    np.testing.assert_allclose(weight[1], first[1] + 1, rtol=1e-5)  # two owners have not trained
    np.testing.assert_allclose(weight[2], first[2], rtol=1e-6)
    assert strategy.download(infos["0"], 2).tensors == ()
    handed_on = strategy.download(infos["1"], 2).tensors
    assert all(np.array_equal(a, b) for a, b in zip(handed_on, trained.tensors, strict=True))
    client = make_client(config, 1, tmp_path / "state", round_=2)
    own = strategy.download(infos["1"], 2)
    client.receive(type(own)(client.seen(), *own.flat[1:3], handed_on))
    extractor = client.upload().tensors[0]
    assert np.array_equal(extractor, trained.tensors[0])


# --- notebooks ----------------------------------------------------------------------------------

BY_DEFAULT = "own_model_and_data"
LARGEST = 100_000  # characters of all outputs: a picture, not more


@pytest.mark.parametrize(
    "name",
    [
        path.stem if path.stem == BY_DEFAULT else pytest.param(path.stem, marks=pytest.mark.matrix)
        for path in sorted(EXAMPLES.glob("*.ipynb"))
    ],
)
def test_a_notebook_runs(tmp_path, monkeypatch, name):
    """With lines and no widgets, whatever the notebook says of its terminal; by no proxy."""
    for key, value in (NOTEBOOK | PROXIES).items():
        monkeypatch.setenv(key, value)
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert book.cells[0].cell_type == "markdown" and not any(c.get("outputs") for c in book.cells)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [str(output) for cell in book.cells for output in cell.get("outputs", ())]
    assert outputs and sum(map(len, outputs)) < LARGEST and "ipywidgets" not in "".join(outputs)

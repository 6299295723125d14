"""What is said to somebody who sets a key in vain, names a thing wrongly, or has to wait."""

import json

import pytest
import yaml
from cli.refusals import refused
from helpers.tiny import tiny

import fedhet
from fedhet import TOP
from fedhet.cli.app import execute
from fedhet.config.checks import idle
from fedhet.config.load import load_noted
from fedhet.config.schema import RunConfig, kebab
from fedhet.testing import simulate

TINY = ("run", "quickstart", "engine=inline", "models=cnn-5", "rounds=1", "local-epochs=1",
        "image-size=16", "dataset=synthetic:120x4")  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- keys that change nothing ---------------------------------------------------------------------


def notes(*words, deployed=False, path=None):
    return load_noted(path, words, deployed=deployed)[1]


IDLE = (
    (["data-path=/x"], "data-path=/x", "dataset=digits reads no file"),
    (["dataset=synthetic:90x3", "data-path=/x"], "data-path", "synthetic:90x3"),
    (["engine=inline", "actors=3"], "actors=3", "engine=inline"),
    (["engine=inline", "round-timeout=5"], "round-timeout=5", "engine=inline"),
    (["engine=inline", "start-timeout=5"], "start-timeout=5", "engine=inline"),
    (["partition=file", "partition-file=a.csv", "split=6:2:2"], "split", "partition-file"),
    (["partition=file", "partition-file=a.csv", "dataset=cifar10", "partition-seed=3"],
     "partition-seed=3", "partition-file"),
    (["models=cnn-5", "model-assignment=random"], "model-assignment", "the same model"),
    (["evaluate-all=no"], "evaluate-all=no", "fraction=1"),
    (["client-keys=off"], "client-keys=off", "--superlink"),
    (["sum-threshold=9"], "sum-threshold=9", "secure-sum=off"),
    (["dataset=synthetic-table:60x4", "models=mlp-5", "grey=yes"], "grey", "synthetic-table:60x4"),
    (["method=lg_fedavg", "aggregation=median", "weighting=uniform"], "weighting",
     "aggregation=median"),
)  # fmt: skip


def test_a_key_that_changes_nothing_is_named_with_the_reason():
    for words, key, why in IDLE:
        (line,) = notes(*words)
        assert line.startswith(key) and why in line


def test_on_a_network_the_nodes_have_their_own():
    for word in ("data-path=/x", "actors=2", "state-dir=/s", "keep-state=no"):
        data = () if word.startswith("data") else ("dataset=cifar10",)
        (line,) = notes(*data, word, deployed=True)
        assert line.startswith(word) and "every node sets its own" in line
    assert notes("client-keys=off", "evaluate-all=no", deployed=True) == []


def test_what_has_an_effect_is_not_named():
    assert notes("dataset=cifar10", "data-path=/x", "actors=2", "round-timeout=9") == []
    assert notes("fraction=0.5", "evaluate-all=no", "partition-seed=1", "split=6:2:2") == []
    assert notes("partition=dirichlet", "alpha=1", "models=cnn-1,cnn-5", "state-dir=s") == []
    # Without masks as well it says how many must be left, and how much noise each adds.
    assert notes("secure-sum=unmasked", "sum-threshold=9") == []
    keys = {kebab(name) for name in RunConfig.model_fields}
    assert idle(RunConfig()).keys() | idle(RunConfig(), deployed=True).keys() <= keys


def test_a_file_is_told_too_unless_it_says_the_default_and_no_preset_is(here):
    (here / "c.yaml").write_text("engine: inline\nactors: 2\nround-timeout: 3600\n")
    assert [line.partition("=")[0] for line in notes(path=here / "c.yaml")] == ["actors"]
    for path in (TOP / "configs").glob("*.yaml"):
        assert notes(path=path) == notes("engine=inline", path=path) == [], path


def test_a_run_says_its_notes_once_nothing_is_wrong(capsys, here):
    words = [*TINY, "data-path=/x", "fraction=0.01", "clients=4"]
    assert "'x' is not allowed" in refused(capsys, *words, "lr=x")
    assert execute([*words, "--name", "r"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
    assert said == [
        "fedhet: note: data-path=/x has no effect: dataset=synthetic:120x4 reads no file",
        "fedhet: note: fraction=0.01 of 4 clients is 0.04: one of 4 is trained in each round",
    ]
    assert execute(["resume", "runs/r", "rounds=2", "actors=3"]) == 0
    assert "note: actors=3 has no effect" in capsys.readouterr().err
    fedhet.resume("runs/r", rounds=3, actors=2)
    assert "note: actors=2 has no effect" in capsys.readouterr().err


def test_a_sweep_names_what_changes_nothing_in_any_cell(capsys, here):
    grid = {"partition": ["dirichlet", "classes-per-client"], "fraction": [0.01]}
    (here / "p.yaml").write_text(yaml.safe_dump({"clients": 4, "grid": grid}))
    words = ["sweep", "p.yaml", "--print", "actors=2", "alpha=1", "data-path=/x"]
    assert execute(words) == 0
    said = capsys.readouterr().err.splitlines()
    named = [line.split()[2].partition("=")[0] for line in said]
    assert named == ["actors", "data-path", "fraction"]


# --- names ----------------------------------------------------------------------------------------


NAMED = (
    ("seed=1,2,3", ["'1,2,3'", "`grid: {seed: [1, 2, 3]}`", "`fedhet sweep`"]),
    ("method=fedssa,fedavg", ["`grid: {method: [fedssa, fedavg]}`"]),
    ("mu0=0.1,0.2", ["`grid: {mu0: [0.1, 0.2]}`"]),
    ("lr=0,05", ["write 0.05"]),
    ("gird=3", ["did you mean 'grid'"]),
    ("title=x", ["`fedhet sweep` runs them"]),
    ("dataset=digits,cifar10", ["one value is needed"]),
    ("d=256", ["did you mean 'representation' (d)"]),
    ("lr_=1", ["did you mean 'lr'"]),
    ("lr_extractor=1", ["lr_extractor: only method pfedes has this key"]),
    ("server-epoch=3", ["server-epochs is a key of fedgen, fedgh, fedtgp"]),
    ("N=3", ["did you mean 'clients' (N)?"]),
    ("local_epochs=3", ["did you mean 'local-epochs'?"]),
    ("grid=3", ["`fedhet sweep` runs them"]),
)


def test_a_key_or_a_value_is_told_whose_it_is(capsys, here):
    for word, parts in NAMED:
        line = refused(capsys, "run", "quickstart", word)
        assert all(part in line for part in parts), line
    assert not list(here.iterdir())
    (here / "c.yaml").write_text("seed: [0, 1]\n")
    assert "`grid: {seed: [0, 1]}`" in refused(capsys, "run", "c.yaml")
    assert notes("models=[cnn-1, cnn-5]", "classes=1,2,3,4") == []  # these take several


def test_a_file_that_is_missing_or_is_no_preset_is_told_what_to_do(capsys, here):
    (here / "patients.csv").write_text("age,ill\n1,0\n")
    (here / "patients.yaml").write_text("rounds: 3\n")
    table = ["run", "quickstart", "dataset=table", "target=ill"]
    for words, says in (
        (["run", "patients.csv"], "`fedhet init patients.csv` writes a preset"),
        (["run", "patient.yaml"], "(did you mean 'patients.yaml'?)"),
        ([*table, "data-path=patents.csv"], "(did you mean 'patients.csv'?)"),
        (["init", "patients.cvs"], "(did you mean 'patients.csv'?)"),
        (["init", "patients.csv"], "delete it, or give another name with --out"),
        (["export", "runs/a", "North", "--predictions"], "RUN --predictions --out FILE.csv"),
        (["export", "runs/a", "North", "--out", "m"], "RUN/state/*/CLIENT --out DIR"),
    ):
        assert says in refused(capsys, *words)


def test_keys_are_searched_by_a_word_in_names_and_meanings(capsys):
    assert execute(["keys", "Dirichlet"]) == 0
    found = [line.partition("=")[0] for line in capsys.readouterr().out.splitlines()]
    assert found == ["partition", "alpha"]
    assert execute(["keys", "noise"]) == 0
    found = {line.partition("=")[0] for line in capsys.readouterr().out.splitlines()}
    assert {"dp-clip", "dp-epsilon", "dp-delta"} <= found
    assert execute(["keys", "server-epochs", "--json"]) == 0
    owners = {row["method"] for row in json.loads(capsys.readouterr().out)}
    assert owners == {"fedgh", "fedtgp", "fedgen"}


# --- runs that ended, and models of all of a run's clients ----------------------------------------


def test_a_diverged_run_is_not_told_to_resume(capsys, here):
    assert execute([*TINY, "clients=2", "lr=1e30", "method=standalone", "rounds=3"]) == 3
    said = capsys.readouterr().err
    assert "fedhet resume" not in said
    assert "it diverged, and would again: start another run with a smaller lr" in said


def test_every_clients_model_is_exported_and_who_has_none_is_named(capsys, here):
    config = tiny(here, fraction=0.67, rounds=1, evaluate_all=False)
    folder, _ = simulate(config)
    state = next(folder.path.glob("state/*"))
    first, *rest = sorted(path.name for path in state.iterdir())
    (state / "9").mkdir()
    (state / "9" / "client.json").write_text("{}")
    for file in (state / first).glob("*.json"):
        (state / "9" / file.name).write_text(file.read_text())
    assert execute(["export", str(folder.path), "--all", "--out", "models"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == ["2 of 3 clients", str(here / "models")]
    assert "left out: client 9: " in output.err and "has not trained" in output.err
    assert sorted(path.name for path in (here / "models").iterdir()) == sorted([first, *rest])
    assert (here / "models" / first / "card.yaml").is_file()
    for words, says in (
        ([folder.path, "--out", "models"], "already exists"),
        ([state, "--out", "m"], "--all and --predictions are for a whole run"),
        ([folder.path, "--generation", "1", "--out", "m"], "cannot be used with --all"),
    ):
        assert says in refused(capsys, "export", "--all", *map(str, words))

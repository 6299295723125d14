"""What is said to somebody who sets a key in vain, names a thing wrongly, or has to wait."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from helpers.tiny import tiny

import fedhet
from fedhet import TOP
from fedhet.cli.app import execute
from fedhet.config.checks import idle
from fedhet.config.load import load_noted
from fedhet.config.schema import RunConfig, kebab
from fedhet.deploy import control, submit
from fedhet.engines import launch, session
from fedhet.errors import RunFailed
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = ("run", "quickstart", "engine=inline", "models=cnn-5", "rounds=1", "local-epochs=1",
        "image-size=16")  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistake(capsys, *words) -> str:
    assert execute(list(words)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.strip().splitlines()[-1]


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


def test_no_preset_sets_a_key_in_vain():
    for path in (TOP / "configs").glob("*.yaml"):
        assert notes(path=path) == notes("engine=inline", path=path) == [], path


def test_a_file_is_told_too_unless_it_says_the_default(tmp_path):
    (tmp_path / "c.yaml").write_text("engine: inline\nactors: 2\nround-timeout: 3600\n")
    assert [line.partition("=")[0] for line in notes(path=tmp_path / "c.yaml")] == ["actors"]


def test_a_run_says_its_notes_once_nothing_is_wrong(capsys, here):
    words = [*TINY, "data-path=/x", "fraction=0.01", "clients=4"]
    assert "'x' is not allowed" in mistake(capsys, *words, "lr=x")
    assert execute([*words, "--name", "r"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
    assert said == [
        "fedhet: note: data-path=/x has no effect: dataset=digits reads no file",
        "fedhet: note: fraction=0.01 of 4 clients is 0.04: one of 4 is trained in each round",
    ]
    assert execute(["resume", "runs/r", "rounds=2", "actors=3"]) == 0
    assert "note: actors=3 has no effect" in capsys.readouterr().err
    keys = {"models": ["cnn-5"], "rounds": 1, "clients": 2, "dataset": "synthetic:60x4"}
    fedhet.run("quickstart", engine="inline", actors=2, **keys)
    assert "note: actors=2 has no effect" in capsys.readouterr().err


def test_a_sweep_names_what_changes_nothing_in_any_cell(capsys, here):
    grid = {"partition": ["dirichlet", "classes-per-client"], "fraction": [0.01]}
    (here / "p.yaml").write_text(yaml.safe_dump({"clients": 4, "grid": grid}))
    words = ["sweep", "p.yaml", "--print", "actors=2", "alpha=1", "data-path=/x"]
    assert execute(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[2].partition("=")[0] for line in said] == [
        "actors",
        "data-path",
        "fraction",
    ]


# --- names ----------------------------------------------------------------------------------------


NAMED = (
    ("seed=1,2,3", ["'1,2,3'", "`grid: {seed: [1, 2, 3]}`", "`fedhet sweep`"]),
    ("method=fedssa,fedavg", ["`grid: {method: [fedssa, fedavg]}`"]),
    ("mu0=0.1,0.2", ["`grid: {mu0: [0.1, 0.2]}`"]),
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
        line = mistake(capsys, "run", "quickstart", word)
        assert all(part in line for part in parts), line
    assert not list(here.iterdir())


def test_lists_where_one_value_is_needed_name_the_sweep_in_files_too(capsys, here):
    (here / "c.yaml").write_text("seed: [0, 1]\n")
    assert "`grid: {seed: [0, 1]}`" in mistake(capsys, "run", "c.yaml")
    assert notes("models=cnn-1,cnn-5", "classes=1,2,3,4") == []  # these take several
    assert notes("dataset=cifar10", "data-path=/a,b") == []


def test_models_and_methods_of_ones_own_are_shown(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert execute(["models", "tiny_net:make", "cnn-5", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in table] == ["tiny_net:make", "cnn-5"] and table[0]["parameters"]
    assert execute(["methods", "fedgh:METHOD"]) == 0
    shown = capsys.readouterr().out
    assert "server-lr=" in shown and "fedhet run quickstart method=fedgh:METHOD" in shown
    assert execute(["keys", "fedgh:METHOD"]) == 0
    assert "server-lr=" in capsys.readouterr().out


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
    assert execute(["keys", "fedmrl"]) == 0  # a method is no word
    assert "rounds=100" in capsys.readouterr().out


# --- runs that ended, and models of all of a run's clients ----------------------------------------


def test_a_diverged_run_is_not_told_to_resume(capsys, here):
    assert execute([*TINY, "clients=2", "lr=1e30", "method=standalone", "rounds=3"]) == 3
    said = capsys.readouterr().err
    assert "fedhet resume" not in said
    assert (
        "it diverged, and would again: start another run with a smaller lr (it was 1e+30)" in said
    )


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
    assert "already exists" in mistake(
        capsys, "export", str(folder.path), "--all", "--out", "models"
    )
    assert "not a run folder" in mistake(capsys, "export", str(state), "--all", "--out", "m")
    both = ("--all", "--generation", "1", "--out", "m")
    said = mistake(capsys, "export", str(folder.path), *both)
    assert "--generation cannot be used with --all" in said


# --- waiting --------------------------------------------------------------------------------------


@pytest.fixture
def superlink(monkeypatch):
    """A SuperLink that takes a run; ``answers`` are its words about it, in turn."""
    answers: list[tuple[str, str] | Exception] = []

    def status(run_id):
        now = answers.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    control = SimpleNamespace(start=lambda *_: 1, status=status, close=lambda: None)
    monkeypatch.setattr(submit, "NamedControl", lambda _: control)
    for name in ("ASK", "ASK_END", "POLL"):
        monkeypatch.setattr(submit, name, 0.0)
    return answers


def test_a_superlink_that_is_away_is_waited_for_aloud(superlink, monkeypatch, here):
    monkeypatch.setattr("fedhet.deploy.network.TOLD_AFTER", 0.0)
    superlink += [RunFailed("no"), RunFailed("no"), ("running", ""), ("finished:completed", "")]
    folder = RunFolder.create(tiny(here), "r")
    said = []
    submit.submit_remote(launch.Launch(tiny(here), folder), "local", lambda _: None, said.append)
    assert any(re.fullmatch("waiting for .*local.* since [0-9:]+: no", line) for line in said)


def test_a_failed_run_of_a_servers_folder_names_its_own_folder(superlink, monkeypatch, here):
    superlink.append(("finished:failed", "nobody is there"))
    monkeypatch.setattr(submit, "connect", lambda _: control.CONNECTION)
    folder = RunFolder.create(tiny(here), "r")
    with pytest.raises(RunFailed, match=f"nobody is there .run folder: {folder.path}"):
        submit.submit_remote(launch.Launch(tiny(here), folder), "tls", lambda _: None, print)


@pytest.mark.parametrize("found", [7, None])
def test_a_run_whose_answer_was_lost_is_looked_for_before_it_is_given_up(monkeypatch, here, found):
    asked = []

    def lost(*_):
        raise RunFailed("the connection was closed")

    control = SimpleNamespace(
        start=lost, find=lambda _: found, close=lambda: None,
        status=lambda run_id: asked.append(run_id) or ("finished:completed", ""),
    )  # fmt: skip
    monkeypatch.setattr(submit, "NamedControl", lambda _: control)
    monkeypatch.setattr(submit, "ASK", 0.0)
    folder = RunFolder.create(tiny(here), "r")
    work = partial(
        submit.submit_remote, launch.Launch(tiny(here), folder), "local", lambda _: None, print
    )
    if found is None:
        with pytest.raises(RunFailed, match=r"may or may not have accepted .* `fedhet status`"):
            work()
    else:
        work()
    assert asked == ([7] if found else [])


def test_what_the_server_waits_for_is_shown_where_the_run_was_asked_for(here):
    folder, said = RunFolder.create(tiny(here), "r"), []
    reader = launch.Reader(folder, lambda _: None, said.append)
    folder.wait_for("2 of 3 clients since 10:00:00")
    reader.read()
    reader.read()
    folder.wait_for("")
    reader.read()
    assert said == ["2 of 3 clients since 10:00:00"]
    assert not list(folder.path.glob("waiting*"))
    assert session.find_preset("quickstart").is_file()

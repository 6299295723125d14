"""A run folder that somebody else made changes nothing outside of it, and runs no code unasked."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import fedhet
from fedhet.cli.app import execute
from fedhet.config.schema import RunConfig
from fedhet.errors import UserError, VerifyError
from fedhet.records import register
from fedhet.records.checkpoint import load_checkpoint, save_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.records.trusted import check_downloads
from fedhet.testing import simulate, small


def picture(root: Path) -> dict[str, bytes | str]:
    """Everything below a folder, links as such."""
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink()
        else path.read_bytes() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }  # fmt: skip


def outside(home: Path) -> dict[str, bytes | str]:
    """The same but for the run folder ``run`` itself."""
    return {name: what for name, what in picture(home).items() if not name.startswith("run/")}


@pytest.fixture
def home(tmp_path):
    """A folder with things that are dear to its owner, and no link out."""
    place = tmp_path / "home"
    (place / ".ssh").mkdir(parents=True)
    (place / ".ssh" / "id").write_text("dear")
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "dear").write_text("dear")
    return place


def crafted(folder: Path, experiment: str = ".ssh", **changes) -> Path:
    """A run folder that has not begun, as anybody can write one."""
    config = small(folder.parent, engine="inline", keep_state=False, rounds=1).flat()
    config |= {"out": "/tmp", "name": "x"} | {k.replace("_", "-"): v for k, v in changes.items()}
    (folder / "checkpoint").mkdir(parents=True)
    identity = {"experiment": experiment, "config": config}
    (folder / "checkpoint" / "run.json").write_text(json.dumps(identity))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "environment.json").write_text("{}")
    return folder


# How a state-dir may lead to the folder above the run folder, in which `.ssh` lies.
WAYS = {
    "upwards": lambda run: "evil/../..",
    "upwards from the run": lambda run: f"{run}/..",
    "upwards from nothing": lambda run: f"{run}/evil/../..",
    "absolute": lambda run: str(run.parent),
    "twice": lambda run: f"{run}/state/../../{run.name}/..",
    "a link inside": lambda run: (run / "up").symlink_to("..") or f"{run}/up",
    "a link outside": lambda run: (
        (run.parent / "elsewhere" / "up").symlink_to("..") or f"{run.parent}/elsewhere/up"
    ),
    "a link called state": lambda run: (run / "state").symlink_to("..") or "",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_no_state_dir_of_a_strangers_deletes_or_writes_outside(
    home, monkeypatch, capsys, way, trust
):
    run = crafted(home / "run")
    where = WAYS[way](run)
    identity = json.loads((run / "checkpoint" / "run.json").read_text())
    identity["config"]["state-dir"] = where
    (run / "checkpoint" / "run.json").write_text(json.dumps(identity))
    (run / "config.yaml").write_text(yaml.safe_dump(identity["config"]))
    monkeypatch.chdir(run)
    before = outside(home)
    for command in ("verify", "resume", "resume"):
        code = execute([command, str(run), *trust])
        assert code in {0, 3}, capsys.readouterr().err
    assert code == 3
    said = capsys.readouterr().err
    assert "state-dir" in said or "is a link" in said
    after = outside(home)
    assert after == before


@pytest.mark.parametrize("experiment", ["../.ssh", "..", ".", "/etc", "a/../../.ssh", "", "a\0b"])
def test_no_experiment_leads_out(home, capsys, experiment):
    run = crafted(home / "run", experiment)
    before = outside(home)
    for command in ("verify", "resume"):
        assert execute([command, str(run)]) == 3
        assert "experiment" in capsys.readouterr().err
    assert outside(home) == before


def test_the_place_and_name_that_it_says_it_was_made_at_mean_nothing(home, capsys):
    run = crafted(home / "run", "ab", out=str(home / "elsewhere"), name=".ssh", keep_state=True)
    before = outside(home)
    assert execute(["resume", str(run)]) == 0
    assert outside(home) == before
    assert (run / "state" / "ab" / "0" / "client.json").exists()


def no_round(books):
    books["round"], books["means"] = 0, {"test_accuracy": 1.0}


BOOKS = {  # every value is of its kind; together they cannot be
    "a class beyond the list": lambda b: b["roster"]["infos"]["1"]["seen"].__setitem__(0, 99),
    "a class without a count": lambda b: b["roster"]["infos"]["1"]["images"].pop(),
    "counts without a class": lambda b: b["roster"]["infos"]["1"]["seen"].clear(),
    "no classes": lambda b: b["roster"]["classes"].clear(),
    "a client without a generation": lambda b: b["roster"]["generations"].pop("1"),
    "a state without a generation": lambda b: b["roster"]["states"].__setitem__("z", "0" * 64),
    "means of no round": no_round,
}


@pytest.mark.parametrize("kind", BOOKS)
def test_books_that_contradict_themselves_are_one_line(home, capsys, kind):
    folder, _ = simulate(small(home, engine="inline", name="own", rounds=1))
    kept = load_checkpoint(folder.checkpoint)
    BOOKS[kind](kept.meta)
    save_checkpoint(folder.checkpoint, kept)
    for words in (["verify", str(folder.path)], ["resume", str(folder.path), "rounds=2"]):
        assert execute(words) == 3
        said = capsys.readouterr().err
        assert "server.safetensors" in said and "books" in said and "Traceback" not in said


def test_a_clients_id_in_the_checkpoint_cannot_lead_out(home, capsys):
    config = small(home, engine="inline", name="own", state_dir=str(home / "states"), rounds=1)
    folder, _ = simulate(config)
    before = picture(home)
    with pytest.raises(UserError, match="client"):
        fedhet.load_run(folder.path).model("../../.ssh")
    assert picture(home) == before


def test_states_elsewhere_go_with_the_run_only_where_it_was_made(home, capsys):
    config = small(
        home, engine="inline", name="own", state_dir=str(home / "states"), keep_state=False
    )
    folder, _ = simulate(config)
    experiment = folder.experiment
    assert not (home / "states" / experiment).exists()  # removed at its end: it is known here
    assert register.find(experiment).states == str(home / "states" / experiment)
    (place,) = [p for p in register.place().iterdir() if p.stem == experiment]
    assert place.stat().st_mode & 0o077 == 0


def test_a_run_that_was_moved_says_what_to_do_and_goes_on(home, capsys):
    config = small(home, engine="inline", name="own", state_dir=str(home / "states"), rounds=1)
    folder, _ = simulate(config)
    moved = home / "moved"
    shutil.copytree(folder.path, moved)
    words = ["resume", str(moved), "rounds=2"]
    assert execute(words) == 3
    said = capsys.readouterr().err
    assert f"resume {moved} state-dir={home / 'states'}" in said and str(folder.path) in said
    again = [*words, f"state-dir={home / 'states'}"]
    assert execute(again) == 2  # a copy: the one it was copied from goes on from the same states
    assert "still there" in capsys.readouterr().err
    shutil.rmtree(folder.path)
    assert execute(again) == 0
    assert execute(["verify", str(moved)]) == 0


def test_states_that_were_copied_into_the_folder_go_on_there(home, capsys):
    config = small(home, engine="inline", name="own", state_dir=str(home / "states"), rounds=1)
    folder, _ = simulate(config)
    copied = Path(shutil.copytree(folder.path, home / "copied"))
    shutil.copytree(home / "states", copied / "state")
    before = picture(home / "states")
    words = ["resume", str(copied), "rounds=2", f"state-dir={copied / 'state'}"]
    assert execute(words) == 0, capsys.readouterr().err
    assert picture(home / "states") == before


def test_a_run_with_its_states_inside_goes_on_wherever_it_is(home, monkeypatch):
    folder, _ = simulate(small(home, engine="inline", name="own", rounds=1))
    moved = folder.path.rename(home / "moved")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another machine"))
    assert execute(["resume", str(moved), "rounds=2"]) == 0
    assert execute(["verify", str(moved)]) == 0


def test_nobody_is_talked_into_giving_a_folder_of_states_that_is_none(home, capsys):
    run = crafted(home / "run")
    before = picture(home)
    assert execute(["resume", str(run), f"state-dir={home}"]) == 2
    assert "holds no clients' states" in capsys.readouterr().err
    assert picture(home) == before


def test_a_stranger_gets_no_account_and_no_download(home, capsys):
    run = crafted(home / "run", "ab", tracker="mlflow")
    assert execute(["resume", str(run)]) == 2
    assert "tracker" in capsys.readouterr().err
    run = crafted(home / "other", "ab", dataset="cifar10", data_path=str(home / "elsewhere"))
    before = picture(home)
    assert execute(["resume", str(run)]) == 2
    assert "data-path" in capsys.readouterr().err and picture(home) == before
    public = RunConfig(public_dataset="cifar10", public_path=str(home))
    with pytest.raises(UserError, match="public-path"):
        check_downloads(RunFolder(run), public)


@pytest.fixture
def sent(home, monkeypatch):
    """A finished run as another user's fedhet made it: here nothing is known of it."""
    folder, _ = simulate(small(home, engine="inline", name="sent", rounds=1))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))

    def change(**keys) -> Path:
        config = folder.started_config() | {k.replace("_", "-"): v for k, v in keys.items()}
        identity = {"experiment": folder.experiment, "config": config}
        folder.identity.write_text(json.dumps(identity))
        folder.config.write_text(yaml.safe_dump(config))
        return folder.path

    return change


def test_a_report_downloads_nothing_for_a_stranger(sent, home, capsys, monkeypatch):
    run = sent(dataset="cifar10", data_path=str(home / "elsewhere"))
    monkeypatch.setattr(
        "fedhet.data.named_sources.Torchvision.listing", lambda *_: pytest.fail("it downloads")
    )
    before = picture(home / "elsewhere")
    assert execute(["report", str(run), "--out", str(home / "out")]) == 0
    assert "would be downloaded to" in capsys.readouterr().err
    assert picture(home / "elsewhere") == before


def test_nobody_is_shown_states_that_a_strangers_run_points_to(sent, home, capsys):
    run = sent(keep_state=True)
    (run / "state").rename(home / "elsewhere" / "state")
    sent(state_dir=str(home / "elsewhere" / "state"))
    assert execute(["export", str(run), "--all", "--out", str(home / "models")]) == 3
    assert "lies outside" in capsys.readouterr().err and not (home / "models").exists()
    with pytest.raises(VerifyError, match="lies outside"):
        fedhet.load_run(run).model("0")
    assert execute(["report", str(run), "--out", str(home / "out")]) == 0
    assert "no run folder of this report has its clients' states" in capsys.readouterr().err


MODULE = """
from pathlib import Path
Path({mark!r}).touch()
from fedhet.config.registry import METHODS
from fedhet.models.cnn import *
METHOD = METHODS["fedssa"]
"""


@pytest.fixture
def theirs(home, monkeypatch):
    """A finished run with a method of its own beside it, and the file that its import makes."""
    mark = home / "imported"
    folder, _ = simulate(small(home, engine="inline", name="own", rounds=1))
    (folder.path / "evil_method.py").write_text(MODULE.format(mark=str(mark)))
    config = {**folder.started_config(), "method": "evil_method:METHOD"}
    identity = {"experiment": folder.experiment, "config": config}
    folder.identity.write_text(json.dumps(identity))
    folder.config.write_text(yaml.safe_dump(config))
    for note in folder.path.glob("state/*/*/client.json"):
        card = json.loads(note.read_text()) | {"method": "evil_method:METHOD"}
        note.write_text(json.dumps(card))
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("fedhet.plugins._here", [])
    yield folder, mark
    sys.modules.pop("evil_method", None)


def _commands(folder: RunFolder, out: Path) -> dict[str, list[str]]:
    state = next(folder.path.glob("state/*/0"))
    return {
        "verify": ["verify", "."],
        "resume": ["resume", ".", "rounds=2"],
        "report": ["report", ".", "--out", str(out)],
        "export": ["export", str(state), "--out", str(out)],
        "export all": ["export", str(folder.path), "--all", "--out", str(out)],
    }


@pytest.mark.parametrize("command", ["verify", "resume", "report", "export", "export all"])
def test_code_that_a_strangers_folder_names_is_imported_only_with_trust(
    home, theirs, capsys, command
):
    folder, mark = theirs
    words = _commands(folder, home / "out")[command]
    code = execute(words)
    said = capsys.readouterr().err
    assert not mark.exists() and "evil_method" not in sys.modules
    assert "evil_method:METHOD" in said and "--trust" in said
    assert code == (0 if command == "report" else 2)
    shutil.rmtree(home / "out", ignore_errors=True)
    execute([*words, "--trust"])
    assert mark.exists()


def test_a_sweep_loaded_in_python_imports_nothing_of_a_strangers_either(theirs):
    folder, mark = theirs
    runs = fedhet.load_sweep(folder.path)
    assert len(runs.rows()) == 1 and len(runs.figures()) > 2 and runs.verdict
    assert runs.differences().absent and runs.traffic().svg and runs.rounds().svg
    assert not mark.exists() and "evil_method" not in sys.modules
    fedhet.load_sweep(folder.path, trust=True)
    assert mark.exists()


def test_predict_too(home, theirs, capsys):
    folder, mark = theirs
    state = str(next(folder.path.glob("state/*/0")))
    assert execute(["export", state, "--out", str(home / "model"), "--trust"]) == 0
    model = home / "sent"
    shutil.copytree(home / "model", model)
    mark.unlink()
    del sys.modules["evil_method"]
    picture_ = home / "x.png"
    from PIL import Image  # noqa: PLC0415

    Image.new("RGB", (8, 8)).save(picture_)
    words = ["predict", str(model), str(picture_), "--out", str(home / "p.csv")]
    assert execute(words) == 2
    assert not mark.exists() and "--trust" in capsys.readouterr().err
    assert execute(["predict", str(home / "model"), *words[2:]]) == 0  # exported here
    assert execute([*words, "--trust"]) == 0
    # The same weights once more: both are known.
    assert execute(["export", state, "--out", str(home / "again"), "--trust"]) == 0
    for made in ("model", "again"):
        assert execute(["predict", str(home / made), *words[2:]]) == 0


def test_a_module_called_like_data_of_ours_is_a_strangers_too(home, capsys):
    run = crafted(home / "run", "ab", method="synthetic:METHOD")
    assert execute(["verify", str(run)]) == 2
    assert "--trust" in capsys.readouterr().err


def test_nothing_in_a_strangers_folder_stands_in_for_a_package(home, monkeypatch):
    """What somebody's code tries to import and does not find is not looked for there."""
    run = crafted(home / "run", "ab")
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (run / "numba_or_so.py").touch()
    execute(["verify", "."])
    with pytest.raises(ImportError):
        __import__("numba_or_so")


def test_a_run_of_ones_own_needs_no_trust(home, monkeypatch, capsys):
    project = home / "project"
    project.mkdir()
    (project / "own_method.py").write_text(MODULE.format(mark=str(home / "imported")))
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = [
        "method=own_method:METHOD", "dataset=synthetic:240x4", "clients=3", "models=cnn-5",
        "rounds=1", "local-epochs=1", "engine=inline", "name=mine",
    ]  # fmt: skip
    try:
        assert execute(["run", "quickstart", "--out", str(home / "runs"), *words]) == 0
        run = home / "runs" / "mine"
        for word in (["verify"], ["resume", "rounds=2"]):
            assert execute([word[0], str(run), *word[1:]]) == 0, capsys.readouterr().err
        other = home / "other"  # the same run, and another's module of that name
        other.mkdir()
        (other / "own_method.py").write_text("raise SystemExit")
        monkeypatch.chdir(other)
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(project)])
        monkeypatch.setattr("fedhet.plugins._here", [])
        del sys.modules["own_method"]
        capsys.readouterr()
        assert execute(["verify", str(run)]) == 2
        assert "--trust" in capsys.readouterr().err
    finally:
        sys.modules.pop("own_method", None)

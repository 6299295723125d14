"""A run folder that somebody else made changes nothing outside of it, and runs no code unasked."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from helpers.tiny import tiny
from PIL import Image

from fedhet.cli.app import execute
from fedhet.testing import simulate


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
    config = tiny(folder.parent, engine="inline", keep_state=False, rounds=1).flat()
    config |= {"out": "/tmp", "name": "x"} | {k.replace("_", "-"): v for k, v in changes.items()}
    (folder / "checkpoint").mkdir(parents=True)
    identity = {"experiment": experiment, "config": config}
    (folder / "checkpoint" / "run.json").write_text(json.dumps(identity))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "environment.json").write_text("{}")
    return folder


WAYS = {  # by which a state-dir may lead to the folder in which `.ssh` lies
    "upwards": lambda run: "evil/../..",
    "absolute": lambda run: str(run.parent),
    "a link inside": lambda run: (run / "up").symlink_to("..") or f"{run}/up",
    "a link outside": lambda run: (
        (run.parent / "elsewhere" / "up").symlink_to("..") or f"{run.parent}/elsewhere/up"
    ),
    "a link called state": lambda run: (run / "state").symlink_to("..") or "",
}


@pytest.mark.parametrize("way", WAYS)
def test_no_state_dir_of_a_strangers_deletes_or_writes_outside(home, monkeypatch, capsys, way):
    run = crafted(home / "run")
    where = WAYS[way](run)
    identity = json.loads((run / "checkpoint" / "run.json").read_text())
    identity["config"]["state-dir"] = where
    (run / "checkpoint" / "run.json").write_text(json.dumps(identity))
    (run / "config.yaml").write_text(yaml.safe_dump(identity["config"]))
    monkeypatch.chdir(run)
    before = outside(home)
    execute(["verify", str(run)])
    assert execute(["resume", str(run)]) == 3
    said = capsys.readouterr().err
    assert any(why in said for why in ("state-dir", "is a link"))
    assert outside(home) == before


def test_states_outside_are_those_that_the_user_names(home, capsys, monkeypatch):
    config = tiny(home, engine="inline", name="own", state_dir=str(home / "states"), rounds=1)
    run = str(simulate(config)[0].path)
    assert execute(["verify", run]) == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))  # who gets it from us
    assert execute(["verify", run]) == 3
    assert f"state-dir={home / 'states'}`" in capsys.readouterr().err
    assert execute(["resume", run, "rounds=2", f"state-dir={home / 'states'}"]) == 0
    assert execute(["verify", run]) == 0


MODULE = """
from pathlib import Path
Path({mark!r}).touch()
from fedhet.config.registry import METHODS
METHOD = METHODS["fedssa"]
"""


@pytest.fixture
def theirs(home, monkeypatch):
    """A finished run of somebody else's with a method of its own, and the file its import makes."""
    mark = home / "imported"
    folder, _ = simulate(tiny(home, engine="inline", name="own", rounds=1))
    (folder.path / "evil_method.py").write_text(MODULE.format(mark=str(mark)))
    config = {**folder.started_config(), "method": "evil_method:METHOD"}
    identity = json.loads(folder.identity.read_text()) | {"config": config}
    folder.identity.write_text(json.dumps(identity))  # with the MAC of the other configuration
    folder.config.write_text(yaml.safe_dump(config))
    for note in folder.path.glob("state/*/*/client.json"):
        note.write_text(json.dumps(json.loads(note.read_text()) | {"method": config["method"]}))
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("fedhet.plugins._here", [])
    yield folder, mark
    sys.modules.pop("evil_method", None)


@pytest.mark.parametrize("command", ["verify", "resume", "export", "report"])
def test_code_that_a_strangers_folder_names_is_imported_only_with_trust(
    home, theirs, capsys, command
):
    folder, mark = theirs
    words = {
        "verify": ["verify", "."],
        "resume": ["resume", ".", "rounds=2"],
        "export": ["export", str(next(folder.path.glob("state/*/0"))), "--out", str(home / "out")],
        "report": ["report", ".", "--out", str(home / "out")],
    }[command]
    execute(words)
    said = capsys.readouterr().err
    assert not mark.exists() and "evil_method" not in sys.modules
    if command != "report":  # which needs no code to show a run
        assert "evil_method:METHOD" in said and "--trust" in said
        execute([*words, "--trust"])
        assert mark.exists()


def test_an_exported_model_is_known_by_its_card_wherever_it_lies(home, theirs, capsys, monkeypatch):
    folder, mark = theirs
    state = str(next(folder.path.glob("state/*/0")))
    assert execute(["export", state, "--out", str(home / "model"), "--trust"]) == 0
    Image.new("RGB", (8, 8)).save(home / "x.png")
    rest = [str(home / "x.png"), "--out", str(home / "p.csv")]
    shutil.copytree(home / "model", home / "copy")
    assert execute(["predict", str(home / "copy"), *rest]) == 0
    card = home / "copy" / "card.yaml"
    card.write_text(card.read_text().replace("representation: 64", "representation: 65"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))  # who gets it from us
    for one in ("copy", "model"):
        assert execute(["predict", str(home / one), *rest]) == 2
        assert "--trust" in capsys.readouterr().err
    assert execute(["predict", str(home / "model"), *rest, "--trust"]) == 0


def test_a_run_of_ones_own_needs_no_trust_but_a_key_that_is_ones_own(home, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "states"))
    (home / "own_method.py").write_text(MODULE.format(mark=str(home / "imported")))
    monkeypatch.chdir(home)
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
    finally:
        sys.modules.pop("own_method", None)
    key = home / "states" / "fedhet" / "key"
    assert len(key.read_bytes()) == 32 and key.stat().st_mode & 0o077 == 0

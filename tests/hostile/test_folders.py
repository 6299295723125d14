"""Run folders and models that somebody sent: every command ends in one line or does its work.

Nothing of them is executed, and nothing outside is changed. Damage: tests/records/test_damage.py.
"""

import os
import shutil

import pytest
import yaml

from fedhet.cli.app import execute
from fedhet.testing import simulate, small

IMPORTED = "imported"
EVIL = f"open('../{IMPORTED}', 'w')\nMETHOD = make = load = None\n"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder with a run of two rounds and the model of one of its clients."""
    place = tmp_path_factory.mktemp("honest")
    folder, _ = simulate(small(place, rounds=2, name="run"))
    shutil.move(folder.path, place / "run")
    state = next((place / "run" / "state").glob("*/0"))
    assert execute(["export", str(state), "--out", str(place / "model")]) == 0
    return place


def writes(name, data):
    def change(run):
        path = run / name
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    return change


def config(**keys):
    """Set keys of config.yaml."""

    def change(run):
        path = run / "config.yaml"
        values = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump(values | {k.replace("_", "-"): v for k, v in keys.items()}))

    return change


def replaced(name, make):
    """Put a link, a folder or a pipe where a file should be."""

    def change(run):
        (run / name).unlink()
        make(run / name)

    return change


ALIASES = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n".encode()
    for i in range(9)
)
TAG = b"method: !!python/object/apply:os.system [touch ../../imported]\n"
CRAFTED = {
    "modules of its own": config(models=["evil_module:make"], dataset="evil_module:load"),
    "code in YAML": writes("config.yaml", TAG),
    "nested aliases": writes("config.yaml", ALIASES),
    "infinity": writes("summary.json", b'{"status":"completed","rounds":Infinity}'),
    "no text": writes("partition.csv", b"client,0,1\n\xff\xfe,1,2\n"),
    "a depth": writes("rounds.jsonl", b'{"a":' * 10_000 + b"\n"),
    "a link that leads out": replaced("rounds.jsonl", lambda p: p.symlink_to("../../dear/x")),
    "a link to nowhere": replaced("summary.json", lambda p: p.symlink_to("../../dear/new")),
    "a folder for a file": replaced("clients.csv", os.mkdir),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_folder_is_refused_or_read(tmp_path, monkeypatch, capfd, honest, kind):
    dear = tmp_path / "dear"
    dear.mkdir()
    (dear / "x").write_text("dear")
    sent = tmp_path / "sent"
    shutil.copytree(honest, sent)
    run = sent / "run"
    (run / "evil_module.py").write_text(EVIL)
    CRAFTED[kind](run)
    monkeypatch.chdir(run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    out = str(tmp_path / "out")
    for words in (
        ["verify", str(run)],
        ["runs", str(sent)],
        ["report", str(run), "--out", f"{out}/report", "--no-models"],
        ["resume", str(run), "engine=inline", "rounds=2"],
    ):
        code = execute(words)
        said = "".join(capfd.readouterr())
        assert code in {0, 2, 3} and "Traceback" not in said, (words, code, said)
    assert sorted(path.name for path in dear.iterdir()) == ["x"]
    assert (dear / "x").read_text() == "dear" and not list(tmp_path.rglob(IMPORTED))


@pytest.mark.parametrize(
    "change",
    [
        {"method": "evil_module:METHOD"}, {"model": "evil_module:make"}, {"classes": None},
        {"inputs": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_crafted_model_is_refused(tmp_path, monkeypatch, capfd, honest, change):
    shutil.copytree(honest / "model", tmp_path / "model")
    card = tmp_path / "model" / "card.yaml"
    card.write_text(yaml.safe_dump(yaml.safe_load(card.read_text()) | change))
    (tmp_path / "model" / "evil_module.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path / "model")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    code = execute(["predict", str(tmp_path / "model"), str(card), "--out", str(tmp_path / "p")])
    assert code == 2 and "Traceback" not in "".join(capfd.readouterr())
    assert not list(tmp_path.rglob(IMPORTED))

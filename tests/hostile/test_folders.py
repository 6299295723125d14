"""Run folders and models that somebody sent: every command ends in one line or does its work.

Nothing outside is changed. Damage: tests/records/test_damage.py; code: test_strangers.py.
"""

import os
import shutil

import pytest
import yaml
from helpers.tiny import tiny

from fedhet.cli.app import execute
from fedhet.testing import simulate


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder with a run of two rounds and the model of one of its clients."""
    place = tmp_path_factory.mktemp("honest")
    folder, _ = simulate(tiny(place, name="run"))
    shutil.move(folder.path, place / "run")
    state = next((place / "run" / "state").glob("*/0"))
    assert execute(["export", str(state), "--out", str(place / "model")]) == 0
    return place


ALIASES = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n".encode()
    for i in range(9)
)
TAG = b"method: !!python/object/apply:os.system [touch ../../imported]\n"
CRAFTED = {  # a file, and what stands in its place
    "code in YAML": ("config.yaml", TAG),
    "nested aliases": ("config.yaml", ALIASES),
    "infinity": ("summary.json", b'{"status":"completed","rounds":Infinity}'),
    "no text": ("partition.csv", b"client,0,1\n\xff\xfe,1,2\n"),
    "a depth": ("rounds.jsonl", b'{"a":' * 10_000 + b"\n"),
    "a link that leads out": ("rounds.jsonl", lambda path: path.symlink_to("../../dear/x")),
    "a link to nowhere": ("summary.json", lambda path: path.symlink_to("../../dear/new")),
    "a folder for a file": ("clients.csv", os.mkdir),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_folder_is_refused_or_read(tmp_path, monkeypatch, capfd, honest, kind):
    dear = tmp_path / "dear"
    dear.mkdir()
    (dear / "x").write_text("dear")
    sent = tmp_path / "sent"
    shutil.copytree(honest, sent)
    run = sent / "run"
    name, content = CRAFTED[kind]
    (run / name).unlink(missing_ok=True)
    content(run / name) if callable(content) else (run / name).write_bytes(content)
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
    assert (dear / "x").read_text() == "dear" and not list(tmp_path.rglob("imported"))


@pytest.mark.parametrize("change", [{"classes": None}, {"inputs": 7}], ids=str)
def test_a_crafted_model_is_refused(tmp_path, capfd, honest, change):
    shutil.copytree(honest / "model", tmp_path / "model")
    card = tmp_path / "model" / "card.yaml"
    card.write_text(yaml.safe_dump(yaml.safe_load(card.read_text()) | change))
    code = execute(["predict", str(tmp_path / "model"), str(card), "--out", str(tmp_path / "p")])
    assert code == 2 and "Traceback" not in "".join(capfd.readouterr())

"""What cannot be exported is said in one line, and nothing is written."""

import json
import shutil

import pytest
from export.exported import states

from fedhet.errors import UserError
from fedhet.export.model import export, load_model
from fedhet.site.state import FileStore


@pytest.fixture
def copied(run, tmp_path):
    """A state folder that a test may spoil."""
    config, folder = run
    state = tmp_path / "run-id" / "0"
    state.mkdir(parents=True)
    for path in states(folder, config)["0"].iterdir():
        (state / path.name).write_bytes(path.read_bytes())
    return state


def fails(state, out, *more):
    with pytest.raises(UserError) as error:
        export(state, out, **dict(more))
    assert "\n" not in str(error.value)
    assert not out.exists() and not list(out.parent.glob(".*tmp"))
    return str(error.value)


def test_what_is_no_state_folder(run, copied, tmp_path):
    config, folder = run
    out = tmp_path / "m"
    assert "is neither an exported model" in fails(tmp_path / "nowhere", out)
    assert "did you mean" in fails(copied.parent, out)
    said = fails(folder.path, out)  # the run folder instead of a client's state
    assert str(states(folder, config)["0"]) in said and "and 2 more" in said
    (copied / "client.json").write_text("{")
    assert "client.json is damaged" in fails(copied, out)
    (copied / "client.json").write_text("{}")
    assert "do not fit client.json" in fails(copied, out)


def test_what_holds_no_good_generation(copied, tmp_path):
    out = tmp_path / "m"
    assert "generation: 7 is not in" in fails(copied, out, ("generation", 7))
    newest = copied / "00000003.safetensors"
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data) // 2])
    assert "generation 3 cannot be read" in fails(copied, out)
    export(copied, tmp_path / "older", generation=2)
    description = json.loads((copied / "client.json").read_text())
    description["classes"].append("one too many")
    (copied / "client.json").write_text(json.dumps(description))
    assert "do not fit client.json" in fails(copied, out, ("generation", 2))
    for path in copied.glob("*.safetensors"):
        path.unlink()
    assert "the client has not trained" in fails(copied, out)


def test_nothing_is_overwritten(copied, tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match="already exists"):
        export(copied, tmp_path / "m")
    assert not list((tmp_path / "m").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export(copied, tmp_path / "file" / "m")


def test_a_state_that_the_server_has_not_accepted_is_not_taken(run, tmp_path, caplog):
    _, folder = run
    shutil.copytree(folder.path, tmp_path / "run")
    (state,) = (tmp_path / "run").glob("state/*/0")
    store = FileStore(state, sync=False)
    store.save(4, 3, store.load(3))  # trained, and its reply was lost
    assert load_model(state)[1]["generation"] == 3
    assert (
        "generation 3 is taken, the last that the server accepted; the newest is 4" in caplog.text
    )
    assert load_model(state, 4)[1]["generation"] == 4
    store.path(3).unlink()
    with pytest.raises(UserError, match="generation: 3, the last that the server accepted"):
        load_model(state)

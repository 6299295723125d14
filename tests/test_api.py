"""fedhet from Python: what a script or a notebook gets, and what it is told when it is wrong."""

import asyncio
import runpy
import threading
from pathlib import Path

import pytest
import torch

import fedhet
from fedhet.engines import session
from fedhet.engines.system import Interrupted

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

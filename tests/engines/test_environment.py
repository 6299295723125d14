"""An environment that is not the developer's changes no result."""

import pytest
from cli.refusals import refused
from engines.commands import NOTEBOOK, PROXIES, WORK, summary
from helpers.pace import PATIENCE

from fedhet.engines.system import free_ports


def test_a_ray_that_nobody_answers_for_is_named_at_once(tmp_path, monkeypatch, capsys):
    """A run that does not say `engine` takes the cluster of RAY_ADDRESS."""
    (port,) = free_ports(1)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    line = refused(capsys, "run", "quickstart", *WORK, f"out={tmp_path / 'runs'}")
    assert f"RAY_ADDRESS: nothing answers at '127.0.0.1:{port}'" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.network
def test_a_notebook_runs_twice_and_shows_lines(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (NOTEBOOK | PROXIES).items():
        monkeypatch.setenv(name, value)
    call = (
        "fedhet.run('quickstart', dataset='synthetic:120x4', models=['cnn-5'], clients=2, "
        f"actors=1, rounds=1, out={str(tmp_path)!r}, name={{!r}}).summary['status']"
    )
    cells = ["import fedhet", call.format("a"), call.format("b")]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=PATIENCE, kernel_name="python3").execute()
    for cell in book.cells[1:]:
        text = "".join(one.get("text", "") for one in cell.outputs)
        assert "fedssa: round 1/1" in text and "ipywidgets" not in text, text
        shown = [one["data"] for one in cell.outputs if "data" in one]
        assert [one["text/plain"] for one in shown] == ["'completed'"], shown  # no empty boxes
    first, second = (summary(tmp_path / name)["run_sha256"] for name in "ab")
    assert first == second

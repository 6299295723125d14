"""An environment that is not the developer's changes no result.

Commands with a notebook's variables, bare ones and proxies: test_inline.py and test_processes.py.
"""

import os
from pathlib import Path

import pytest
from engines.commands import NOTEBOOK, PROXIES, WORK, Command, summary
from helpers.pace import PATIENCE

from fedhet.cli.app import execute
from fedhet.engines.system import free_ports


@pytest.mark.network
def test_a_path_that_is_no_utf_8_is_refused_before_anything_is_written(tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    words = [os.fsencode(word) for word in ("run", "quickstart", *WORK, f"out={odd}")]
    code, _, err = Command(tmp_path, *words, env=env).end()
    assert code == 2 and err.count("\n") == 1 and "is not UTF-8" in err, err
    assert not list(tmp_path.iterdir())


def test_a_ray_that_nobody_answers_for_is_named_at_once(tmp_path, monkeypatch, capsys):
    """A run that does not say `engine` takes the cluster of RAY_ADDRESS."""
    (port,) = free_ports(1)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert execute(["run", "quickstart", *WORK, f"out={tmp_path / 'runs'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"RAY_ADDRESS: nothing answers at '127.0.0.1:{port}'" in line
    assert not (tmp_path / "runs").exists()
    monkeypatch.setenv("RAY_ADDRESS", "no address")
    assert execute(["run", "quickstart", *WORK, "engine=ray"]) == 2
    assert "'no address'" in capsys.readouterr().err


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

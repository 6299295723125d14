"""A terminal, pipe or folder that is gone: what goes on goes on, what cannot begin says so."""

import json
import os
import sys

import pytest
from cli.refusals import refused
from watch.folders import line

from fedhet.cli import deploy
from fedhet.cli.app import main
from fedhet.cli.common import RunProgress, tell

ROUNDS = [json.loads(line(1))]


@pytest.fixture(params=["closed", "full"])
def unwritable(request):
    """A stream that takes no text."""
    if request.param == "full":
        stream = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
    else:
        read, write = os.pipe()
        os.close(read)
        stream = os.fdopen(write, "w")
    with stream:
        yield stream


def test_a_run_goes_on_where_nobody_reads_its_progress(unwritable, monkeypatch):
    monkeypatch.setattr(sys, "stdout", unwritable)
    monkeypatch.setattr(sys, "stderr", unwritable)
    with RunProgress("fedssa", 1) as progress:
        for _ in range(2):
            progress.note("starting")
            progress.update(ROUNDS)
            tell("note")
            deploy._say("a node goes on as well")
    print("the result")
    unwritable.flush()  # and what is left over is not tried again


def test_a_full_disk_is_one_line_and_a_reader_that_had_enough_is_none(
    unwritable, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdout", unwritable)
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    error = capsys.readouterr().err
    if unwritable.name == "/dev/full":
        assert end.value.code == 2 and error == "fedhet: error: No space left on device\n"
    else:
        assert end.value.code == 0 and not error


def test_a_working_folder_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    (tmp_path / "gone").rmdir()
    assert "the working folder no longer exists" in refused(capsys, "runs", ".")

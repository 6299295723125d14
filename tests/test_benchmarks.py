"""Benchmarks run: what they answer for the clients is what the server asks of real ones."""

import json

import pytest

from benchmarks import open_file
from benchmarks.scale import measure


def test_prepared_replies_are_valid(capsys):
    measure("fedmrl", 3)
    found = json.loads(capsys.readouterr().out)
    assert found["milliseconds_per_client_round"] > 0 and found["mebibytes_per_round"] > 3


@pytest.mark.matrix
def test_opening_a_file_is_measured_in_a_process_of_its_own(capsys, monkeypatch, tmp_path):
    words = ["open_file", "--rows", "9000", "--columns", "3", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    open_file.main()
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 9000 and found["seconds"] > 0 and found["more_mib"] < 200
    assert not list(tmp_path.iterdir())

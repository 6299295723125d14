"""Benchmarks run: what they answer for the clients is what the server asks of real ones."""

import json

from benchmarks.scale import measure


def test_prepared_replies_are_valid(capsys):
    measure("fedmrl", 3)
    found = json.loads(capsys.readouterr().out)
    assert found["milliseconds_per_client_round"] > 0 and found["mebibytes_per_round"] > 3

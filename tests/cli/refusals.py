"""The one line that a mistake gets, and a small run."""

import pytest

from fedhet.cli.app import execute

SMALL = ("models=cnn-5", "clients=2", "rounds=1")


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert execute(list(words)) == code
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("fedhet: error: ")
    return line.removeprefix("fedhet: error: ")

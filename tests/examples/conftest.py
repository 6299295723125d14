"""The folder of examples, and a user who stands in it."""

import sys
from pathlib import Path

import pytest

from fedhet import plugins


@pytest.fixture(scope="module")
def examples():
    return Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def here(request, examples, monkeypatch):
    """Stand where a module's `FOLDER` says: what lies there can be imported."""
    monkeypatch.chdir(examples / getattr(request.module, "FOLDER", ""))
    monkeypatch.setattr("sys.path", list(sys.path))
    plugins.look_here()

"""A model of one's own that trains like others, except where a test says what it does."""

import os
import sys
from pathlib import Path

import pytest

# In other processes than COMMAND it does something else when it trains.
NET = """
import os, sys, time
from fedhet.models.zoo import build_model

def make(classes, d, inputs):
    net = build_model("cnn-5", classes=classes, d=d, inputs=inputs)
    features = net.features
    def bad(x):
        if os.getpid() != int(os.environ["COMMAND"]) and net.training:
            print("the net is called", file=sys.stderr)
            {what}
        return features(x)
    net.features = bad
    return net

def at_once(classes, d):
    {what}
"""


@pytest.fixture
def bad_net(tmp_path, monkeypatch):
    """Write ``bad_net:make``, which does this when it trains in a worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMAND", str(os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda what: Path("bad_net.py").write_text(NET.replace("{what}", what))
    sys.modules.pop("bad_net", None)

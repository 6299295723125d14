"""One finished run, and a model of it."""

import pytest
from helpers.tiny import states, tiny

from fedhet.export.model import export
from fedhet.testing import simulate


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished FedMRL run: its configuration and folder."""
    config = tiny(tmp_path_factory.mktemp("run"), method="fedmrl", rounds=3, d1=8)
    return config, simulate(config)[0]


@pytest.fixture(scope="session")
def model(run, tmp_path_factory):
    """The exported model of client 0."""
    config, folder = run
    return export(states(folder, config)["0"], tmp_path_factory.mktemp("model") / "m")

"""One federation of three SuperNodes for all tests that do not need their own."""

import pytest
from network.federation import Federation


@pytest.fixture(scope="session")
def _federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("net"), 3)
    try:
        yield federation.start()
    finally:
        federation.stop()


@pytest.fixture
def federation(_federation):
    """The shared federation, whole: SuperLink up, three nodes online with their partition."""
    yield _federation
    _federation.repair()

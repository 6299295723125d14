"""One federation of three SuperNodes for all tests that do not need their own."""

import pytest
from network.federation import Federation
from network.pace import patience


def pytest_itemcollected(item: pytest.Item) -> None:
    """A hang of any network test ends some time; most wait a few times in a row."""
    if item.get_closest_marker("network"):
        item.add_marker(pytest.mark.timeout(10 * patience()))


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

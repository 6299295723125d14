"""What a file of tests shares: a federation of three SuperNodes."""

import pytest
from helpers.pace import PATIENCE
from network.federation import Federation


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the mark
def pytest_runtest_protocol(item: pytest.Item):
    """Bound a hang of any of these tests; most wait a few times in a row."""
    item.add_marker(pytest.mark.timeout(10 * PATIENCE))
    return (yield)


@pytest.fixture(scope="package")
def _federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("net"), 3)
    try:
        yield federation
    finally:
        federation.stop()


@pytest.fixture
def federation(_federation):
    """The shared federation; :meth:`Federation.whole` makes it as a test needs it."""
    yield _federation
    _federation.tidy()

"""What the files of tests share: a federation of three SuperNodes, as long as a test needs it."""

import pytest
from helpers.pace import PATIENCE
from network.federation import Federation

RUNNING: list[Federation] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the mark
def pytest_runtest_protocol(item: pytest.Item):
    """Bound a hang of any of these tests; most wait a few times in a row."""
    item.add_marker(pytest.mark.timeout(10 * PATIENCE))
    return (yield)


def pytest_runtest_teardown(nextitem: pytest.Item | None):
    """End the federation before a test that does without it: nodes that wait compute, too."""
    if "federation" not in getattr(nextitem, "fixturenames", ()):
        for federation in RUNNING:
            federation.stop()


@pytest.fixture(scope="session")
def _federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("net"), 3)
    RUNNING.append(federation)
    try:
        yield federation
    finally:
        federation.stop()


@pytest.fixture
def federation(_federation):
    """The shared federation; :meth:`Federation.whole` makes it as a test needs it."""
    yield _federation
    _federation.tidy()

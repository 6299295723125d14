"""One thread and a private cache for every test; those that mostly wait start first."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes before unit tests, so that several workers (``pytest -n``) end together."""
    items.sort(key=lambda item: item.get_closest_marker("network") is None)

"""One thread and a private cache for every test; those that may take long start first."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with the longest time limits first, so that workers (``pytest -n``) end together."""

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker else 0.0

    items.sort(key=limit, reverse=True)

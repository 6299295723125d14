"""One thread and a private cache for every test, and the order in which they run.

``pytest -n 4 --dist loadfile --no-loadscope-reorder`` keeps the tests of a file with one worker,
for their fixtures. Files that start real processes come first: they wait more than they compute,
and the rest runs beside them.
"""

import pytest
import torch

from fedhet.rng import one_blas_thread

LONG = ("network", "engines", "sweeps", "methods", "hostile")  # folders, in this order


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    one_blas_thread()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHET_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return LONG.index(folder) if folder in LONG else len(LONG)

"""One thread and a private cache for every test, and how workers share them.

``pytest -n 5 --dist loadscope --no-loadscope-reorder`` keeps the tests of a file with one worker,
for their fixtures. Files that start real processes come first: they wait more than they compute,
and the rest runs beside them. What shares nothing comes last, test by test, so that all workers
end together.
"""

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from fedhet.rng import one_blas_thread

ALONE = {
    "test_zoo_matrix.py",
    "test_kinds_matrix.py",
    "test_fairness.py",
    "test_fuzz.py",
    "test_downloads.py",
}  # one test for each method


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    one_blas_thread()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHET_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("register")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Real processes, other files, single tests."""
    if item.get_closest_marker("network"):
        return 0
    return 2 if item.path.name in ALONE else 1


class Files(LoadScopeScheduling):
    """A file to a worker, whatever classes are in it; those in ALONE test by test."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file.rpartition("/")[2] in ALONE else file


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` knows it not
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    return Files(config, log)

"""One thread and a private cache for every test, and the order in which workers take them.

``pytest -n 4 --dist loadgroup --no-loadscope-reorder`` keeps the tests of a file with one worker,
for their fixtures. Files that start real processes come first: they wait more than they compute,
and the rest runs beside them. What shares nothing comes last, test by test, so that all workers
end together.
"""

import pytest
import torch

ALONE = {"test_zoo_matrix.py", "test_fairness.py", "test_fuzz.py"}  # one test for each method


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    for item in items:
        if item.path.name not in ALONE and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _turn(item: pytest.Item) -> int:
    """Real processes, other files, single tests."""
    if item.get_closest_marker("network"):
        return 0
    return 2 if item.path.name in ALONE else 1

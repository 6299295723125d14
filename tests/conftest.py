"""One thread and a private cache for every test, and the order in which they run.

``pytest -n 4 --dist loadfile --no-loadscope-reorder`` keeps the tests of a file with one worker,
for their fixtures. Files that start real processes come first: they wait more than they compute,
and the rest runs beside them. Then come the longest of the others, so that no worker ends late.
"""

import gc

import pytest

gc.disable()  # until all is imported: a quarter of what collecting the tests costs
REAL = ("network", "engines", "sweeps", "deploy")  # folders, in this order
LONG = (
    "test_every_method.py", "test_export.py", "test_same_bytes.py", "test_replies.py",
    "test_sum_rounds.py", "test_report.py",
)  # fmt: skip
FIRST = (*REAL, *LONG, "hostile", "examples", "sums", "strategies", "methods", "cli", "export")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    import torch  # here: pytest-xdist's controller runs no test, and needs none of it

    from fedhet.rng import one_blas_thread

    torch.set_num_threads(1)
    one_blas_thread()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHET_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # states of deployed nodes
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but look for none in what has been imported."""
    gc.freeze()
    gc.enable()


def _turn(item: pytest.Item) -> int:
    names = {item.path.name, item.path.parent.name}
    return next((turn for turn, name in enumerate(FIRST) if name in names), len(FIRST))

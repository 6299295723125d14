"""What the tests of data share."""

import pytest

from fedhet.data.cache import open_dataset


@pytest.fixture
def opened(tmp_path):
    """Write a file and open it; without content one that is there."""

    def open_(content, reading, name="p.csv", dataset="table", **keywords):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_dataset(
            dataset, data_path=str(path), reading=reading, cache_dir=tmp_path / "cache", **keywords
        )

    return open_

"""What the tests of data share."""

from pathlib import Path

import pytest

from fedhet.cli.app import execute
from fedhet.config.load import load_config
from fedhet.data.cache import open_dataset
from fedhet.errors import UserError


@pytest.fixture
def opened(tmp_path):
    """Write a file and open it; without content one that is there. An error is one line."""

    def open_(content, reading, name="p.csv", dataset="table", **keywords):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        keywords |= {"data_path": str(path), "cache_dir": tmp_path / "cache"}
        try:
            return open_dataset(dataset, reading=reading, **keywords)
        except UserError as error:
            assert "\n" not in str(error)
            raise

    return open_


@pytest.fixture
def init(tmp_path, monkeypatch, capsys):
    """Draft a preset for a file in an empty folder: the configuration, and what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))

    def call(name, *words, text=None):
        if text is not None:
            (tmp_path / name).write_text(text)
        assert execute(["init", name, *words]) == 0
        return load_config(tmp_path / f"{Path(name).stem}.yaml"), capsys.readouterr().out

    return call

"""Nothing is imported from the working folder, which may be a stranger's, by helpers of ours."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from fedhet.data import images

NAMES = ("json", "multiprocessing", "signal", "yaml", "fedhet")
HELPER = """
import multiprocessing
from fedhet.engines.system import look_away
if __name__ == "__main__":
    look_away()
    helper = multiprocessing.get_context("spawn").Process(target=print)
    helper.start()
    helper.join()
    assert helper.exitcode == 0
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch) -> Path:
    """A working folder whose modules leave a mark when they are imported."""
    folder = tmp_path / "sent"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    monkeypatch.chdir(folder)
    return tmp_path / "mark"


def test_a_decoder_of_images_is_our_own(stranger: Path, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    some = partial(images._decode_some, tmp_path, (4, 4, 3), False)
    ((image,),) = images._in_workers(some, [["a.png"]], 1)
    assert image.pixels is not None
    assert not stranger.exists()


def test_a_helper_of_multiprocessing_is_pythons_own(stranger: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HELPER)
    subprocess.run([sys.executable, "-P", str(program)], check=True, timeout=60)
    assert not stranger.exists()

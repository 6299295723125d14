"""Files that were made to burst the memory of who reads them."""

import io
import os
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import pytest
from PIL import Image

from fedhet.data import decode
from fedhet.data.cache import open_private_folder
from fedhet.data.data_file import Sites
from fedhet.data.image_source import Unread
from fedhet.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def png(width, height=None, mode="1"):
    made = io.BytesIO()
    Image.new(mode, (width, height or width)).save(made, "PNG")
    return made.getvalue()


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """A zip of less than a megabyte: 200 MiB of "png", 81 million pixels, bz2, one good image."""
    path = tmp_path_factory.mktemp("bombs") / "in.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/good.png", png(8))
        archive.writestr("cat/pixels.png", png(9_000))
        with archive.open("cat/bytes.png", "w") as file:
            for _ in range(200):
                file.write(bytes(MIB))
        with archive.open(_member("cat/packed.png", zipfile.ZIP_BZIP2), "w") as file:
            for _ in range(20):
                file.write(bytes(MIB))
    assert path.stat().st_size < MIB
    return path


def _member(name, method):
    info = zipfile.ZipInfo(name)
    info.compress_type = method
    return info


def lying(bombs, folder):
    """The same zip, whose table of contents says that the large member has 1,000 bytes."""
    content = bombs.read_bytes()
    claimed = (200 * MIB).to_bytes(4, "little")
    assert content.count(claimed) == 2  # local header (or descriptor) and table of contents
    path = folder / "lying.zip"
    path.write_bytes(content.replace(claimed, (1000).to_bytes(4, "little")))
    return path


def test_bombs_are_left_out_and_named_in_one_line(bombs, tmp_path):
    data = open_private_folder(str(bombs), cache_dir=tmp_path)
    assert data.paths == ("cat/good.png",)
    [line] = data.warnings
    assert line.startswith("ignored 3 files")
    assert f"cat/bytes.png ({200 * MIB} bytes, at most {64 * MIB} are read)" in line
    assert f"cat/pixels.png (more than {64 * MIB} pixels)" in line
    assert "cat/packed.png (packed by a method other than deflate)" in line


def test_a_member_that_lies_about_its_size_is_no_image(bombs, tmp_path):
    data = open_private_folder(str(lying(bombs, tmp_path)), cache_dir=tmp_path)
    assert data.paths == ("cat/good.png",)
    assert "cat/bytes.png" in data.warnings[0]


def test_bombs_alone_are_an_error_of_one_line(tmp_path):
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "a.png").write_bytes(png(9_000))
    with pytest.raises(UserError, match=r"no readable image .*a\.png \(more than"):
        open_private_folder(str(tmp_path / "in"), cache_dir=tmp_path)


@pytest.mark.parametrize("liar", [False, True])
def test_the_memory_of_a_decoder_stays_bounded(bombs, tmp_path, liar):
    """In a process of its own: the interpreter and Pillow are 60 MiB."""
    path = lying(bombs, tmp_path) if liar else bombs
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from fedhet.data.decode import decode_all\n"
        "names = ['cat/good.png', 'cat/pixels.png', 'cat/bytes.png', 'cat/packed.png']\n"
        "print(len(list(decode_all(Path(sys.argv[1]), names, (32, 32, 3)))))\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, kib = map(int, done.stdout.split())
    assert count == 4 and kib < 130 * 1024


def test_a_size_that_pillow_itself_refuses_is_named_in_the_same_words(tmp_path):
    header = bytearray(png(8))
    header[16:24] = (100_000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(header)
    found = list(decode.decode_all(tmp_path, ["a.png"], (8, 8, 3)))
    assert found == [Unread(f"more than {64 * MIB} pixels")]


def test_what_only_calls_itself_a_png_is_not_handed_to_other_programs(tmp_path):
    """Pillow would run Ghostscript on this one."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert list(decode.decode_all(tmp_path, ["a.png"], (8, 8, 3))) == [Unread()]


def test_workers_hand_the_reason_on(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png(9_000))
    (tmp_path / "b.png").write_bytes(png(8))
    monkeypatch.setattr(decode, "_PER_WORKER", 1)
    monkeypatch.setattr(decode, "_cores", lambda: 2)
    found = list(decode.decode_all(tmp_path, ["a.png", "b.png", "c.png"], (8, 8, 3)))
    assert found[0] == Unread(f"more than {64 * MIB} pixels")
    assert found[1].shape == (8, 8, 3) and found[2] == Unread()


def test_a_pipe_called_like_an_image_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    (unread,) = decode.decode_all(tmp_path, ["a.png"], 8)
    assert isinstance(unread, Unread)


def progressive(scans):
    """A JPEG whose last scan is there so many times more."""
    made = io.BytesIO()
    Image.new("L", (64, 64), 9).save(made, "JPEG", progressive=True)
    data = made.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * scans + data[-2:]


def test_an_image_of_very_many_scans_is_left_out_and_named(tmp_path):
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "good.jpg").write_bytes(progressive(0))
    (tmp_path / "in" / "cat" / "slow.jpg").write_bytes(progressive(decode.MAX_SCANS))
    good, slow = decode.decode_all(tmp_path / "in", ["cat/good.jpg", "cat/slow.jpg"], (8, 8, 3))
    assert not isinstance(good, Unread)
    assert isinstance(slow, Unread) and slow.reason == "more than 200 scans"


@pytest.mark.timeout(30)
def test_what_is_neither_file_nor_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "zero.zip").symlink_to("/dev/zero")
    (tmp_path / "loop.zip").symlink_to(tmp_path / "loop.zip")
    for name, said in (("pipe", "nor a file"), ("zero", "nor a file"), ("loop", "lead to each")):
        with pytest.raises(UserError, match=said):
            open_private_folder(str(tmp_path / f"{name}.zip"))


def test_many_sites_take_no_longer_each():
    sites, begun = Sites(), time.process_time()
    for start in range(0, 100_000, 1000):
        sites.add([(f"s{start + i}",) for i in range(1000)], lambda _: "x")
    numbers, names = sites.done()
    assert len(names) == 100_000 and numbers[-1] == 99_999
    assert time.process_time() - begun < 10  # a minute, when each looked at all of them

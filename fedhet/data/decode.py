"""Decoding of image files on all cores, in order.

Worker processes, not threads: Pillow holds the interpreter lock for most of a small image, and
two threads took 12 s for CIFAR-10's 60,000 where one took 8 s. The workers are plain
``python -c`` children that import neither torch nor the caller's main module, so they can be
started from a Ray actor as well. Worker w of W decodes the files w, w + W, ...; its pipe holds
it back when the reader is slower, so memory stays bounded.

So it does for files that were made to burst it: a few kilobytes may claim gigabytes, as a member
of a zip or as the size of an image. Whatever is larger than ``MAX_FILE_BYTES`` or ``MAX_PIXELS`` is
left out before it is unpacked; decoding one image at both limits takes about 0.6 GiB.
"""

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from fedhet.data.image_source import Losses, Pixels, Shape, Unread, losses, to_pixels
from fedhet.errors import UserError
from fedhet.files import cpus
from fedhet.reading.bounds import open_regular

MAX_FILE_BYTES = 64 << 20
MAX_PIXELS = 64 << 20
MAX_SCANS = 200  # of a JPEG: each goes over the whole image, of which a progressive one has ten
# Others are not opened, whatever a file is called: Pillow would run Ghostscript for some.
_FORMATS = [
    BmpImagePlugin.BmpImageFile.format,
    BmpImagePlugin.DibImageFile.format,
    GifImagePlugin.GifImageFile.format,
    JpegImagePlugin.JpegImageFile.format,  # and MPO, which begins like one
    PngImagePlugin.PngImageFile.format,
    TiffImagePlugin.TiffImageFile.format,
    WebPImagePlugin.WebPImageFile.format,
]
# Of the other methods Python unpacks a whole block, however large, before it looks at a limit.
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_SCAN = b"\xff\xda"  # begins one; in the data of an image a byte of ones is followed by another
_MAX_WORKERS = 16
_PER_WORKER = 500
_BAD = 0  # a flag before what is sent: else 1 + 2 x what the image has lost
Read = Callable[[str], bytes]
Decoded = tuple[Pixels, int] | Unread  # the pixels, and what the image has lost
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedhet.data.decode import serve; serve()"
)


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip for reading.

    Raises:
        UserError: not a zip, or not readable.

    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
            raise UserError(f"data-path {path}: neither a folder nor a file")
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise UserError(f"data-path {path}: neither a folder nor a readable zip file") from error
    except OSError as error:
        raise UserError(f"data-path {path}: {error.strerror}") from error


def decode_all(
    root: Path, names: list[str], shape: Shape, lost: Losses | None = None
) -> Generator[Pixels | Unread, None, None]:
    """Yield uint8 of that shape, or why there is none, per name below ``root``.

    ``root`` is a directory or a zip. ``lost`` counts what images lose by it. Small sets are decoded
    here: a worker takes 0.2 s to start.

    Raises:
        UserError: a worker died, such as for lack of memory.

    """
    workers = min(_MAX_WORKERS, cpus(), 1 + len(names) // _PER_WORKER)
    found = _in_workers(root, names, shape, workers) if workers > 1 else _here(root, names, shape)
    with closing(found):
        for one in found:
            if isinstance(one, Unread):
                yield one
                continue
            pixels, less = one
            if lost is not None:
                lost.add(less)
            yield pixels


def _here(root: Path, names: list[str], shape: Shape) -> Generator[Decoded, None, None]:
    with ExitStack() as stack:
        read: Read = lambda name: _bounded_file(root / name)  # noqa: E731
        if not root.is_dir():
            archive = stack.enter_context(open_zip(root))
            read = lambda name: _bounded_member(archive, name)  # noqa: E731
        for name in names:
            yield _decode(read, name, shape)


class _TooLarge(Exception):
    """What must not be unpacked; the text says how large it claims to be."""


def _bounded_file(path: Path) -> bytes:
    with open_regular(path) as (file, size):
        return _bounded(file, size)


def _bounded_member(archive: zipfile.ZipFile, name: str) -> bytes:
    member = archive.getinfo(name)
    if member.compress_type not in _METHODS:
        raise _TooLarge("packed by a method other than deflate")
    with archive.open(member) as file:
        return _bounded(file, member.file_size)


def _bounded(file: IO[bytes], claimed: int) -> bytes:
    """The content, if it claims no more than the limit; more than it claims is never read."""
    if claimed <= MAX_FILE_BYTES:
        return file.read(claimed)
    raise _TooLarge(f"{claimed} bytes, at most {MAX_FILE_BYTES} are read")


def _decode(read: Read, name: str, shape: Shape) -> Decoded:
    """One image, and what it lost, or why not: decoders raise nearly every exception."""
    try:
        data = read(name)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if isinstance(image, JpegImagePlugin.JpegImageFile) and data.count(_SCAN) > MAX_SCANS:
                return Unread(f"more than {MAX_SCANS} scans")
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            lost = losses(image, shape)
            return to_pixels(image, shape), lost
    except _TooLarge as reason:
        return Unread(str(reason))
    except Image.DecompressionBombError:
        return Unread(f"more than {MAX_PIXELS} pixels")
    except Exception:
        return Unread()


def _in_workers(
    root: Path, names: list[str], shape: Shape, workers: int
) -> Generator[Decoded, None, None]:
    started: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(workers):
            started.append(_start(root, names[first::workers], shape))
        for index in range(len(names)):
            yield _receive(started[index % workers], shape)
    finally:
        for worker in started:
            worker.kill()
            if worker.stdout is not None:
                worker.stdout.close()
            worker.wait()


def _start(root: Path, names: list[str], shape: Shape) -> subprocess.Popen[bytes]:
    # -P: with -c alone Python would look into the working folder first, which may be a stranger's.
    command = [sys.executable, "-P", "-c", _START, json.dumps(sys.path)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps([str(root), names, shape]).encode())
        worker.stdin.close()
    except BrokenPipeError:
        pass  # it died: reported when its first answer is missing
    return worker


def _receive(worker: subprocess.Popen[bytes], shape: Shape) -> Decoded:
    assert worker.stdout is not None
    flag = worker.stdout.read(1)
    if flag == bytes([_BAD]):
        return Unread(worker.stdout.readline().decode().rstrip())
    pixels = worker.stdout.read(prod(shape))
    if not flag or len(pixels) != prod(shape):
        raise UserError(f"data-path: a decoding process ended early (exit code {worker.wait()})")
    return np.frombuffer(pixels, dtype=np.uint8).reshape(shape), flag[0] >> 1


def serve() -> None:
    """Be a worker: one job from standard input, the images to standard output."""
    # Ctrl-C reaches the whole process group; the parent then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    root, names, shape = json.load(sys.stdin.buffer)
    out = sys.stdout.buffer
    try:
        for found in _here(Path(root), names, tuple(shape)):
            if isinstance(found, Unread):
                out.write(bytes([_BAD]) + f"{found.reason}\n".encode())
            else:
                out.write(bytes([1 + 2 * found[1]]) + found[0].tobytes())
        out.flush()
    except BrokenPipeError:
        os._exit(1)  # the reader is gone, and so is everything worth a message

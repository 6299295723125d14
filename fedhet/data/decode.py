"""Decoding of image files on all cores, in order.

Worker processes, not threads: Pillow holds the interpreter lock for most of a small image, and
two threads took 12 s for CIFAR-10's 60,000 where one took 8 s. The workers are plain
``python -c`` children that import neither torch nor the caller's main module, so they can be
started from a Ray actor as well. Worker w of W decodes the files w, w + W, ...; its pipe holds
it back when the reader is slower, so memory stays bounded.
"""

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from PIL import Image

from fedhet.data.listing import Pixels, to_pixels
from fedhet.errors import UserError

_MAX_WORKERS = 16
_PER_WORKER = 500
_GOOD, _BAD = b"\1", b"\0"
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
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise UserError(f"data-path {path}: neither a folder nor a readable zip file") from error
    except OSError as error:
        raise UserError(f"data-path {path}: {error.strerror}") from error


def decode_all(root: Path, names: list[str], size: int) -> Generator[Pixels | None, None, None]:
    """Yield ``(size, size, 3)`` uint8, or ``None`` for an unreadable file, per name below ``root``.

    ``root`` is a directory or a zip. Small sets are decoded here: a worker takes 0.2 s to start.

    Raises:
        UserError: a worker died, such as for lack of memory.

    """
    workers = min(_MAX_WORKERS, _cores(), 1 + len(names) // _PER_WORKER)
    return _in_workers(root, names, size, workers) if workers > 1 else _here(root, names, size)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _here(root: Path, names: list[str], size: int) -> Generator[Pixels | None, None, None]:
    with ExitStack() as stack:
        read: Callable[[str], bytes]
        if root.is_dir():
            read = lambda name: (root / name).read_bytes()  # noqa: E731
        else:
            read = stack.enter_context(open_zip(root)).read
        for name in names:
            yield _decode(read, name, size)


def _decode(read: Callable[[str], bytes], name: str, size: int) -> Pixels | None:
    """One image, or ``None``: decoders raise nearly every exception on broken files."""
    try:
        with Image.open(io.BytesIO(read(name))) as image:
            return to_pixels(image, size)
    except Exception:
        return None


def _in_workers(
    root: Path, names: list[str], size: int, workers: int
) -> Generator[Pixels | None, None, None]:
    started: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(workers):
            started.append(_start(root, names[first::workers], size))
        for index in range(len(names)):
            yield _receive(started[index % workers], size)
    finally:
        for worker in started:
            worker.kill()
            if worker.stdout is not None:
                worker.stdout.close()
            worker.wait()


def _start(root: Path, names: list[str], size: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _START, json.dumps(sys.path)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps([str(root), names, size]).encode())
        worker.stdin.close()
    except BrokenPipeError:
        pass  # it died: reported when its first answer is missing
    return worker


def _receive(worker: subprocess.Popen[bytes], size: int) -> Pixels | None:
    assert worker.stdout is not None
    flag = worker.stdout.read(1)
    if flag == _BAD:
        return None
    pixels = worker.stdout.read(3 * size * size)
    if flag != _GOOD or len(pixels) != 3 * size * size:
        raise UserError(f"data-path: a decoding process ended early (exit code {worker.wait()})")
    return np.frombuffer(pixels, dtype=np.uint8).reshape(size, size, 3)


def serve() -> None:
    """Be a worker: one job from standard input, the images to standard output."""
    # Ctrl-C reaches the whole process group; the parent then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    root, names, size = json.load(sys.stdin.buffer)
    out = sys.stdout.buffer
    try:
        for pixels in _here(Path(root), names, size):
            out.write(_BAD if pixels is None else _GOOD + pixels.tobytes())
        out.flush()
    except BrokenPipeError:
        os._exit(1)  # the reader is gone, and so is everything worth a message

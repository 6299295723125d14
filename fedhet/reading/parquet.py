"""Parquet files of strangers: unpacked by a child process whose memory is bounded.

What a Parquet file says of itself need not be true, and a page of some bytes may unpack to
gigabytes, or one text be repeated a million times. So the child may take ``MEMORY`` bytes beside
what it has after its imports, and whatever needs more, or crashes the library, is an error of one
line here. It sends pieces of bounded size: a line of JSON with texts, then its numbers.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedhet.errors import UserError
from fedhet.reading.columns import MAX_ROWS, Numbers, Piece, Texts, check_names

MEMORY = 1 << 30  # bytes that the child may take to unpack
_MAGIC = b"PAR1"
_FOOTER = 16 << 20  # bytes
_END = 8  # bytes: the footer's length, and the magic word
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedhet.reading.parquet_child import serve; serve()"
)

Answer = tuple[dict[str, Texts | Numbers], dict[str, Any]]
DONE: Answer = ({}, {"done": True})


def is_parquet(path: Path) -> bool:
    """Whether a file begins like one, whatever it is called."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class ParquetFile:
    """A Parquet file: ``columns``, and its rows in pieces; rows are numbered from 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = f"data-path {path}"
        if importlib.util.find_spec("pyarrow") is None:
            raise UserError(
                f"{self.where}: a Parquet file needs pyarrow: pip install 'fedhet[parquet]'"
            )
        self._check_ends()
        self._child: _Child | None = _Child(path, self.where)
        _, head = self._child.answer()
        self.columns: list[str] = head["columns"]
        self._kinds: list[str] = head["kinds"]
        check_names(self.columns, self.where, "a model knows columns by their names")
        if head["rows"] > MAX_ROWS:
            raise UserError(f"{self.where}: more than {MAX_ROWS:,} rows")

    def pieces(self, texts: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[Piece]:
        """Those columns of the rows; of ``numbers`` those of texts come as texts.

        Raises UserError for a column that is neither, for no row at all, and for too many.
        """
        kinds = dict(zip(self.columns, self._kinds, strict=True))
        for name in (*texts, *numbers):
            if kinds[name] not in ("number", "text"):
                raise UserError(
                    f"{self.where} column {name!r}: {kinds[name]} is neither numbers nor texts: "
                    "name it in ignore"
                )
        plain = [name for name in numbers if kinds[name] == "number"]
        others = [name for name in (*texts, *numbers) if name not in plain]
        count, child, self._child = 0, self._child, None
        if child is None:  # it has told its rows before
            child = _Child(self.path, self.where)
            child.answer()
        child.ask(others, plain)
        try:
            for columns, about in iter(child.answer, DONE):
                start, count = count, count + about["count"]
                if count > MAX_ROWS:
                    raise UserError(f"{self.where}: more than {MAX_ROWS:,} rows")
                yield Piece(columns, range(start, count), self.where, "row")
        finally:
            child.end()
        if not count:
            raise UserError(f"{self.where}: no row in it")

    def _check_ends(self) -> None:
        """UserError unless the file begins and ends as one, with a footer of reasonable size."""
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                file.seek(max(0, size - _END))
                end = file.read(_END)
        except OSError as error:
            raise UserError(f"{self.where}: {error.strerror}") from error
        length = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or length > size:
            raise UserError(f"{self.where}: no sound Parquet file: its end is missing or encrypted")
        if length > _FOOTER:
            raise UserError(
                f"{self.where}: its footer has {length:,} bytes, at most {_FOOTER:,} are read"
            )


class _Child:
    """The process that unpacks; it ends with this object at the latest."""

    def __init__(self, path: Path, where: str) -> None:
        self.where = where
        command = [sys.executable, "-P", "-c", _START, json.dumps(sys.path)]
        # malloc gives back and refuses at once; Arrow's other pools keep gigabytes in stock.
        env = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=env,
        )  # fmt: skip
        self.end = weakref.finalize(self, _end, self._process)
        self._send([str(path), MEMORY])

    def ask(self, texts: list[str], numbers: list[str]) -> None:
        """Which columns are wanted, and as what."""
        self._send([texts, numbers])

    def _send(self, what: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: reported when its answer is missing

    def answer(self) -> Answer:
        """Columns, and what is said about them; UserError for what the file has not, or is not."""
        stream = self._process.stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            raise UserError(
                f"{self.where}: no sound Parquet file, or one that takes more than "
                f"{MEMORY >> 20} MiB to unpack (the process that unpacked it ended with code "
                f"{self._process.wait()})"
            )
        about = json.loads(line)
        if "error" in about:
            raise UserError(f"{self.where}{about['error']}")
        columns: dict[str, Texts | Numbers] = about.pop("texts", {})
        for name in about.get("numbers", ()):
            columns[name] = np.frombuffer(stream.read(8 * about["count"]), dtype=np.float64)
        return columns, about


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()

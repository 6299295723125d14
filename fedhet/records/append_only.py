"""Files that only grow, whose bytes up to a point are known by their number and digest."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhet.errors import VerifyError
from fedhet.files import private_files, sync, write_text
from fedhet.reading.bounds import read_bytes
from fedhet.reading.tables import MOST_CSV


class Lines:
    """A text file that one process appends to; every append is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._digest = hashlib.sha256()

    def append(self, text: str) -> None:
        """Add ``text``, whole lines; a full disk may leave a part of it, which no mark covers."""
        data = text.encode()
        new = not self.path.exists()
        with private_files(), self.path.open("ab") as file:
            file.write(data)
        sync(self.path)
        if new:
            sync(self.path.parent)
        self._digest.update(data)
        self.size += len(data)

    def mark(self) -> dict[str, Any]:
        """Where the file is now, for a checkpoint: whatever comes after it is not final."""
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}

    def take_up(self, mark: Mapping[str, Any]) -> None:
        """Go on from a mark: what was written after it is dropped.

        Raises VerifyError if what was written before it has changed.
        """
        data = final_part(self.path, mark)
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(len(data))
            sync(self.path)
        self.size, self._digest = len(data), hashlib.sha256(data)


def present_bytes(path: Path) -> bytes:
    """The whole file, as far as its bound; none if it is not there."""
    return read_bytes(path, MOST_CSV) if path.exists() else b""


def final_part(path: Path, mark: Mapping[str, Any]) -> bytes:
    """The bytes up to the mark; VerifyError if they are not those that were marked."""
    data = present_bytes(path)
    size, final = int(mark["bytes"]), data[: int(mark["bytes"])]
    if len(final) < size:
        raise VerifyError(f"'{path}' is cut: {len(final)} bytes of {size} are there")
    if hashlib.sha256(final).hexdigest() != mark["sha256"]:
        raise VerifyError(f"'{path}' is not what was written: a line was altered, added or lost")
    return final


class Counter:
    """A number in a file that only grows: each is on the disk before it is given out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def next(self) -> int:
        """One more than ever before; VerifyError if the file is damaged."""
        last = 0
        if self.path.exists():
            text = read_bytes(self.path, 64).decode(errors="replace").strip()
            if not re.fullmatch(r"[0-9]{1,10}", text):
                raise VerifyError(f"'{self.path}' is damaged: it holds no number")
            last = int(text)
        write_text(self.path, f"{last + 1}\n", synced=True, private=True)
        return last + 1

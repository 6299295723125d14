"""Files of a folder that is watched: read when they have changed, their damage named and kept."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from fedhet.errors import UserError, VerifyError, one_line
from fedhet.reading.bounds import read_bytes
from fedhet.reading.growing import Growing

T = TypeVar("T")


def told(error: Exception, folder: Path) -> str:
    """A problem in one line, without the folder that is named on the page already."""
    return one_line(str(error).replace(f"{folder}/", ""), 300)


class Document(Generic[T]):
    """A file that is replaced as a whole."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self.path = path
        self.problem = ""
        self._reader = read
        self._value: T | None = None
        self._seen: tuple[int, ...] = ()

    def look(self) -> T | None:
        """What it says; None while it is not there, or is damaged."""
        try:
            found = os.stat(self.path)
            seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if seen != self._seen:
                self._seen, self._value, self.problem = seen, None, ""
                self._value = self._reader(self.path)
        except FileNotFoundError:
            self._seen, self._value, self.problem = (), None, ""
        except (OSError, UserError, VerifyError) as error:
            self.problem = told(error, self.path.parent)
        return self._value


class Tail(Generic[T]):
    """A file of lines that grows; ``parse`` takes whole lines from the file's start or a head on.

    With ``headed`` every later piece is given to ``parse`` below the first line.
    """

    def __init__(
        self,
        path: Path,
        limit: int,
        parse: Callable[[Path, bytes], Iterable[T]],
        *,
        headed: bool = False,
    ) -> None:
        self.path, self.limit = path, limit
        self.problem = ""
        self._parse, self._headed = parse, headed
        self._growing = Growing(path, limit)
        self._head = b""

    def look(self) -> tuple[bool, list[T]]:
        """Whether this is all there is, and what is new; what is below damage is not read."""
        found: list[T] = []
        try:
            start, data = self._growing.look()
            if not start:
                self.problem, self._head = "", data[: data.find(b"\n") + 1]
        except (OSError, VerifyError) as error:
            self.problem = told(error, self.path.parent)
            return True, found
        if not data or self.problem:
            return not start, found
        head = self._head if start and self._headed else b""
        try:
            for one in self._parse(self.path, head + data):
                found.append(one)  # noqa: PERF402  (what is before the damage is kept)
        except VerifyError as error:
            self.problem = told(error, self.path.parent) if not start else self._whole()
        return not start, found

    def _whole(self) -> str:
        """What is wrong, with its place in the whole file."""
        try:
            for _ in self._parse(self.path, read_bytes(self.path, self.limit)):
                pass
        except (OSError, VerifyError) as error:
            return told(error, self.path.parent)
        return ""

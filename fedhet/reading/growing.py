"""A file of lines that a process appends to while others read it: each look takes what is new."""

import os
from pathlib import Path

from fedhet.reading.bounds import read_bytes

_KNOWN = 64  # bytes before the end of what was read that must still be there


class Growing:
    """Whole lines of a file as they come; ``limit`` as in ``fedhet.reading.bounds.read_bytes``."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._read = 0  # bytes
        self._end = b""  # the last of them
        self._seen: tuple[int, ...] = ()  # what the file system said then

    def look(self) -> tuple[int, bytes]:
        """The whole lines that are new, and at which byte they begin.

        At 0 they are all there is: at first, and where the file is gone or began anew. Raises
        ReadError for what is no regular file, or too long.
        """
        try:
            found = os.stat(self.path)
            seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._seen:
                return self._read, b""
            if not self._goes_on(seen):
                self._read, self._end = 0, b""
            start = self._read
            data = read_bytes(self.path, self.limit, start=start)
        except FileNotFoundError:
            self._read, self._end, self._seen = 0, b"", ()
            return 0, b""
        whole = data[: data.rfind(b"\n") + 1]
        self._seen, self._read = seen, start + len(whole)
        self._end = (self._end + whole)[-_KNOWN:]
        return start, whole

    def _goes_on(self, seen: tuple[int, ...]) -> bool:
        """Whether what was read is still there: a resumed run cuts its files and writes on."""
        if seen[:2] != self._seen[:2] or seen[2] < self._read:
            return False
        start, size = self._read - len(self._end), len(self._end)
        return read_bytes(self.path, self.limit, most=size, start=start) == self._end

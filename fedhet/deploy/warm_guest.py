"""Who comes to the warm server and what they say, heard without waiting for anybody.

A guest speaks when it likes: what has arrived is kept until its wish is whole, and the server goes
on with the others meanwhile. One that is too slow, or says nothing that makes sense, is shown out.
"""

import os
import socket
import struct
import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedhet.reading.structured import parse_object, shaped

GREETING = 5.0  # seconds for a guest to say what it wants
LONGEST = 8 * 2**20  # bytes of a wish: Linux lets arguments and environment have 6 MiB
CREDENTIALS = "3i"  # what Linux tells about a guest: process, user, group
_HEAD = 4  # bytes that tell the length
_FILES = 3  # stdin, stdout, stderr
_GO = b"go\n"


class Wish(BaseModel):
    """To become a program (``words``), or to be told how the server is and, so asked, to hold it.

    What a shim gives along: see ``warm_shim.greet``.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    words: Annotated[list[str], Field(min_length=1)] | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    folder: str = "/"
    umask: int = Field(default=0o077, ge=0, le=0o777)
    nice: int = Field(default=0, ge=-20, le=19)
    lease: bool = False


class Guest:
    """A connection until it has said what it wants."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.files: list[int] = []
        self.wish: Wish | None = None
        self._data = b""
        connection.setblocking(False)
        self.extend()

    def extend(self) -> None:
        """Give it its time anew: it has been asked something."""
        self.deadline = time.monotonic() + GREETING

    def hear(self) -> Wish | None:
        """Take what has arrived; the wish once it is whole.

        ValueError for what makes no sense, OSError for a guest that has hung up.
        """
        data, files, _, _ = socket.recv_fds(self.connection, 65_536, _FILES)
        self.files += files
        if len(self.files) > _FILES:
            raise ValueError("more open files than a program starts with")
        if not data:
            raise ConnectionError("the guest hung up")
        self._data += data
        length = int.from_bytes(self._data[:_HEAD], "big")
        if length > LONGEST:
            raise ValueError(f"a wish of {length} bytes")
        if len(self._data) < _HEAD + length or len(self._data) < _HEAD:
            return None
        text, self._data = self._data[_HEAD : _HEAD + length], self._data[_HEAD + length :]
        self.wish = shaped(Wish, parse_object(text, "a guest's wish"), "a guest's wish")
        return self.wish

    def hear_go(self) -> bool:
        """Whether it has said, after its wish, that it waits for the program to start."""
        data = self.connection.recv(len(_GO))
        if not data:
            raise ConnectionError("the guest hung up")
        self._data += data
        if not _GO.startswith(self._data):
            raise ValueError("the guest did not say `go`")
        return self._data == _GO

    def close_files(self) -> None:
        """Close its files here; a child that was forked for it has its own."""
        while self.files:
            os.close(self.files.pop())

    def close(self) -> None:
        """Show it out."""
        self.close_files()
        self.connection.close()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as Linux knows them."""
    length = struct.calcsize(CREDENTIALS)
    known: Any = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, length)
    pid, user, _ = struct.unpack(CREDENTIALS, known)
    return pid, user

"""Hands a program that Flower starts to the warm server of this machine, and waits for it.

Run by path as ``python -SIE warm_shim.py SOCKET PROGRAM ARGUMENTS...`` in place of PROGRAM (a full
path): the standard library and nothing else, so that it costs 0.03 CPU seconds. Without a server
that answers, the real program takes over in this very process.

Either gets SIGTERM when the process that started it is gone. Flower's own remedy, a thread that
raises SIGINT, does not wake a main thread that waits for a message: it would outlive its SuperNode.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PATIENCE = 30.0  # seconds for the server to answer: fifty nodes may ask at the same time


def greet(address: str, words: list[str]) -> socket.socket:
    """Send what the program needs: arguments, environment, folder, open files."""
    umask = os.umask(0o077)
    os.umask(umask)
    wish = {
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "nice": os.nice(0),
    }
    request = json.dumps(wish).encode()
    server = socket.socket(socket.AF_UNIX)
    server.settimeout(PATIENCE)
    server.connect(address)
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    return server


def line(server: socket.socket) -> str:
    """What the server says next; empty when it has hung up."""
    text = b""
    while not text.endswith(b"\n"):
        part = server.recv(1)
        if not part:
            return ""
        text += part
    return text.decode().strip()


def main() -> NoReturn:
    """Work of the program; its exit code becomes ours."""
    address, *words = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        server = greet(address, words)
        if line(server) != "ready":
            raise OSError("no warm server")
        server.sendall(b"go\n")  # until then it has done nothing
    except OSError:
        os.execv(words[0], words)
    server.settimeout(None)
    with contextlib.suppress(OSError, ValueError):
        child = int(line(server))

        def pass_on(number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        sys.exit(int(line(server)))
    sys.exit("the warm server ended while the program ran")


if __name__ == "__main__":
    main()

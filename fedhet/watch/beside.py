"""A watcher beside a run: a process of its own, that ends with the command that started it.

The command has the socket and the token already, so that it can say the address at once; the token
goes through a pipe, where no list of processes shows it.
"""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fedhet.engines.system import guarded
from fedhet.watch.finding import open_view
from fedhet.watch.server import address, listen, new_token, serve

FAREWELL = 5.0  # seconds for an orderly end


@contextlib.contextmanager
def watcher(folder: Path, tls: str = "") -> Iterator[str]:
    """Serve the page of a run folder meanwhile; yields its address.

    ``tls`` is the folder of the server whose sites are shown with it, if there is one.
    """
    token = new_token()
    with listen(0) as found:
        program = [sys.executable, "-P", "-m", "fedhet.watch.beside"]
        words = [*program, str(found.fileno()), str(folder), tls]
        process = subprocess.Popen(
            guarded(words), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            pass_fds=[found.fileno()], start_new_session=True,
        )  # fmt: skip
        where = address(found, token)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(token.encode())
        yield where
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(FAREWELL)
        process.kill()
        process.wait()


if __name__ == "__main__":
    number, run, superlink = sys.argv[1:]
    serve(open_view(Path(run), superlink), socket.socket(fileno=int(number)), sys.stdin.read())

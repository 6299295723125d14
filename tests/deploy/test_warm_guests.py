"""What guests of the warm server can say, and not say, without ending it or holding up others."""

import json
import os
import signal
import socket
import time

import psutil
import pytest
from tests.runtime.test_warm import place, server, shim, until

from fedhet.deploy import warm, warm_guest
from fedhet.errors import RunFailedError

__all__ = ["place", "server"]  # fixtures
pytestmark = pytest.mark.skipif(not warm.available(), reason="needs Linux's fork")


def guest(place):
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.connect(str(place / "socket"))
    return made


def wish(value) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text


SHIM = {"words": ["toy"], "environment": {}, "folder": "/", "umask": 0, "nice": 0}
NONSENSE = {
    "no words": wish(SHIM | {"words": []}),
    "words that are none": wish(SHIM | {"words": 7}),
    "a word that is none": wish(SHIM | {"words": [None]}),
    "a number": wish(5),
    "a list": wish(["words"]),
    "null": wish(None),
    "nothing": wish({"environment": {"A": 1}, "words": ["toy"]}),
    "an umask of text": wish(SHIM | {"umask": "x"}),
    "something unknown": wish({"lease": True, "more": 1}),
    "no JSON": wish(b"{"),
    "bytes": wish(b"\xff\xfe"),
    "a deep one": wish(b"[" * 100_000),
    "digits": wish(b"9" * 100_000),
    "no length": b"\0",
    "a length beyond all": b"\xff\xff\xff\xff",
    "a length of nothing": b"\0\0\0\0",
    "another program": wish(SHIM | {"words": ["/bin/sh"]}),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_shown_out_and_the_server_goes_on(place, server, kind):
    made = guest(place)
    made.sendall(NONSENSE[kind])
    if kind != "no length":
        assert made.recv(1) == b""
    made.close()
    assert warm._call(str(place / "socket"), {})[1]["nodes"] == 1
    assert server.poll() is None


def test_a_guest_that_does_not_go_on_is_shown_out(place, server):
    made = guest(place)
    made.sendall(wish(SHIM))
    assert made.recv(6) == b"ready\n"
    made.sendall(b"no\n")
    assert made.recv(1) == b""
    assert warm._call(str(place / "socket"), {})[1]["jobs"] == []


def test_silent_guests_hold_up_nobody(place, server):
    silent = [guest(place) for _ in range(20)]
    silent[0].sendall(b"\0\0")
    silent[1].sendall(wish(SHIM))  # and never says that it is still there
    begun = time.monotonic()
    made = shim(place, "a", env={})
    made.communicate("x")
    assert made.returncode == 7
    assert time.monotonic() - begun < warm_guest.GREETING - 1
    for one in silent:  # and nobody stays for ever
        one.settimeout(warm_guest.GREETING + 5)
        while one.recv(64):
            pass


def test_it_survives_two_children_that_were_killed_while_it_was_stopped(place, server):
    """Their ends and their shims' ends are heard at once, each about a child that is gone."""
    made = [shim(place, "sleep") for _ in range(2)]
    for one in made:
        assert one.stdout.readline() == "asleep\n"
    jobs = warm._call(str(place / "socket"), {})[1]["jobs"]
    server.send_signal(signal.SIGSTOP)
    try:
        for job in jobs:
            os.kill(job["pid"], signal.SIGKILL)
        for one in made:
            one.kill()
            one.wait(30)
    finally:
        server.send_signal(signal.SIGCONT)
    until(lambda: warm._call(str(place / "socket"), {})[1]["jobs"] == [])
    assert server.poll() is None
    assert not any(psutil.pid_exists(job["pid"]) for job in jobs)


@pytest.mark.parametrize("what", ["a file", "a link to nowhere", "a file below", "a link below"])
def test_what_stands_where_its_folder_belongs_is_named(tmp_path, what):
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    path = warm.folder(env) if "below" in what else tmp_path / "fedhet"
    if "below" in what:
        path.rmdir()
    if "file" in what:
        path.touch()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunFailedError, match=f"{path}' cannot be a folder of this user's"):
        warm.folder(env)

"""The warm server and its shims, with a toy program instead of Flower's."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedhet.deploy import warm, warm_server, warm_shim
from fedhet.deploy.warm_server import Preloaded, digest
from fedhet.errors import RunFailedError

pytestmark = pytest.mark.skipif(not warm.available(), reason="needs Linux's fork")

TOY = """
import json, os, sys, time
loaded = time.monotonic()

def main():
    word = sys.argv[1]
    if word == "sleep":
        print("asleep", flush=True)
        time.sleep(60)
    if word == "die":
        os.kill(os.getpid(), 9)
    if word == "say":
        sys.exit("a last word")
    print(json.dumps([sys.argv[1:], os.environ.get("COLOUR"), os.getcwd(), os.umask(0o22),
                      sys.stdin.read(), loaded, os.getpid()]), flush=True)
    return 7
"""
SERVE = """
import sys
from fedhet.deploy import warm_server as w
w.PROGRAMS, w.WORK, w.LINGER, w.clients = {"toy": ("toy", "main")}, (), 0.3, lambda: []
w.serve(sys.argv[1])
"""


def until(what, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the toy's module and, as the real program, one that exits with 99."""
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "toy"
    real.write_text("#!/bin/sh\nexit 99\n")
    real.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server(place):
    """A server that knows the toy, and our lease on it."""
    address = str(place / "socket")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), *sys.path])}
    process = subprocess.Popen([sys.executable, "-c", SERVE, address], env=env)
    until(lambda: Path(address).exists() and warm._call(address, {}) is not None)
    lease = warm._lease(address)
    yield process
    lease.close()
    assert process.wait(30) == 0  # it ends by itself once nobody needs it
    assert not Path(address).exists()


def shim(place, *words, **changes):
    command = [sys.executable, "-SIE", warm_shim.__file__, str(place / "socket")]
    return subprocess.Popen(
        [*command, str(place / "real" / "toy"), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **changes,
    )  # fmt: skip


def test_a_program_gets_all_that_it_was_started_with(place, server):
    (place / "elsewhere").mkdir()
    made = [
        shim(place, "a", "b c", env={"COLOUR": colour}, cwd=place / "elsewhere", umask=0o27)
        for colour in ("red", "blue")
    ]
    answers = [json.loads(one.communicate(text)[0]) for one, text in zip(made, "xy", strict=True)]
    assert [one.returncode for one in made] == [7, 7]
    assert [answer[:5] for answer in answers] == [
        [["a", "b c"], "red", str(place / "elsewhere"), 0o27, "x"],
        [["a", "b c"], "blue", str(place / "elsewhere"), 0o27, "y"],
    ]
    assert answers[0][5] == answers[1][5]  # the module was imported once
    assert answers[0][6] != answers[1][6]  # by the parent of both


@pytest.mark.parametrize(("word", "code"), [("die", 128 + 9), ("say", 1)])
def test_the_end_of_a_program_is_the_end_of_its_shim(place, server, word, code):
    made = shim(place, word)
    said = made.communicate()[1]
    assert made.returncode == code
    assert ("a last word" in said) == (word == "say")


def test_signals_reach_the_program_and_kill_9_takes_it_along(place, server):
    for number in (signal.SIGTERM, signal.SIGKILL):
        made = shim(place, "sleep")
        assert made.stdout.readline() == "asleep\n"
        (job,) = warm._call(str(place / "socket"), {})[1]["jobs"]
        child = psutil.Process(job["pid"])
        made.send_signal(number)
        made.wait(30)
        until(lambda child=child: not child.is_running())


ORPHAN = """
import subprocess, sys
made = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
made.stdout.readline()
print(made.pid, flush=True)
"""


@pytest.mark.parametrize("address", ["socket", ""])
def test_a_program_ends_with_the_process_that_started_it(place, server, address):
    """From the warm server, and as itself."""
    real = place / "real" / "toy"
    real.write_text("#!/bin/sh\necho asleep\nexec sleep 600\n")
    command = [sys.executable, "-SIE", warm_shim.__file__, str(place / address) if address else ""]
    started = [sys.executable, "-c", ORPHAN, *command, str(real), "sleep"]
    pid = int(subprocess.run(started, capture_output=True, text=True, check=True).stdout)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
    until(lambda: warm._call(str(place / "socket"), {})[1]["jobs"] == [])


def test_without_a_server_the_real_program_runs(place):
    made = shim(place, "a")
    made.communicate()
    assert made.returncode == 99


def test_what_the_server_does_not_know_runs_as_it_is(place, server):
    (place / "real" / "toy").rename(place / "real" / "other")
    command = [sys.executable, "-SIE", warm_shim.__file__, str(place / "socket")]
    assert subprocess.run([*command, str(place / "real" / "other")], check=False).returncode == 99


def test_a_server_that_dies_is_noticed(place, server):
    (place / "bin").mkdir()
    held = warm.Warm.__new__(warm.Warm)
    held._lease = warm._lease(str(place / "socket"))
    assert held.held()
    held.release()
    assert not held.held()


def package(root, text):
    for name in ("fedhet", "strategies", "clients"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
    (root / "fedhet" / "__init__.py").write_text(
        "__path__.append(__file__.rsplit('/', 2)[0])"  # as in a checkout
    )
    (root / "clients" / "own.py").write_text(text)
    return root


@pytest.mark.parametrize(("text", "same"), [("WHO = 1", True), ("WHO = 2", False)])
def test_a_run_gets_the_imported_modules_only_if_its_code_is_the_same(
    tmp_path, monkeypatch, text, same
):
    ours = package(tmp_path / "ours", "WHO = 1")
    theirs = package(tmp_path / "theirs", text)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if warm_server.ours(name)}
    try:
        monkeypatch.syspath_prepend(str(ours))
        found = importlib.import_module("fedhet.clients.own")
        kept = {name: sys.modules.pop(name) for name in list(sys.modules) if warm_server.ours(name)}
        monkeypatch.syspath_prepend(str(theirs))
        monkeypatch.setattr(
            sys, "meta_path", [Preloaded(kept, digest(ours / "fedhet")), *sys.meta_path]
        )
        own = importlib.import_module("fedhet.clients.own")
    finally:
        for name in list(sys.modules):
            if warm_server.ours(name):
                del sys.modules[name]
        sys.modules.update(before)
    assert (own is found) == same
    assert (own.WHO == 1) == same


def test_one_environment_has_one_server_whatever_its_interpreter_is_called(tmp_path, monkeypatch):
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    mine = warm.folder(env)
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert warm.folder(env) == mine
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert warm.folder(env) != mine


def test_a_folder_of_somebody_else_is_not_used(tmp_path):
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert warm.folder(env) == warm.folder(env | {"FLWR_HOME": "/elsewhere"})
    assert warm.folder(env) != warm.folder(env | {"OMP_NUM_THREADS": "3"})
    (tmp_path / "fedhet").chmod(0o755)
    with pytest.raises(RunFailedError, match="private folder"):
        warm.folder(env)

"""One process per user and machine that has torch and Flower imported, and forks.

Flower starts a fresh program for every message, which pays for all imports again. Here a program
that arrives over a Unix socket (``warm_shim.py``) becomes a fork of this process: a copy of its
memory with its own arguments, environment, folder and open files. The server ends when no node
holds a connection to it any more.

The code of a run comes with the run. Ours is imported here, too, but put aside: a child takes it
only if every file of the run's packages is the same, byte for byte.
"""

import contextlib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import random
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from fedhet import layout
from fedhet.deploy.warm_guest import Guest, Wish, peer
from fedhet.errors import one_line
from fedhet.protocol.flower import PROGRAMS

# What a client imports only while it works; nothing here starts a thread or touches a device.
WORK = (
    "fedhet.client_app", "safetensors.torch", "torch.optim", "torch.utils.flop_counter",
    "torch.nested._internal.nested_tensor", "httpcore", "encodings.cp437",
)  # fmt: skip
LINGER = 10.0  # seconds without a node before the server ends


def digest(package: Path = layout.HERE) -> str:
    """SHA-256 over the names and contents of all Python files that belong to a ``fedhet``."""
    whole = hashlib.sha256()
    for name, path in layout.sources(package):
        whole.update(f"{name}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def ours(name: str) -> bool:
    """Whether a module belongs to the code that a run brings along."""
    return name.partition(".")[0] == "fedhet"


class Preloaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a run the modules imported beforehand, where they are what it would import itself."""

    def __init__(self, modules: Mapping[str, ModuleType], code: str) -> None:
        self.modules, self.code = modules, code
        self._same: bool | None = None
        self._spec: importlib.machinery.ModuleSpec | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Ourselves as the loader of a module of ours, if the run's code is the same."""
        del target
        if fullname not in self.modules:
            return None
        if self._same is None:
            real = importlib.machinery.PathFinder.find_spec("fedhet")
            if real is None or real.origin is None:
                return None
            self._same = digest(Path(real.origin).parent) == self.code
        return importlib.util.spec_from_loader(fullname, self) if self._same else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module as it was imported."""
        module = self.modules[spec.name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs again; all the others come with it."""
        module.__spec__ = self._spec
        sys.modules.update(self.modules)


def clients() -> list[str]:
    """The client half of every method of ours: which one a run wants is not known yet."""
    return [
        f"fedhet.clients.{path.stem}" for path in sorted(layout.folder("clients").glob("[!_]*.py"))
    ]


def preload() -> Preloaded | None:
    """Import what a client of any method needs, and put our own modules aside.

    None while they change on disk.
    """
    before = digest()
    for name in [name for name in sys.modules if ours(name)]:
        del sys.modules[name]  # imported before: perhaps not what lies there now
    for name in (*WORK, *clients(), *(module for module, _ in PROGRAMS.values())):
        importlib.import_module(name)
    modules = {name: module for name, module in sys.modules.items() if ours(name)}
    for name in modules:
        del sys.modules[name]
    return Preloaded(modules, before) if digest() == before else None


@dataclass(frozen=True, eq=False)
class Job:
    """A child at work, and the shim that waits for it."""

    pid: int
    program: str
    shim: socket.socket

    def told(self) -> dict[str, Any]:
        """For :meth:`Server.state`; ``for`` is the process that Flower started."""
        return {"pid": self.pid, "program": self.program, "for": peer(self.shim)[0]}


@dataclass
class Server:
    """Waits for shims, forks, and tells each its child's exit code; nobody's silence holds it up.

    With every descriptor it watches stands what to do when something happens there.
    """

    listener: socket.socket
    finder: Preloaded | None
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    guests: set[Guest] = field(default_factory=set)
    jobs: dict[int, Job] = field(default_factory=dict)  # by the descriptor that watches the child
    leases: set[socket.socket] = field(default_factory=set)

    def serve(self) -> None:
        """Until no node needs it any more."""
        self.listener.setblocking(False)
        self._watch(self.listener, self._welcome)
        needed = time.monotonic()
        while time.monotonic() - needed < LINGER:
            for key, _ in self.selector.select(1.0):
                # What happened before it, such as the end of its child, may have been its end.
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            for guest in [one for one in self.guests if one.deadline < time.monotonic()]:
                self._show_out(guest, "it said nothing")
            if self.leases or self.jobs:
                needed = time.monotonic()

    def state(self) -> dict[str, Any]:
        """What is going on, for people and tests."""
        jobs = [job.told() for job in self.jobs.values()]
        return {"pid": os.getpid(), "nodes": len(self.leases), "jobs": jobs}

    def _watch(self, what: socket.socket | int, then: Callable[[], None]) -> None:
        self.selector.register(what, selectors.EVENT_READ, then)

    def _welcome(self) -> None:
        """A shim with work, a node that wants us to stay, or somebody who asks how we are."""
        try:
            connection = self.listener.accept()[0]
        except OSError as error:  # it is gone already, or there are too many
            _note(f"nobody came in: {error}")
            return
        guest = Guest(connection)
        if peer(connection)[1] != os.getuid():
            guest.close()
            return
        self.guests.add(guest)
        self._watch(connection, partial(self._attend, guest))

    def _attend(self, guest: Guest) -> None:
        """Something arrived of a guest."""
        try:
            if guest.wish is None:
                self._grant(guest)
            elif guest.hear_go():
                self._fork(guest)
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self._show_out(guest, str(error))

    def _grant(self, guest: Guest) -> None:
        wish = guest.hear()
        if wish is None:
            return
        if wish.words is None:
            guest.connection.sendall(json.dumps(self.state()).encode() + b"\n")
            self._forget(guest)
            if not wish.lease:
                guest.close()
                return
            self.leases.add(guest.connection)
            self._watch(guest.connection, partial(self._released, guest.connection))
        elif Path(wish.words[0]).name in PROGRAMS:
            guest.connection.sendall(b"ready\n")
            guest.extend()
        else:
            raise ValueError("no program of ours")

    def _forget(self, guest: Guest) -> None:
        self.guests.discard(guest)
        self.selector.unregister(guest.connection)

    def _show_out(self, guest: Guest, reason: str) -> None:
        _note(f"a guest is shown out: {reason}")
        self._forget(guest)
        guest.close()

    def _fork(self, guest: Guest) -> None:
        """A child for a shim that is still there."""
        assert guest.wish is not None and guest.wish.words is not None
        program, shim = Path(guest.wish.words[0]).name, guest.connection
        pid = os.fork()
        if pid == 0:
            self._become(program, guest.wish, guest.files)
        self._forget(guest)
        guest.close_files()
        watch = os.pidfd_open(pid)
        job = self.jobs[watch] = Job(pid, program, shim)
        self._watch(watch, partial(self._ended, watch))
        self._watch(shim, partial(self._abandoned, job))
        with contextlib.suppress(OSError):
            shim.sendall(f"{pid}\n".encode())

    def _released(self, lease: socket.socket) -> None:
        """A node has ended."""
        self.leases.discard(lease)
        self.selector.unregister(lease)
        lease.close()

    def _abandoned(self, job: Job) -> None:
        """A shim was killed: what it stood for goes with it."""
        self.selector.unregister(job.shim)
        os.kill(job.pid, signal.SIGKILL)

    def _become(self, program: str, wish: Wish, files: list[int]) -> NoReturn:
        """In the child: take over all that a program is started with, and run it."""
        try:
            for number, file in enumerate(files):
                os.dup2(file, number)
            os.closerange(3, 1 << 16)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.umask(wish.umask)
            os.nice(max(0, wish.nice - os.nice(0)))
            os.environ.clear()
            os.environ.update(wish.environment)
            os.environ["FEDHET_WARM"] = "1"  # for what a node tells the server
            os.chdir(wish.folder)
            random.seed()
            sys.argv[:] = wish.words or ()
            if self.finder is not None:
                sys.meta_path.insert(0, self.finder)
            code = run(*PROGRAMS[program])
        except BaseException:  # whatever it is, it must not return into the server's loop
            traceback.print_exc()
            code = 1
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)  # without taking a torch apart that the next fork needs

    def _ended(self, watch: int) -> None:
        job = self.jobs.pop(watch)
        self.selector.unregister(watch)
        os.close(watch)
        code = os.waitstatus_to_exitcode(os.waitpid(job.pid, 0)[1])
        with contextlib.suppress(KeyError):  # its shim was killed
            self.selector.unregister(job.shim)
        with contextlib.suppress(OSError):
            job.shim.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
        job.shim.close()


def run(module: str, function: str) -> int:
    """A console script's function; returns its exit code."""
    try:
        result = getattr(sys.modules[module], function)()
    except SystemExit as end:
        result = end.code
    if isinstance(result, str):
        print(result, file=sys.stderr)
        return 1
    return int(result or 0)


def _note(text: str) -> None:
    """One line for the log."""
    print(f"fedhet warm server: {one_line(text)}", file=sys.stderr, flush=True)


def serve(address: str) -> None:
    """Import everything, then listen at ``address`` until nobody needs the server any more."""
    finder = preload()
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page in every child
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)  # its folder has mode 700
    os.chmod(address, 0o600)
    listener.listen(128)
    try:
        Server(listener, finder).serve()
    finally:
        Path(address).unlink(missing_ok=True)


if __name__ == "__main__":
    serve(sys.argv[1])

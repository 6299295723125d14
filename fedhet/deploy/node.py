"""``fedhet node``: keep a SuperNode running, and answer its messages in a worker process.

Flower starts a program for every message, which installs and imports the code that the server
sent. Here the SuperNode runs with ``--isolation process``: this process takes its tasks, compares
the sent code with the installed one, and lets a worker answer, which has torch imported already.
"""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import threading
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

import httpx
from filelock import FileLock, Timeout
from flwr.app import Context, Error, Message

from fedhet import __version__
from fedhet.deploy.certs import Certificates, read_key
from fedhet.deploy.network import REFUSED, Waiting, knows, reach
from fedhet.engines.system import QUIET, end_with_maker, environment, free_ports, guarded, script
from fedhet.errors import UserError, brief
from fedhet.protocol import flower

Say = Callable[[str], None]
ENV = {"FEDHET_NODE": "1", **QUIET}
TASK_POLL = 0.3  # seconds between looks for a message; each costs 5 ms of CPU
LOOK = 1.0  # seconds between looks whether a SuperNode that says nothing still runs
PROBE = 15.0  # seconds between looks whether the server can be reached
RETRY = 5.0  # seconds before a SuperNode that ended is started again
LONGEST = 15.0  # and before one that was refused several times in a row: each try costs 3 s of CPU
PATIENCE = 15.0  # seconds for an orderly end
IDLE = 600.0  # seconds without a message after which the process with torch ends
COMPONENT = "fedhet.client_app:app"
MANIFEST = ".info/CONTENT"  # of an application
PROJECT_BYTES = 1 << 16  # ours has 1,500
OWN = "fedhet: "  # how lines of our own ClientApp begin
ADMITTED = re.compile(r"SuperNode ID: (\d+)")
ASKS = re.compile(r"\[RUN (\d+)")  # before each message that has come
NOT_ADMITTED = re.compile(r"\[code: 200[14]\]")  # Flower's codes, for one of two reasons
UNKNOWN = "refused: the server does not know this key: put its .pub into tls/clients; trying again"
HELD = "not let in yet: its last connection, or another process, holds this key; trying again"
AWAY, BACK = "Connection attempt failed", "Connection successful"
# Flower's SuperNode passes a message to a ClientApp before it confirms it to the server. If the run
# ends in between, or the confirmation fails, it forgets the message but not the client, which then
# is one message late, or waits for 80 minutes. Only a new SuperNode is free of this.
FORGOTTEN = re.compile(r"is not in `RUNNING` status\. Ignoring message|Failed to receive message")
# A proxy's answer, such as "403 Filtered": the SuperNode gives up, but its process goes on.
CUT_OFF = re.compile(r"ERROR \S*: +\d{3} \w")


def said(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines that a program prints until it has ended; an empty one while it is silent."""
    # Not until its output ends: what it started has the same, and may live longer.
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.decode(errors="replace"))

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended or not lines.empty():
        ended = process.poll() is not None
        try:
            yield lines.get(timeout=LOOK)
        except Empty:
            yield ""


def difference(sent: bytes, own: Mapping[str, bytes]) -> str:
    """Return in one line how a sent application differs from our ``own``; empty if it does not.

    Files, each once, their contents and the component that Flower would run must be the same.
    Nothing is written, and no more of a file is decompressed than the installed one has.
    """

    def start_of(name: str, size: int) -> bytes:  # and one byte more, if there is one
        with archive.open(name) as file:
            return file.read(size + 1)

    try:
        with zipfile.ZipFile(io.BytesIO(sent)) as archive:
            about = tomllib.loads(start_of(flower.PROJECT, PROJECT_BYTES).decode())
            version = about["project"]["version"]
            component = about["tool"]["flwr"]["app"]["components"]["clientapp"]
            times = Counter(archive.namelist())
            odd = {*times} ^ {*own, MANIFEST} | {name for name in times if times[name] > 1}
            code = own.keys() - odd - {flower.PROJECT}  # which Flower writes anew
            odd |= {name for name in code if start_of(name, len(own[name])) != own[name]}
    except Exception as error:  # bytes of the other side may be anything
        return f"this run's application cannot be read ({type(error).__name__})"
    if component != COMPONENT:
        return f"this run's application is not fedhet: it runs {component!r:.80}"
    if odd and version != __version__:
        return f"this run's fedhet {version!s:.40} is not this site's {__version__}"
    if odd:
        text = f"{len(odd)} files differ, such as '{min(odd):.80}'"
        return f"this run's fedhet {__version__} is not the one installed at this site: {text}"
    return ""


@dataclass(frozen=True)
class NodePlan:
    """What a node is and where its server is."""

    key: Path
    ca: Path
    server: str  # host:port
    config: Mapping[str, str | int]  # Flower's node-config
    log: Path

    def __post_init__(self) -> None:
        """Raise UserError for a value that Flower could not read from its command line."""
        for option, value in self.config.items():
            if isinstance(value, str) and ('"' in value or not value.isprintable()):
                text = "Flower rejects '\"' and characters that cannot be printed: use another name"
                raise UserError(f"{option}: '{value}' is not allowed: {text}")

    def words(self, port: int) -> list[str]:
        """Return the SuperNode's command line; its own API listens at that port of 127.0.0.1."""
        config = " ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in self.config.items()
        )
        return [
            script("flower-supernode"), "--root-certificates", str(self.ca),
            "--superlink", self.server, "--host", "127.0.0.1", "--port", str(port),
            "--auth-supernode-private-key", str(self.key), "--isolation", "process",
            "--node-config", config,
        ]  # fmt: skip


class MessageWorker:
    """The process that answers messages; it has torch, and serves one run."""

    def __init__(self, heard: Say) -> None:
        """``heard`` is called with each line that it prints."""
        context = get_context("spawn")
        self._link, link = context.Pipe()
        out, printed = context.Pipe(duplex=False)
        self.code = flower.application()  # before it is imported
        self.run, self.last = 0, time.monotonic()
        self.process = context.Process(target=_work, args=(link, printed), daemon=True)
        self.process.start()
        link.close()
        printed.close()

        def read() -> None:
            with open(out.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
                for line in lines:
                    heard(line)

        threading.Thread(target=read, daemon=True).start()

    def answer(self, message: Message, context: Context, ids: flower.Ids) -> flower.Answered:
        """Return the ClientApp's reply and context; ChildProcessError if the process ended."""
        try:
            self._link.send((message, context, ids))
            replied: flower.Answered = self._link.recv()
        except (EOFError, OSError) as error:
            self.process.join(PATIENCE)
            code = self.process.exitcode or 0
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            more = " (out of memory?)" if code == -signal.SIGKILL else ""
            raise ChildProcessError(f"the process that trains here ended {how}{more}") from error
        self.last = time.monotonic()
        return replied

    def stop(self) -> None:
        """End it, even while it works."""
        self.process.kill()
        self.process.join()


def _work(link: Connection, printed: Connection) -> None:
    """Run the worker: import the ClientApp once, answer until the node ends."""
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the node
    end_with_maker(PATIENCE)
    os.environ.update(ENV)
    from fedhet.client_app import app  # noqa: PLC0415  (with torch)

    with contextlib.suppress(EOFError):
        while True:
            message, context, ids = link.recv()
            flower.be_task(ids)
            link.send((app(message, context), context))


@dataclass
class Node:
    """One SuperNode, started again whenever it ends."""

    plan: NodePlan
    say: Say
    _last: str = ""
    _refusals: int = 0  # since it was last let in
    _worker: MessageWorker | None = None
    _process: subprocess.Popen[bytes] | None = None
    _asked: subprocess.Popen[bytes] | None = None  # the process that was asked to end
    _answers: int = 0  # the run whose message is being answered
    _joined: bool = False  # once: from then on a new CA is waited for
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def _online(self) -> Path:  # a file with the node's id, while the server has it as connected
        return self.plan.log.with_name("online")

    def run(self) -> None:
        """Run until a signal raises an exception; raise UserError if it cannot start."""
        home = self.plan.log.parent
        home_env = {"FLWR_HOME": os.environ.get("FLWR_HOME") or str(home / "flwr")}
        try:
            with FileLock(home / ".lock", blocking=False), contextlib.ExitStack() as stack:
                stack.callback(self._stop)
                self._ready(0)
                while True:
                    self._await_server()
                    if not self._once(environment(ENV | home_env)):
                        time.sleep(min(RETRY * max(1, self._refusals), LONGEST))
        except Timeout as error:
            raise UserError(f"--state: another `fedhet node` uses '{home}'") from error

    def _await_server(self) -> None:
        """Wait until the server can be reached, and make it forget a lost connection."""
        waiting = Waiting(self.plan.server, self.say)
        while not self._reaches(waiting):
            time.sleep(RETRY)
        self._joined = True
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            node, ca = int(self._online.read_text("ascii")), self.plan.ca.read_bytes()
            flower.tell_fleet(self.plan.server, ca, read_key(self.plan.key), node)
            self._online.unlink()

    def _reaches(self, waiting: Waiting) -> bool:
        """Return whether the server can be reached; else say why, or raise if it never can."""
        try:
            reach(self.plan.server, self.plan.ca)
        except UserError as error:
            if error.code == REFUSED and not self._joined:
                raise
            waiting.failed(str(error))
            return False
        waiting.over()
        return True

    def _once(self, env: Mapping[str, str]) -> bool:
        """Run one SuperNode and print lines about it; return whether to start another at once."""
        port = free_ports(1)[0]
        process = self._process = subprocess.Popen(
            guarded(self.plan.words(port)), env=dict(env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, start_new_session=True,
        )  # fmt: skip
        tasks = threading.Thread(target=self._answer_tasks, args=(process, port), daemon=True)
        tasks.start()
        admitted, stale, probed = False, False, 0.0
        away = Waiting(self.plan.server, self._tell)  # Flower does not name all causes
        certificate = self.plan.key.with_name(f"{self.plan.key.name}.crt")
        certificates = Certificates([self.plan.ca, certificate], self._tell)
        for line in said(process):
            if stale:  # its ClientApp's messages are about the ending SuperNode
                self._log(line)
                continue
            self._heard(line)
            if match := ADMITTED.search(line):
                admitted = True
                self._online.write_text(match.group(1), "ascii")
            if AWAY in line:
                away.failed()
            elif match or BACK in line:
                away.over()
            elif not line and time.monotonic() - probed >= (LOOK if away.since else PROBE):
                self._reaches(away)
                probed = time.monotonic()
            for lost, what in ((FORGOTTEN, "a message"), (CUT_OFF, "the connection")):
                if lost.search(line):
                    stale = True
                    self._tell(f"{what} was cut off: starting the SuperNode again")
            if stale or (not line and self.plan.ca in certificates.look()):
                stale = True
                self._ask_to_end(process)
        code = process.wait()
        stale = stale or self._asked is process
        with contextlib.suppress(ProcessLookupError):  # programs that it started
            os.killpg(process.pid, signal.SIGKILL)
        if code == 0:  # the server knows that it left
            self._online.unlink(missing_ok=True)
        tasks.join(TASK_POLL * 2)
        if tasks.is_alive() and self._worker is not None:  # no server waits for its training
            self._worker.stop()
        self._refusals = 0 if admitted else self._refusals + 1
        if admitted and not stale:
            self._tell(f"the SuperNode ended with code {code}: starting it again")
        return stale

    def _answer_tasks(self, process: subprocess.Popen[bytes], port: int) -> None:
        address = f"127.0.0.1:{port}"
        with contextlib.closing(flower.runtime_api(address)) as client:
            while process.poll() is None:
                token, worker = "", self._worker
                with contextlib.suppress(httpx.HTTPError):  # it starts, or ends
                    token = flower.next_task(client)
                if not token:
                    if worker is not None and time.monotonic() - worker.last > IDLE:
                        worker.stop()  # it holds memory for nothing
                        self._worker = None
                    time.sleep(TASK_POLL)
                    continue
                try:
                    flower.do_task(address, token, self._answer)
                except Exception as error:  # it would wait for this answer for ever
                    self._log(f"task: {brief(error)}\n")
                    if process.poll() is None:
                        self._ask_to_end(process)
                    return

    def _answer(
        self, message: Message, context: Context, sent: bytes, ids: flower.Ids
    ) -> flower.Answered:
        """Compare the sent code with ours, and let the worker answer."""
        worker, self._answers = self._ready(ids[0]), ids[0]
        if different := difference(sent, worker.code):
            reason = f"{different}: install the same version"
            self._tell(f"refused: {reason}")
            reply = Message(Error(flower.OTHER_CODE, reason), reply_to=message)
        else:
            try:
                reply, context = worker.answer(message, context, ids)
            except ChildProcessError as error:
                if self._process is not None and self._process.poll() is None:
                    self._tell(f"{error}: starting another")
                reply = Message(Error(flower.ENDED, str(error)), reply_to=message)
        self._answers = 0
        return reply, context

    def _ready(self, run: int) -> MessageWorker:
        """Return a worker for this run; one of another run would keep its modules."""
        worker = self._worker
        if worker is None or not worker.process.is_alive() or worker.run not in (0, run):
            if worker is not None:
                worker.stop()
            worker = self._worker = MessageWorker(self._heard)
        worker.run, worker.last = run, time.monotonic()
        return worker

    def _log(self, line: str) -> None:
        with self._writing, self.plan.log.open("a", encoding="utf-8") as log:
            log.write(line)

    def _heard(self, line: str) -> None:
        """Keep a line of output, and print what it means to a person, not twice in a row."""
        text = ""
        if line:
            self._log(line)
        if OWN in line:
            text = line.partition(OWN)[2].strip()
        elif match := ADMITTED.search(line):
            text = f"admitted by {self.plan.server} (node {match.group(1)})"
        elif (match := ASKS.search(line)) and self._answers not in (0, int(match.group(1))):
            text = f"another run asks, and waits until this node has answered run {self._answers}"
        elif NOT_ADMITTED.search(line):
            text = UNKNOWN
            with contextlib.suppress(UserError, OSError):
                if knows(self.plan.server, self.plan.ca, self.plan.key):
                    text = HELD
        if text:
            self._tell(text)

    def _tell(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self.say(text)

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        """Let the SuperNode leave the server, to be able to return; kill it if it hangs."""
        if self._asked is process:  # Flower takes a second SIGTERM for a reason to end without
            return
        self._asked = process
        killer = threading.Timer(PATIENCE, process.kill)
        killer.daemon = True
        killer.start()
        process.terminate()

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._ask_to_end(self._process)
            if self._process.wait() == 0:
                self._online.unlink(missing_ok=True)
        if self._worker is not None:
            self._worker.stop()

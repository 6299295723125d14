"""``fedhet node``: a SuperNode that is kept running, with the warm server beside it.

Flower's own output goes to a log; here is what a person wants to know, a line each.
"""

import json
import os
import re
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedhet.deploy.fleet_probe import knows
from fedhet.deploy.warm import Warm, available
from fedhet.engines.process_groups import environment, free_ports, guarded, script
from fedhet.errors import RunFailedError, UserError

Say = Callable[[str], None]
TASK_POLL = "0.3"  # seconds between looks for a message; each costs 5 ms of CPU
LOOK = 1.0  # seconds between looks whether a SuperNode that says nothing still runs
RETRY = 5.0  # seconds before a SuperNode that ended is started again
LONGEST = 15.0  # and before one that was refused several times in a row: each try costs 3 s of CPU
PATIENCE = 15.0  # seconds for an orderly end
OWN = "fedhet: "  # how lines of our own ClientApp begin
ADMITTED = re.compile(r"SuperNode ID: (\d+)")
# What Flower says when it does not let a node in, and what it means.
UNKNOWN = (
    "refused: the server does not know this key; it is registered by the `fedhet server` that "
    "finds its .pub in tls/clients; trying again"
)
HELD = "not let in yet: the server still holds this key's last connection; trying again"
NOT_ADMITTED = "[code: 2004]"  # for one of two reasons
REFUSALS = {
    NOT_ADMITTED: "not let in yet: the server still holds this key's last connection, or does "
    "not know the key; trying again",
    "[code: 2001]": UNKNOWN,
    "Connection attempt failed": "the server does not answer; trying again",
}
FATAL = "CERTIFICATE_VERIFY_FAILED"
# Flower's SuperNode hands a message to a ClientApp before the server has heard that it came. If the
# run ends in between (the SuperLink was started again), the SuperNode forgets the message but not
# the client: it waits for 80 minutes, or its answer stays in the SuperNode, which sends one answer
# a message and from then on always the one before. So it is if the server answers with an error
# when it is told that a message came. A SuperNode that starts has forgotten all.
FORGOTTEN = re.compile(r"is not in `RUNNING` status\. Ignoring message|Failed to receive message")


def pause(refusals: int) -> float:
    """Seconds before the next start, after so many in a row that the server did not let in."""
    return min(RETRY * max(1, refusals), LONGEST)


def said(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines that a program prints, until it has ended.

    Not until its output ends: what it started has the same, and may live longer.
    """
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if selector.select(0 if ended else LOOK):
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    return
                *lines, rest = (rest + part).split(b"\n")
                yield from (line.decode(errors="replace") + "\n" for line in lines)
            elif ended:
                return


@dataclass(frozen=True)
class NodePlan:
    """What a node is and where its server is."""

    key: Path
    ca: Path
    server: str  # host:port
    config: Mapping[str, str | int]  # Flower's node-config
    log: Path
    port: int = 0  # of the SuperNode's own API on 127.0.0.1; 0: a free one
    warm: bool = True

    def __post_init__(self) -> None:
        """UserError for a value that Flower could not read again from the command line."""
        for option, value in self.config.items():
            if isinstance(value, str) and ('"' in value or not value.isprintable()):
                raise UserError(
                    f"{option}: '{value}' is not allowed: Flower takes no '\"' and nothing that "
                    "cannot be printed: use another name"
                )

    def words(self) -> list[str]:
        """The SuperNode's command line."""
        port = self.port or free_ports(1)[0]
        config = " ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in self.config.items()
        )
        return [
            script("flower-supernode"), "--root-certificates", str(self.ca),
            "--superlink", self.server, "--host", "127.0.0.1", "--port", str(port),
            "--auth-supernode-private-key", str(self.key), "--node-config", config,
        ]  # fmt: skip


@dataclass
class Node:
    """One SuperNode, started again whenever it ends."""

    plan: NodePlan
    say: Say
    _last: str = ""
    _refusals: int = 0  # since it was last let in
    _warm: Warm | None = None
    _process: subprocess.Popen[bytes] | None = None
    _asked: subprocess.Popen[bytes] | None = None  # the process that was asked to end
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until a signal (the caller turns it into an exception); UserError if it never can."""
        flwr_home = os.environ.get("FLWR_HOME") or str(self.plan.log.parent / "flwr")
        env = environment({
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": TASK_POLL, "FEDHET_NODE": "1",
            "FLWR_HOME": flwr_home,
        })  # fmt: skip
        if available():
            warm = Warm(env)
            env["PATH"] = f"{warm.programs(cold=not self.plan.warm)}:{env['PATH']}"
            if self.plan.warm:
                self._warm = warm
                threading.Thread(target=self._keep_warm, args=(warm,), daemon=True).start()
        elif self.plan.warm:
            self._tell("this platform cannot fork: each message starts a fresh process")
        try:
            while True:
                if not self._once(env):
                    time.sleep(pause(self._refusals))
        finally:
            self._ended.set()
            self._stop()
            if self._warm is not None:
                self._warm.release()

    def _keep_warm(self, warm: Warm) -> None:
        """Hold the server, and start another when it has died; messages go on without meanwhile."""
        while not self._ended.is_set():
            if not warm.held():
                try:
                    warm.hold()
                except (RunFailedError, OSError) as error:
                    self._tell(f"each message starts a fresh process: {error}")
            self._ended.wait(RETRY)

    def _once(self, env: Mapping[str, str]) -> bool:
        """One life of the SuperNode, told in lines; whether we ended it, to start another.

        UserError if another would be no better.
        """
        with self.plan.log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                guarded(self.plan.words()), env=dict(env), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
            admitted, stale = False, False
            for line in said(self._process):
                log.write(line)
                log.flush()
                if stale:  # what its ClientApp says of a SuperNode that goes means nothing
                    continue
                admitted = admitted or ADMITTED.search(line) is not None
                if FATAL in line and not admitted:  # later it is some download of a ClientApp's
                    raise UserError(
                        f"{self.plan.server}: the server's certificate is not from "
                        f"the CA in '{self.plan.ca}'"
                    )
                self._translate(line)
                if FORGOTTEN.search(line):
                    stale = True
                    self._tell("a message was cut off: starting the SuperNode again")
                    self._ask_to_end(self._process)
        code = self._process.wait()
        self._refusals = 0 if admitted else self._refusals + 1
        if admitted and not stale:
            self._tell(f"the SuperNode ended with code {code}: starting it again")
        return stale

    def _translate(self, line: str) -> None:
        """Say what a line of Flower's means to a person, if anything, and not twice in a row."""
        text = ""
        if (start := line.find(OWN)) >= 0:
            text = line[start + len(OWN) :].strip()
        elif found := ADMITTED.search(line):
            text = f"admitted by {self.plan.server} (node {found.group(1)})"
        elif NOT_ADMITTED in line:
            text = self._why()
        else:
            text = next((what for sign, what in REFUSALS.items() if sign in line), "")
        if text:
            self._tell(text)

    def _why(self) -> str:
        """Why the server did not let this node in."""
        try:
            return HELD if knows(self.plan.server, self.plan.ca, self.plan.key) else UNKNOWN
        except (UserError, OSError):
            return REFUSALS[NOT_ADMITTED]

    def _tell(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self.say(text)

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        """Let it say good-bye to the server, which makes a return possible at once; once only.

        Flower takes a second SIGTERM for a reason to end without. It is killed if it hangs.
        """
        if self._asked is process:
            return
        killer = threading.Timer(PATIENCE, process.kill)
        killer.daemon = True
        killer.start()
        process.terminate()
        self._asked = process

    def _stop(self) -> None:
        """End the SuperNode."""
        if self._process is not None and self._process.poll() is None:
            self._ask_to_end(self._process)
            self._process.wait()

"""A SuperLink of our own for one simulation, and the ``flwr`` commands that we need.

A shared local SuperLink would keep the environment and folder of whoever started it first, so
every run has its own: free port, FLWR_HOME inside the run folder, stopped with the run.
"""

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from fedhet.config.schema import RunConfig
from fedhet.deploy import bundle
from fedhet.engines.process_groups import (
    MARKER,
    Herd,
    alive,
    environment,
    free_ports,
    guarded,
    script,
)
from fedhet.engines.ray_session import (
    failed_at_start,
    federation_config,
    init_arguments,
    make_session_folder,
    private_ray,
    remove_session_folders,
    said_at_start,
    trains,
)
from fedhet.errors import RunFailedError, one_line
from fedhet.reading.structured import parse_object

CONNECTION = "fedhet"  # name of the connection to our own SuperLink
START_TIMEOUT = 300.0  # seconds until a SuperLink answers
CALL_TIMEOUT = 300.0  # seconds for one `flwr` command
SLOW_START = "timed out during startup"  # Ray's own limit of 30 s, which cannot be set
# Processes without which a run cannot go on, by a part of their command line.
VITAL = {
    "flower-superexec": "Flower's SuperExec",
    "flwr-simulation": "the simulation",
    "gcs_server": "Ray's server",
    "raylet": "Ray's node manager",
}


def flwr(words: list[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Run ``flwr WORDS --format json``; RunFailedError with Flower's own message if it fails."""
    try:
        done = subprocess.run(
            guarded([script("flwr"), *words, "--format", "json"]),
            env=dict(env), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, start_new_session=True, timeout=CALL_TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"flwr {words[0]}: no answer in {CALL_TIMEOUT:g} s") from error
    try:
        answer = parse_object(done.stdout, f"flwr {words[0]}")
    except ValueError:
        answer = {"success": False, "error-message": done.stderr or done.stdout}
    if done.returncode or not answer.get("success"):
        reason = one_line(answer.get("error-message", done.stderr))
        raise RunFailedError(f"flwr {words[0]}: {reason or f'exit code {done.returncode}'}")
    return answer


def submit(
    connection: str, home: Path, envelope: str, federation: str, env: Mapping[str, str]
) -> str:
    """Send our app and the run configuration to a SuperLink; returns the run's id.

    Both are written to ``home``, the app for as long as that takes.
    """
    run_config, app = home / "run-config.toml", home / "app"
    write_run_config(run_config, envelope)
    try:
        words = ["run", str(bundle.write(app)), connection, "--run-config", str(run_config)]
        if federation:
            words += ["--federation-config", federation]
        return str(flwr(words, env)["run-id"])
    finally:
        shutil.rmtree(app, ignore_errors=True)


def run_status(connection: str, run_id: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Flower's status of a run, such as ``finished:failed``, and its details."""
    answer = flwr(["list", connection, "--run-id", run_id], env)
    (run,) = answer["runs"]
    return str(run["status"]), str(run["status-details"])


def write_run_config(path: Path, envelope: str) -> None:
    """The run configuration as a TOML file; JSON's strings are TOML's as well."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"config = {json.dumps(envelope, ensure_ascii=False)}\n", encoding="utf-8")


def clear(folder: Path) -> None:
    """Remove the FLWR_HOME of a run's SuperLink, this or a killed one, and Ray's sessions."""
    remove_session_folders(folder)
    home = flower_home(folder)
    if home.is_symlink():  # not ours: we make a folder
        home.unlink()
    shutil.rmtree(home, ignore_errors=True)  # follows no link


def flower_home(folder: Path) -> Path:
    """What of a run folder is Flower's; it goes when the run ends."""
    return folder / "flwr"


class SuperLink:
    """``flower-superlink --simulation`` on a free port, with everything that it starts."""

    def __init__(self, config: RunConfig, folder: Path, python_path: Sequence[str]) -> None:
        """``python_path``: where modules are looked for after everything that is installed."""
        self.config = config
        self.python_path = list(python_path)
        self.folder = folder
        self.home = flower_home(folder)
        self.log = folder / "log.txt"
        self.herd = Herd(folder)
        self.run_id = ""
        self._vital: set[str] = set()
        self._lost: set[str] = set()
        self._trained = False  # whether Ray has started as far as a training process
        self._refreshed = 0.0
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        extra = {"FLWR_HOME": str(self.home), MARKER: str(folder)}
        extra["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.5"  # each poll costs 5 ms
        extra |= private_ray()
        if config.device.startswith("cuda:"):  # else Ray hides the device from its actors
            extra["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
        self.env = environment(extra)

    def start(self) -> None:
        """Start it and wait until it answers; RunFailedError if it does not."""
        self.home.mkdir(mode=0o700)
        self.env["RAY_TMPDIR"] = make_session_folder(self.folder)
        self._replace_program()
        (port,) = free_ports(1)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                guarded([
                    script("flower-superlink"), "--simulation", "--insecure", "--host", "127.0.0.1",
                    "--port", str(port), "--disable-runtime-dependency-installation",
                ]),
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.herd.add(self._process.pid)
        deadline = time.monotonic() + START_TIMEOUT
        while not _answers(port):
            if self._process.poll() is not None:
                raise RunFailedError(f"the SuperLink ended with code {self._process.returncode}")
            if time.monotonic() > deadline:
                raise RunFailedError(f"the SuperLink gave no answer in {START_TIMEOUT:.0f} s")
            time.sleep(0.1)

    def _replace_program(self) -> None:
        """Put a ``flwr-simulation`` of ours ahead in PATH; :mod:`fedhet.engines.simulation`."""
        programs = self.home / "bin"
        (programs / "python").mkdir(parents=True)
        program = programs / "python" / "flwr-simulation"  # the name is what we look for in `ps`
        words = f"{self.python_path!r}, {init_arguments(self.config)!r}"
        text = f"from fedhet.engines.simulation import main\n\nmain({words})\n"
        program.write_text(text, "utf-8")
        command = [shlex.quote(str(word)) for word in (sys.executable, program)]
        log = shlex.quote(str(self.folder / "log.txt"))
        shell = programs / "flwr-simulation"
        shell.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@" >>{log} 2>&1\n', "utf-8")
        shell.chmod(0o755)
        self.env["PATH"] = os.pathsep.join([str(programs), self.env["PATH"]])

    def submit(self, envelope: str) -> None:
        """Start the run in it; again, if it did not get far."""
        self._vital.clear()
        self._lost.clear()
        self._log_start = self.log.stat().st_size
        federation = federation_config(self.config)
        self.run_id = submit(CONNECTION, self.home, envelope, federation, self.env)

    def trouble(self) -> str:
        """Why the run cannot go on any more; empty while all is well."""
        if time.monotonic() - self._refreshed < 1.0:
            return ""
        self.herd.refresh()
        self._refreshed = time.monotonic()
        if self._process is None or self._process.poll() is not None:
            return "the SuperLink ended unexpectedly"
        present = self._present()
        lost = self._vital - present
        self._vital |= present
        self._lost = lost or self._lost
        return self._loss(lost) if lost else ""

    def started(self) -> bool:
        """Whether the simulation was seen to run."""
        return "flwr-simulation" in self._vital

    def ray_died(self) -> bool:
        """Whether what ended the run is that processes of Ray's own died while it started."""
        at_start = failed_at_start(self._failure()) or self._lost & {"gcs_server", "raylet"}
        return not self._trained and bool(at_start)

    def again(self, envelope: str, why: str) -> None:
        """Start the run once more; why, and what Ray said, stand in the log."""
        line = f"fedhet: Ray did not start ({why}); it is tried again\n"
        with self.log.open("a", encoding="utf-8") as log:
            log.write(line + said_at_start(Path(self.env["RAY_TMPDIR"])))
        for process in self.herd.living():
            if _kinds(process) in (["flwr-simulation"], ["gcs_server"], ["raylet"]):
                with contextlib.suppress(psutil.Error):
                    process.kill()  # Flower would wait for what is left of Ray
        self.settle(patience=5.0)
        self.submit(envelope)

    def settle(self, patience: float) -> None:
        """Let the simulation close Ray and report to Flower by itself."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and "flwr-simulation" in self._present():
            time.sleep(0.1)

    def stop(self, grace: float = 3.0) -> None:
        """Stop every process and remove what only they needed."""
        self.herd.stop(grace)
        if self._process is not None:
            self._process.wait()
        clear(self.folder)

    def _present(self) -> set[str]:
        living = self.herd.living()
        self._trained = self._trained or any(map(trains, living))
        return {kind for process in living for kind in _kinds(process)}

    def _loss(self, lost: set[str]) -> str:
        """What the loss of vital processes means; empty if Flower is about to start them again."""
        try:
            status, details = run_status(CONNECTION, self.run_id, self.env)
        except RunFailedError:
            status, details = "", ""
        if status in {"pending", "starting"}:  # a start that takes half a minute is repeated
            self._vital -= lost
            return ""
        if status == "finished:failed" and details != "N/A":
            return self._cause() or details
        return f"{VITAL[min(lost)]} ended unexpectedly (killed?)"

    def _cause(self) -> str:
        """The error at the root of a failure, from the log; Flower's details name the last one."""
        found = re.search(r"^[\w.]*(?:Error|Exception): .+$", self._failure(), re.MULTILINE)
        return found.group() if found else ""

    def _failure(self) -> str:
        """What the log says from the failure on; of all since the start if there is none."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return text.rpartition("Simulation raised an exception")[2]


def _kinds(process: psutil.Process) -> list[str]:
    try:
        words = process.cmdline()[:2]  # interpreter and script, or the program itself
    except psutil.Error:
        return []
    names = {Path(word).name for word in words}
    return [kind for kind in VITAL if kind in names and alive(process)]


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

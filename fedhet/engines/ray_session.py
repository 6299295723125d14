"""Ray as one run uses it: for nobody else, and in a folder that goes with the run."""

import contextlib
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch

from fedhet.config.schema import RunConfig
from fedhet.errors import one_line

ACTOR = "ray::ClientAppActor"  # what a training process calls itself, with or without its task
_START = re.compile(r'^  File "[^"]*/ray/_private/(?:node|services)\.py"', re.MULTILINE)
SAID = 5  # last lines of what a process of Ray wrote
SESSIONS, PREFIX, OWNER = Path("/tmp"), "fh", "run-folder"


def private_ray() -> dict[str, str]:
    """Environment of a Ray that nobody else can use: on 127.0.0.1, with a token of its own.

    Ray binds every port of a node to the node's address, and takes 127.0.0.1 for that only where
    it expects no cluster. Every call carries the token; a process without it is turned away. A
    cluster of the user's (``RAY_ADDRESS``) is the user's to protect: docs/scale.md.
    """
    if os.environ.get("RAY_ADDRESS"):
        return {}
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # acts on every system
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Else it starts workers beside the first driver that no actor of a job can use.
        "RAY_prestart_worker_first_driver": "0",
    }


def make_session_folder(folder: Path) -> str:
    """A new folder for Ray's session of the run in ``folder``.

    A Unix socket's path is limited to 107 bytes, and Ray adds about 70 of its own: it cannot lie
    in the run folder.
    """
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SESSIONS))
    (made / OWNER).write_text(str(folder), encoding="utf-8")
    return str(made)


def remove_session_folders(folder: Path) -> None:
    """Remove what :func:`make_session_folder` made for this run, also if it was killed since.

    Found by what the folders themselves say: nothing in the run folder points to something that
    is then deleted, because somebody else may have made it.
    """
    for found in SESSIONS.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            status = found.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and (found / OWNER).read_text(encoding="utf-8") == str(folder):
                shutil.rmtree(found, ignore_errors=True)


def said_at_start(session: Path) -> str:
    """The last lines of Ray's own processes in a session's folder; they go with the folder."""
    found = []
    for path in sorted(session.glob("ray/session_2*/logs/*")):
        if path.stem in {"gcs_server", "raylet"} and path.suffix in {".err", ".out"}:
            with contextlib.suppress(OSError):
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                found += [f"Ray's {path.name}: {one_line(line)}\n" for line in lines[-SAID:]]
    return "".join(found)


def failed_at_start(text: str) -> bool:
    """Whether a traceback says that Ray could not start its own processes."""
    return _START.search(text) is not None


def trains(process: psutil.Process) -> bool:
    """Whether it is a training process: then Ray has started."""
    with contextlib.suppress(psutil.Error):
        return any(word.partition(".")[0] == ACTOR for word in process.cmdline()[:1])
    return False


def init_arguments(config: RunConfig) -> dict[str, Any]:
    """What ``ray.init`` is given; without sizes where an existing cluster is joined."""
    words: dict[str, Any] = {"log_to_driver": True, "include_dashboard": False}
    if not os.environ.get("RAY_ADDRESS"):
        words["num_cpus"] = config.processes(config.clients)
        if gpus := _gpus(config):
            words["num_gpus"] = gpus
    return words


def federation_config(config: RunConfig) -> str:
    """Size of the federation and of an actor, for ``flwr run --federation-config``."""
    words: dict[str, float] = {"num-supernodes": config.clients, "client-resources-num-cpus": 1}
    if gpus := _gpus(config):
        # Ray never splits one actor over devices: share what the fullest device must hold,
        # rounded down so that the shares of a device do not add up to more than 1.
        share = math.ceil(config.processes(config.clients) / gpus)
        words["client-resources-num-gpus"] = math.floor(1e4 / share) / 1e4
    return " ".join(f"{key}={value}" for key, value in words.items())


def _gpus(config: RunConfig) -> int:
    """How many GPUs actors share."""
    return torch.cuda.device_count() if config.device in {"auto", "cuda"} else 0

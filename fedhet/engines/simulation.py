"""Flower's ``flwr-simulation``, started by us: its output kept, dead training processes replaced.

The SuperExec starts the program by name and throws its output away, and with it the ServerApp's log
and every client's traceback; the SuperLink's PATH leads to this one instead. Flower makes its Ray
actors without restarts: one that dies stays in the pool, and every client that it is given fails.

It also starts Ray where it first needs it, after all imports; here it starts beside them, and so do
the imports of its actors.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.job_config import JobConfig

from fedhet.protocol.flower import run_simulation

# A task that was under way is repeated once: a client starts from the generation that the server
# names, so that changes nothing. Who kills its process again and again fails, and is named.
ACTOR = {"max_restarts": -1, "max_task_retries": 1}


def main(python_path: Sequence[str], arguments: Mapping[str, Any]) -> None:
    """Run Flower's program, with a Ray of these ``arguments`` of ``ray.init``.

    Modules are looked for in the folders of ``python_path`` last, in actors as well.

    Actors get ``sys.path`` as it is here. Ray puts the working folder before it, where a
    ``queue.py`` of the user's would hide Python's, and a folder ``fedhet`` our code; the
    attribute that says so is private, and nothing public keeps the working folder out.
    """
    sys.path += [folder for folder in python_path if folder not in sys.path]
    JobConfig._py_driver_sys_path = property(  # type: ignore[assignment]
        lambda _: [], lambda *_: None
    )
    run_simulation(ACTOR, EarlyRay(arguments).wait)


class EarlyRay:
    """Starts Ray in a thread of its own, at once."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """``arguments`` of ``ray.init``."""
        self._arguments = dict(arguments)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        threading.Thread(target=self._start, daemon=True).start()

    def wait(self) -> None:
        """Return when Ray has started, to the main thread; raises what its start raised."""
        self._ready.wait()
        if self._error is not None:
            raise self._error
        # What Ray does where the main thread starts it. With Flower's own handler the server goes
        # on for some rounds without clients, since actors end at once.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))

    def _start(self) -> None:
        environment = {
            "env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)},
            "worker_process_setup_hook": f"{__name__}.{make_ready.__name__}",
        }
        try:
            ray.init(runtime_env=environment, **self._arguments)
        except BaseException as error:  # noqa: BLE001  (whatever it is, Flower says it)
            self._error = error
        self._ready.set()
        threading.Event().wait()  # Linux ends what a thread has started when that thread ends


def make_ready() -> None:
    """Import what a client needs: in an actor that starts, not when it gets its first message."""
    import fedhet.client_app  # noqa: F401, PLC0415

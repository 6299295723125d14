"""Flower's ``flwr-simulation``, started by us: its output kept, dead training processes replaced.

The SuperExec starts the program by name and throws its output away, and with it the ServerApp's log
and every client's traceback; the SuperLink's PATH leads to this one instead. Flower makes its Ray
actors without restarts: one that dies stays in the pool, and every client that it is given fails.
"""

import sys
from collections.abc import Sequence

from ray.job_config import JobConfig

from fedhet.protocol.flower import run_simulation

# A task that was under way is repeated once: a client starts from the generation that the server
# names, so that changes nothing. Who kills its process again and again fails, and is named.
ACTOR = {"max_restarts": -1, "max_task_retries": 1}


def main(python_path: Sequence[str]) -> None:
    """Run Flower's program; modules are looked for in these folders last, in actors as well.

    Actors get ``sys.path`` as it is here, from Flower. Ray puts the working folder before it,
    where a ``queue.py`` of the user's would hide Python's, and a folder ``fedhet`` our code; the
    attribute that says so is private, and nothing public keeps the working folder out.
    """
    sys.path += [folder for folder in python_path if folder not in sys.path]
    JobConfig._py_driver_sys_path = property(  # type: ignore[assignment]
        lambda _: [], lambda *_: None
    )
    run_simulation(ACTOR)

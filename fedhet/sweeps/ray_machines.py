"""A Ray cluster that is there already, as :class:`~fedhet.sweeps.cluster.Machines`.

Ray does as little as it can: it starts an actor on the machine that we name and carries bytes. It
restarts and repeats nothing, ships no code (fedhet is installed there), and prints nothing.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedhet.errors import UserError, one_line
from fedhet.sweeps.cluster import Machine
from fedhet.sweeps.ray_actor import Host
from fedhet.sweeps.remote import LostError, opened
from fedhet.sweeps.transfer import PIECE

REACH = 5.0  # seconds to reach the address
WAIT = 1.0  # seconds of waiting for an answer between looks whether its machine is there
SILENCES = 30  # times that a keeper may be out of reach while its machine is there
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def joined(address: str) -> Iterator["RayMachines"]:
    """The cluster at ``HOST:PORT`` (or ``auto``), until the block ends, and our actors with it.

    UserError, one line, if there is none or this machine is no part of it.
    """
    _reach(address)
    # `uv run` would have Ray pack the current folder and send it to every machine.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else it warns about this
    import ray  # noqa: PLC0415  (a second)

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        raise UserError(
            f"--ray: '{address}' cannot be joined from here: {one_line(error, 300)} (this machine "
            f"must be one of the cluster: `ray start --address={address} --num-cpus=0`)"
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray sets its own
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    try:
        yield RayMachines()
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself would try for half a minute."""
    if address == "auto":
        return
    name, _, port = address.rpartition(":")
    if not name or not port.isascii() or not port.isdigit():
        raise UserError(
            f"--ray: '{address}' is not allowed: HOST:PORT of the cluster's head, such as "
            "10.0.0.1:6379, or auto"
        )
    try:
        socket.create_connection((name.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--ray: nobody answers at '{address}' ({one_line(error)}): start the cluster with "
            "`ray start --head`, see docs/scale.md"
        ) from error


class RayMachines:
    """The machines of the cluster that this process has joined."""

    def __init__(self) -> None:
        import ray  # noqa: PLC0415

        self._actor: Any = ray.remote(Host)
        self._lock = threading.Lock()
        self._looked = 0.0
        self._alive: dict[str, Machine] = {}

    def alive(self) -> Mapping[str, Machine]:
        """The machines that Ray takes for alive, as of a second ago."""
        import ray  # noqa: PLC0415

        nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
        with self._lock:
            if time.monotonic() - self._looked > WAIT:
                self._alive = {
                    one["NodeID"]: Machine(
                        one["NodeID"], one["NodeManagerAddress"],
                        one["Resources"].get("CPU", 0.0), one["Resources"].get("GPU", 0.0),
                    )
                    for one in nodes() if one["Alive"]
                }  # fmt: skip
                self._looked = time.monotonic()
            return self._alive

    def keeper(
        self, machine: Machine, cpus: float, gpus: float, stop: threading.Event
    ) -> "RayKeeper":
        """An actor there."""
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            NodeAffinitySchedulingStrategy,
        )

        actor = self._actor.options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
        ).remote()  # fmt: skip
        return RayKeeper(self, machine, actor, stop)


class RayKeeper:
    """One actor; see :class:`~fedhet.sweeps.remote.Keeper`."""

    def __init__(
        self, machines: RayMachines, machine: Machine, actor: Any, stop: threading.Event
    ) -> None:
        self.machines, self.machine, self.actor, self.stop = machines, machine, actor, stop

    def call(self, method: str, *words: object, limit: int = PIECE) -> bytes:
        """Ask it; how long it may take is Ray's business as long as its machine is there."""
        from ray import exceptions  # noqa: PLC0415

        for _ in range(SILENCES):
            try:
                answer = self._answer(getattr(self.actor, method).remote(*words))
            except exceptions.ActorUnavailableError:
                self._look()
                self.stop.wait(WAIT)
                continue
            except exceptions.RayError as error:
                raise LostError(f"machine {self.machine.name}: {one_line(error, 300)}") from error
            return opened(answer, self.machine.name, limit)
        raise LostError(f"machine {self.machine.name} is out of reach")

    def _answer(self, reference: Any) -> Any:
        import ray  # noqa: PLC0415

        while True:
            try:
                return ray.get(reference, timeout=WAIT)
            except ray.exceptions.GetTimeoutError:
                self._look()

    def _look(self) -> None:
        if self.stop.is_set():
            raise LostError("it was ended")
        if self.machine.id not in self.machines.alive():
            raise LostError(f"machine {self.machine.name} is gone")

    def kill(self) -> None:
        """End the actor, whose cell is then asked to end by the system."""
        import ray  # noqa: PLC0415

        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(self.actor)

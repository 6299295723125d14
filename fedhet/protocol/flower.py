"""The only module that imports what Flower calls private or keeps for compatibility.

Whether clients are simulated is said here, too: nothing public of Flower's tells. What costs a
client's process seconds at import, and is the server's business, is imported when it is called.
"""
# ruff: noqa: PLC0415

import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flwr.app import Message
from flwr.client import NumPyClient
from flwr.common import Scalar
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.task_identity import TaskIdentity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["ControlCalls", "NodeInfo", "NumPyClient", "Scalar"]

INVALID_HEARTBEAT = int(ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL)
ACTIVATION_FAILED = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
_SIMULATING: ContextVar[bool | None] = ContextVar("simulating", default=None)


def is_simulated(grid: Grid | None = None) -> bool:
    """Whether clients are simulated (on Ray, or inline) rather than deployed nodes' own.

    A server asks of its ``grid``: that of a simulation lies in memory and has a pull interval. A
    client, which has none, asks of its process. It is not told by the server: that would choose
    for it whose images and which folder it uses.
    """
    if grid is not None:
        return hasattr(grid, "pull_interval")
    said = _SIMULATING.get()
    if said is not None:
        return said
    ray = sys.modules.get("ray")  # an actor has imported it; a deployed client never does
    return ray is not None and bool(ray.is_initialized())


@contextlib.contextmanager
def simulating(answer: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
    """Within this block a client is told ``answer``, whatever else runs in this process."""
    token = _SIMULATING.set(answer)
    try:
        yield
    finally:
        _SIMULATING.reset(token)


def be_one_process() -> None:
    """Let messages be made outside Flower's own processes, which are told who they are."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def posted(message: Message, identity: str = "") -> str:
    """Give a message an id, as a SuperLink does with what is pushed; returns the id."""
    identity = identity or str(uuid4())
    message.metadata.__dict__["_message_id"] = identity
    return identity


def run_simulation(actor: Mapping[str, Any]) -> None:
    """Flower's program ``flwr-simulation``, with options of Ray's for its training processes."""
    from flwr.simulation.app import flwr_simulation
    from flwr.simulation.ray_transport.ray_actor import ClientAppActor

    ClientAppActor._default_options.update(actor)  # type: ignore[attr-defined]
    flwr_simulation()


class ControlCalls:
    """Calls of the Control API at ``address`` (``host:port``), whose certificate ``ca`` signed.

    Raises ValueError if ``ca`` is no certificate, and httpx's errors.
    """

    def __init__(self, address: str, ca: bytes) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self._client = ControlHttpClient.from_server_address(
            address, False, ca, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        )

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def register(self, name: str, key: bytes) -> None:
        """Let the owner of a public key (PEM) take part under ``name``."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def nodes(self) -> list[NodeInfo]:
        """All nodes that were ever registered, with ``node_id``, ``name`` and ``status``."""
        from flwr.proto.control_pb2 import ListNodesRequest

        return list(self._client.ListNodes(ListNodesRequest()).nodes_info)

    def runs(self, limit: int) -> list[Any]:
        """Flower's ``Run`` messages of the last runs."""
        from flwr.proto.control_pb2 import ListRunsRequest

        return list(self._client.ListRuns(ListRunsRequest(limit=limit)).run_dict.values())


def activate(address: str, ca: bytes, key: "EllipticCurvePrivateKey", heartbeat: float) -> None:
    """Ask the Fleet API at ``address``, as a SuperNode does, to activate the owner of ``key``.

    ``heartbeat`` is the interval in seconds that it promises. Raises httpx's errors.
    """
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    public = key.public_key()
    client = FleetHttpClient.from_server_address(
        address, False, ca,
        [RuntimeVersionHttpInterceptor(component_name="SuperNode"),
         NodeAuthHttpInterceptor(key, public)],
    )  # fmt: skip
    asked = public_key_to_bytes(public)
    try:
        client.ActivateNode(ActivateNodeRequest(public_key=asked, heartbeat_interval=heartbeat))
    finally:
        client.close()

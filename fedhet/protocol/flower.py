"""The only module that imports or names what Flower calls private or keeps for compatibility.

Everything else takes ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and its strategy alone
(tests have ``helpers/flower_internals.py`` as well); tests/test_floors.py holds that, and that each
import below has its reason beside it. What costs a client's process seconds at import, and is the
server's business, is imported when it is called.
"""
# ruff: noqa: PLC0415  (seconds of imports that only the server needs)

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient  # why: the class whose `fit` Flower's users know; compat
from flwr.common import Scalar  # why: the type of that `fit`'s numbers; compat
from flwr.proto import control_pb2 as control  # why: the messages of the calls below
from flwr.proto import fleet_pb2 as fleet  # why: as above
from flwr.proto import runtime_pb2 as runtime  # why: as above
from flwr.proto.node_pb2 import NodeInfo  # why: what `get_nodes` gives, which the Grid only types
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # why: a message wants to know its process

from fedhet import __version__
from fedhet.errors import RunFailed, UserError, one_line
from fedhet.files import parse_object, sources

__all__ = ["NodeInfo", "NumPyClient", "Scalar"]

# Codes of errors of our own, above Flower's: nothing came in time; a message was not sent; a reply
# cannot be unpacked; a node's owner installed other code; the process with the message died.
NO_REPLY, NOT_SENT, DAMAGED, OTHER_CODE, ENDED = range(1000, 1005)
PROJECT = "pyproject.toml"
# What Flower wants of an application; a SuperLink of ours installs no dependencies.
ABOUT = f"""[project]
name = "fedhet"
version = "{__version__}"
description = "Model-heterogeneous personalised federated learning"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedhet"
config = {{config = ""}}
[tool.flwr.app.components]
serverapp = "fedhet.server_app:app"
clientapp = "fedhet.client_app:app"
"""  # `config` is that of fedhet.config.load.envelope
Ids = tuple[int, int, int]  # of run, node and task
Answered = tuple[Message, Context]  # a reply, and the context after it
Answer = Callable[[Message, Context, bytes, Ids], Answered]
_SIMULATING: ContextVar[bool | None] = ContextVar("simulating", default=None)


def application() -> dict[str, bytes]:
    """Return the files of the application that we give to Flower, laid out as in a wheel.

    A ``clients/`` at its top would hide somebody else's package.
    """
    ours = {f"fedhet/{name.removeprefix('fedhet/')}": path for name, path in sources()}
    return {PROJECT: ABOUT.encode()} | {name: path.read_bytes() for name, path in ours.items()}


def packed_app() -> bytes:
    """Return the zip that Flower makes of them, as ``flwr run`` sends it."""
    from flwr.cli.build import build_fab_from_files  # why: the command writes it beside the app

    return bytes(build_fab_from_files(application())[0])


def is_simulated(grid: Grid | None = None) -> bool:
    """Return whether clients are simulated, on Ray or inline, or are deployed nodes' own.

    A server asks of its ``grid``: those of simulations have a pull interval. A client asks of its
    process: ours are told by :func:`simulating`, those of Flower's simulation are Ray's.
    """
    if grid is not None:
        return hasattr(grid, "pull_interval")
    ray = sys.modules.get("ray")  # an actor has imported it; a deployed client never does
    chosen = _SIMULATING.get()
    return bool(ray and ray.is_initialized()) if chosen is None else chosen


@contextlib.contextmanager
def simulating(answer: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
    """Within this block a client is told ``answer``, whatever else runs in this process."""
    token = _SIMULATING.set(answer)
    try:
        yield
    finally:
        _SIMULATING.reset(token)


def be_task(ids: Ids = (1, 1, 1)) -> None:
    """Let messages be made in this process, which Flower tells whose it is in its own processes."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = ids


def take_damaged_replies() -> Callable[[str, dict[str, bytes]], Message]:
    """Make a reply that cannot be unpacked its node's error from now on, in this process.

    Flower unpacks all replies of a pull together: one that is damaged would end the run. Returns
    what unpacks: the reply of that id, out of the contents of its objects by theirs.
    """
    import flwr.superlink.grid.http_grid as http  # why: where a pull unpacks what came
    from flwr.proto.message_pb2 import Message as Sent  # why: what a reply is packed as
    from flwr.supercore.inflatable import inflatable_utils  # why: what unpacks it
    from flwr.supercore.inflatable.inflatable_object import get_object_body  # why: as above

    unpack: Any = inflatable_utils.inflate_object_from_contents

    def unpacked(identity: str, contents: dict[str, bytes]) -> Message:
        whole = contents.get(identity, b"")  # before they are taken out
        try:
            message = unpack(identity, contents)
            if not message.has_error() and not isinstance(message.content, RecordDict):
                raise TypeError("a message without records")
        except Exception as error:
            asked = Message(RecordDict(), 0, "train")
            posted(asked, "unknown")
            with contextlib.suppress(Exception):  # bytes of the other side may be anything
                sent = Sent.FromString(get_object_body(whole, Message))
                posted(asked, sent.metadata.reply_to_message_id)
            return Message(Error(DAMAGED, f"cannot be unpacked: {error!r:.200}"), reply_to=asked)
        return cast(Message, message)

    vars(http)["inflate_object_from_contents"] = unpacked
    return unpacked


def posted(message: Message, identity: str = "") -> str:
    """Give a message an id, as a SuperLink does with what is pushed; returns the id."""
    identity = identity or str(uuid4())
    message.metadata.__dict__["_message_id"] = identity
    return identity


def _version(component: str) -> Any:
    """Return what adds our version to calls; servers of Flower's refuse those without."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # why: its header

    return RuntimeVersionHttpInterceptor(component_name=component)


BAD_INTERVAL, NO_SUCH_KEY = 2003, 2004  # by which a SuperLink refuses an activation
KNOWN_KEY = 23  # Flower's code for a public key that is registered already


@dataclass(frozen=True)
class RunStatus:
    """A run, with a ``status`` such as ``finished:failed``; of another app without a folder."""

    id: int
    status: str
    started: str
    config: dict[str, Any]
    folder: str
    details: str = ""


class Control:
    """Calls of the Control API of a SuperLink, at two CPU seconds less than Flower's commands.

    Each raises UserError if it had no effect, and RunFailed if the server or its answer failed.
    """

    def __init__(self, address: str, ca: bytes) -> None:
        """Connect to ``host:port``, whose certificate ``ca`` signed; ValueError: it is none."""
        from flwr.supercore.control import ControlHttpClient  # why: the client of the commands

        own = [_version("flwr CLI")]
        self._client: Any = ControlHttpClient.from_server_address(address, False, ca, own)
        self.close = self._client.close

    def _call(self, what: str, /, **fields: Any) -> Any:
        import httpx

        try:
            return getattr(self._client, what)(getattr(control, f"{what}Request")(**fields))
        except httpx.HTTPStatusError as error:
            answer: dict[str, Any] = {}
            with contextlib.suppress(ValueError):
                answer = parse_object(error.response.text)
            text = one_line(answer.get("detail") or error.response.text or error, 200)
            if error.response.is_server_error:
                raise RunFailed(text) from error
            raise UserError(text, about=str(answer.get("code", ""))) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise UserError(f"nobody answers: {one_line(error)}") from error
        except httpx.HTTPError as error:
            raise RunFailed(f"the connection was lost: {one_line(error)}") from error

    def register(self, name: str, key: bytes) -> bool:
        """Let the owner of a public key (PEM) take part under ``name``; False: it may already."""
        try:
            self._call("RegisterNode", public_key=key, name=name)
        except UserError as error:
            if error.about != str(KNOWN_KEY):
                raise
            return False
        return True

    def nodes(self) -> list[NodeInfo]:
        """All nodes that were not removed; ``status``: registered, online or offline."""
        nodes = self._call("ListNodes").nodes_info
        return [node for node in nodes if node.status != "unregistered"]

    def runs(self, **which: int) -> list[RunStatus]:
        """Return the last runs, newest first, or that of a ``run_id``."""
        runs = []
        for run in self._call("ListRuns", **which or {"limit": 20}).run_dict.values():
            text = run.override_config["config"].string or "{}"
            sent = parse_object(text, f"run {run.run_id}")
            about_run, config = sent.get("run") or {}, sent.get("config") or {}
            folder = str(about_run.get("folder", ""))
            status = ":".join(filter(None, (run.status.status, run.status.sub_status)))
            about = run.pending_at, config, folder, run.status.details or "N/A"
            runs.append(RunStatus(run.run_id, status, *about))
        return sorted(runs, key=lambda run: run.started, reverse=True)

    def start(self, envelope: str) -> int:
        """Submit our app with this run configuration; returns the run's id."""
        from flwr.common import serde  # why: app and run configuration as the call takes them
        from flwr.supercore.fab import Fab  # why: the app and its digest

        content = packed_app()
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        config = serde.user_config_to_proto({"config": envelope})
        answer = self._call("StartRun", fab=serde.fab_to_proto(fab), override_config=config)
        if not answer.HasField("run_id"):
            raise UserError(str(answer.note) or "it returned no run id")
        return int(answer.run_id)

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        self._call("StopRun", run_id=run_id)


def tell_fleet(address: str, ca: bytes, key: Any, node: int | None = None) -> None:
    """Tell a Fleet API, signed with ``key``, that its ``node`` is gone; raise httpx's errors.

    Without ``node``: ask it to activate the key's owner, with a heartbeat interval out of bounds.
    """
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # why: what it compares
    from flwr.supernode.fleet_http_client import FleetHttpClient  # why: tells the server's code
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # why: signs

    hooks = [_version("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())]
    with contextlib.closing(FleetHttpClient.from_server_address(address, False, ca, hooks)) as link:
        if node is not None:
            link.DeactivateNode(fleet.DeactivateNodeRequest(node_id=node))
        else:
            public = public_key_to_bytes(key.public_key())
            link.ActivateNode(fleet.ActivateNodeRequest(public_key=public, heartbeat_interval=0.0))


def runtime_api(address: str, *more: Any) -> Any:
    """Return a client of the Runtime API of a SuperNode with ``--isolation process``."""
    from flwr.supercore.runtime import RuntimeHttpClient  # why: what ClientApps' programs call

    own = [_version("flwr-clientapp"), *more]
    return RuntimeHttpClient.from_server_address(address, True, None, own)


def next_task(client: Any) -> str:
    """Return the token of the next task of a SuperNode; empty if ``client`` is told of none."""
    from flwr.supercore.constant import TaskType  # why: the kinds of tasks

    request = runtime.AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    reply = client.AcquireTask(request)
    return str(reply.token) if reply.HasField("task") else ""


def do_task(address: str, token: str, answer: Answer) -> None:
    """Answer the task's message; meanwhile the SuperNode at ``address`` hears of it every 25 s.

    ``answer`` gets the message, its context, the app that the server sent, and the task's ids.
    Raises httpx errors, and what ``answer`` raises; then the task has failed.
    """
    from flwr.supercore.heartbeat import HeartbeatSender  # why: the SuperNode expects them
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor  # why: in later calls
    from flwr.supernode.runtime import run_clientapp as tasks  # why: how tasks begin and end

    def beat() -> bool:  # Flower's own ends the process when the SuperNode has given the task up
        with contextlib.suppress(Exception):
            client.SendTaskHeartbeat(runtime.SendTaskHeartbeatRequest())
        return True

    after: Context | None = None
    with contextlib.closing(runtime_api(address, RuntimeTokenHttpInterceptor(token))) as client:
        heart = HeartbeatSender(beat)
        heart.start()
        try:
            message, context, _, fab = tasks.pull_task_input(client)
            ids = TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id
            reply, changed = answer(message, context, fab.content, ids)
            tasks.push_message(client, reply, changed)
            after = changed  # kept for the next message
        finally:
            status = "failed" if after is None else "completed"
            tasks.push_task_output(client, after, status, "")
            heart.stop()

"""The only module that imports Flower's compatibility and private paths."""

from uuid import uuid4

from flwr.app import Message
from flwr.client import NumPyClient
from flwr.common import Scalar
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["NodeInfo", "NumPyClient", "Scalar", "be_one_process", "posted"]


def be_one_process() -> None:
    """Let messages be made outside Flower's own processes, which are told who they are."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def posted(message: Message) -> str:
    """Give a message an id, as a SuperLink does with what is pushed; returns the id."""
    identity = str(uuid4())
    message.metadata.__dict__["_message_id"] = identity
    return identity

"""FedProto on the client: representations are drawn to the global prototypes of their classes."""

from fedhet.clients.class_vectors import PrototypeClient
from fedhet.strategies.fedproto import FedProtoParams


class FedProtoClient(PrototypeClient[FedProtoParams]):
    """Sends mean representations, is drawn to their means over the clients."""

"""FedProto on the client: pull representations towards the global prototypes of their classes."""

from fedhet.clients.class_vectors import NearestPrototypeClient
from fedhet.strategies.fedproto import FedProtoParams


class FedProtoClient(NearestPrototypeClient[FedProtoParams]):
    """Sends mean representations, is pulled towards their means over the clients."""

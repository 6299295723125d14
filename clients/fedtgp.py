"""FedTGP on the client: as FedProto; only the server's prototypes differ."""

from fedhet.clients.class_vectors import NearestPrototypeClient
from fedhet.strategies.fedtgp import FedTGPParams


class FedTGPClient(NearestPrototypeClient[FedTGPParams]):
    """Sends mean representations, is pulled towards trained prototypes."""

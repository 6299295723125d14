"""FedTGP on the client: as FedProto; what differs is how the server makes its prototypes."""

from fedhet.clients.class_vectors import PrototypeClient
from fedhet.strategies.fedtgp import FedTGPParams


class FedTGPClient(PrototypeClient[FedTGPParams]):
    """Sends mean representations, is drawn to trained prototypes."""

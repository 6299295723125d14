"""FedProto on the client: representations are drawn to the global prototypes of their classes."""

from fedhet.clients.class_vectors import PrototypeClient
from fedhet.strategies.fedproto import FedProtoParams


class FedProtoClient(PrototypeClient[FedProtoParams]):
    """Sends mean representations, is drawn to their means over the clients."""

    @property
    def lam(self) -> float:
        """Lambda."""
        return self.params.lam

    @property
    def download_classes(self) -> str:
        """Whose prototypes come."""
        return self.params.download_classes

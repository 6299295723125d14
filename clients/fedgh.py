"""FedGH on the client: the global header overwrites the local one; mean representations go up."""

from fedhet.clients.averaging import AveragingClient
from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.strategies.fedgh import FedGHParams


class FedGHClient(AveragingClient[FedGHParams], ClassVectorClient[FedGHParams]):
    """Receives a header, sends mean representations."""

    upload = ClassVectorClient.upload

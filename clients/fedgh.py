"""FedGH on the client: the global header overwrites the local one; mean representations go up."""

from fedhet.clients.averaging import blanks_of, set_parameters
from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.protocol.payload import ModelArrays, Payload
from fedhet.strategies.fedgh import FedGHParams


class FedGHClient(ClassVectorClient[FedGHParams]):
    """Receives a header, sends mean representations."""

    download_type = ModelArrays

    def expect_download(self, came: Payload) -> Payload | None:
        """Return the header's shapes."""
        return ModelArrays(blanks_of(self.model.head))

    def receive(self, payload: ModelArrays) -> None:
        """Overwrite the header."""
        set_parameters(self.model.head, payload.tensors)

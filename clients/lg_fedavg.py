"""LG-FedAvg on the client: the global header overwrites the local one, then all layers train."""

from torch import nn

from fedhet.clients.averaging import AveragingClient


class LGFedAvgClient(AveragingClient):
    """Shares the header of its own model."""

    shares_model = False

    def shared(self) -> nn.Module:
        """The last fully connected layer."""
        return self.model.head

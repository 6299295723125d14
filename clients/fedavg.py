"""FedAvg on the client: the common model takes the place of the client's own, and is trained."""

from torch import nn

from fedhet.clients.averaging import AveragingClient
from fedhet.strategies.fedavg import FedAvgParams


class FedAvgClient(AveragingClient[FedAvgParams]):
    """Shares its whole model."""

    shared_name = "model"

    def build(self) -> dict[str, nn.Module]:
        """Return the common model, as the server's is before round 1."""
        return {"model": self.as_sent_first(lambda: self.new_small(self.params.common_model))}

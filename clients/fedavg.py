"""FedAvg on the client: the common model takes the place of the client's own, and is trained."""

from torch import nn

from fedhet.clients.averaging import AveragingClient


class FedAvgClient(AveragingClient):
    """Shares its whole model."""

    shared_name = "model"

    def build(self) -> dict[str, nn.Module]:
        """Return the common model, as the server's is before round 1."""
        return {"model": self.as_sent_first(self.new_small)}

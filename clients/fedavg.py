"""FedAvg on the client: the common model takes the place of the client's own, and is trained."""

from fedhet.clients.averaging import AveragingClient


class FedAvgClient(AveragingClient):
    """Shares its whole model."""

    shared_name = "model"

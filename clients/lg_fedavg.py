"""LG-FedAvg on the client: the global header overwrites the local one, then all layers train."""

from fedhet.clients.averaging import AveragingClient


class LGFedAvgClient(AveragingClient):
    """Shares the header of its own model."""

    caches_frozen = True
    shares_model = False

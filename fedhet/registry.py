"""The methods, by name. A method is its two classes, its parameters and its preset."""

from dataclasses import dataclass

from clients.base import MethodClient
from clients.fedssa import FedSSAClient
from clients.lg_fedavg import LGFedAvgClient
from clients.standalone import StandaloneClient
from fedhet.schema import Params
from strategies.base import MethodStrategy
from strategies.fedssa import FedSSAParams, FedSSAStrategy
from strategies.lg_fedavg import LGFedAvgStrategy
from strategies.standalone import StandaloneStrategy


@dataclass(frozen=True)
class Method:
    """One method: server class, client class, own hyper-parameters, one line of description."""

    strategy: type[MethodStrategy]
    client: type[MethodClient]
    params: type[Params]
    about: str


METHODS: dict[str, Method] = {
    "standalone": Method(
        StandaloneStrategy, StandaloneClient, Params, "every client alone, nothing is sent"
    ),
    "lg_fedavg": Method(LGFedAvgStrategy, LGFedAvgClient, Params, "weighted mean of whole headers"),
    "fedssa": Method(
        FedSSAStrategy,
        FedSSAClient,
        FedSSAParams,
        "per-class mean of header rows, fused with the local ones by a decaying weight",
    ),
}

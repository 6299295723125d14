"""The methods, by name. A method is its two classes, its parameters and its preset."""

from dataclasses import dataclass

from clients.base import MethodClient
from clients.fd import FDClient
from clients.fedapen import FedAPENClient
from clients.fedclassavg import FedClassAvgClient
from clients.fedkd import FedKDClient
from clients.fedmrl import FedMRLClient
from clients.fedproto import FedProtoClient
from clients.fedssa import FedSSAClient
from clients.fml import FMLClient
from clients.lg_fedavg import LGFedAvgClient
from clients.pfedes import PFedESClient
from clients.standalone import StandaloneClient
from fedhet.schema import Params
from strategies.base import MethodStrategy
from strategies.fd import FDParams, FDStrategy
from strategies.fedapen import FedAPENParams, FedAPENStrategy
from strategies.fedclassavg import FedClassAvgParams, FedClassAvgStrategy
from strategies.fedkd import FedKDParams, FedKDStrategy
from strategies.fedmrl import FedMRLParams, FedMRLStrategy
from strategies.fedproto import FedProtoParams, FedProtoStrategy
from strategies.fedssa import FedSSAParams, FedSSAStrategy
from strategies.fml import FMLParams, FMLStrategy
from strategies.lg_fedavg import LGFedAvgStrategy
from strategies.pfedes import PFedESParams, PFedESStrategy
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
    "fedclassavg": Method(
        FedClassAvgStrategy,
        FedClassAvgClient,
        FedClassAvgParams,
        "weighted mean of whole headers, trained with contrastive and proximal terms",
    ),
    "fd": Method(
        FDStrategy, FDClient, FDParams, "mean outputs per class, leave-one-out, as soft targets"
    ),
    "fedproto": Method(
        FedProtoStrategy,
        FedProtoClient,
        FedProtoParams,
        "mean representations per class, towards which clients are drawn",
    ),
    "fml": Method(
        FMLStrategy,
        FMLClient,
        FMLParams,
        "a private and a shared model teach each other; weighted mean of the shared ones",
    ),
    "fedkd": Method(
        FedKDStrategy,
        FedKDClient,
        FedKDParams,
        "a private mentor and a shared student teach each other; compressed updates",
    ),
    "fedapen": Method(
        FedAPENStrategy,
        FedAPENClient,
        FedAPENParams,
        "a private and a shared model teach each other and answer together, by a learned weight",
    ),
    "fedssa": Method(
        FedSSAStrategy,
        FedSSAClient,
        FedSSAParams,
        "per-class mean of header rows, fused with the local ones by a decaying weight",
    ),
    "fedmrl": Method(
        FedMRLStrategy,
        FedMRLClient,
        FedMRLParams,
        "a shared small model, fused with the local one into nested representations",
    ),
    "pfedes": Method(
        PFedESStrategy,
        PFedESClient,
        PFedESParams,
        "a shared image extractor; extractor and local model are trained in turn",
    ),
}

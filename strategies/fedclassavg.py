"""FedClassAvg (Jang et al. 2022, arXiv 2210.14226).

"FedClassAvg: Local Representation Learning for Personalized Federated Learning on Heterogeneous
Neural Networks".

Each way the whole classifier (the header): weight (C, d) and bias (C,) float32, C (d + 1) floats
(5,010 at C = 10, d = 500). The server takes the n_k-weighted mean, theta = sum_k (n_k / n) theta_k.
The client overwrites its header by theta, draws two random views x1, x2 of every image and
minimises

    CE(header(f(x1)), y) + SupCon({f(x1), f(x2)}, y; tau) + (rho / 2) ||theta_k - theta||^2

(``FedClassAvgClient.loss``); inference is by the local model. Both views go through the network:
the FLOPs counted are about twice Standalone's.

Differences from the authors' code: docs/reference/method-notes.md.
"""

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.strategies.averaging import AveragingStrategy


class FedClassAvgParams(Params):
    """Hyper-parameters of FedClassAvg."""

    rho: float = Field(0.1, ge=0)
    """rho, weight of the proximal term, >= 0; authors' README: 0.1"""
    tau: float = Field(0.5, gt=0)
    """tau, temperature of SupCon, > 0; .07 to .5 on normalised features"""


class FedClassAvgStrategy(AveragingStrategy[FedClassAvgParams]):
    """Averages whole headers."""

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

Differs from the authors' code (hukla/FedClassAvg), which does not normalise the features, sets
tau = 100, takes the mean squared difference per tensor as proximal term, leaves that out in the
first batch of an epoch, trains with Adam and trains one epoch alone before round 1. ``legacy:
true`` brings back the first three and needs ``optimizer: adam`` with a small ``lr`` (theirs:
0.0001, betas 0.5 and 0.999; ours are torch's). Its classifier begins with a ReLU and its
contrastive features come before that ReLU; here a representation already ends in one, so the header
is the last FC alone and the contrastive features are non-negative.
"""

from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.errors import UserError
from fedhet.strategies.averaging import AveragingStrategy

TAU = 0.5


class FedClassAvgParams(Params):
    """Hyper-parameters of FedClassAvg."""

    rho: float = Field(
        0.1, ge=0, description="rho, weight of the proximal term, >= 0; authors' README: 0.1"
    )
    tau: float = Field(
        TAU, gt=0, description="tau, temperature of SupCon, > 0; .07 to .5 on normalised features"
    )
    legacy: bool = Field(
        False,
        description="authors' loss: raw features, tau = 100, mean squares; needs Adam",
    )


class FedClassAvgStrategy(AveragingStrategy[FedClassAvgParams]):
    """Averages whole headers."""

    @classmethod
    def check_config(cls, config: RunConfig, params: FedClassAvgParams) -> None:
        """Refuse a ``tau`` with ``legacy``, whose loss is too steep for SGD."""
        if params.legacy and params.tau != TAU:
            raise UserError(f"tau: {params.tau:g} is not allowed: legacy=true fixes it at 100")
        if params.legacy and config.optimizer != "adam":
            raise UserError(
                "legacy: true is not allowed with optimizer=sgd: the authors' loss is 1,429 times "
                "the usual one and diverges; use optimizer=adam lr=0.0001, as they do"
            )

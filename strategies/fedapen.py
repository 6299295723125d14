"""FedAPEN (Qin et al., KDD 2023, DOI 10.1145/3580305.3599344).

"Personalized Cross-silo Federated Learning with Adaptability to Statistical Heterogeneity".

Each way all parameters of the shared model theta, float32: CNN-5 with d = 500, 670,058 floats at 10
classes (715,148 at 100). The server takes their n_k-weighted mean; ``weighting: uniform`` is the
authors' 1/K. The private model, the ensemble weight lambda and the held-out images stay at the
client; what it computes is in clients/fedapen.py.
"""

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.strategies.averaging import AveragingStrategy


class FedAPENParams(Params):
    """Hyper-parameters of FedAPEN."""

    holdout: float = Field(0.05, gt=0, le=0.5)
    """share of the train images that lambda is learned on; code"""
    ensemble_epochs: int = Field(10, ge=1)
    """epochs of learning lambda per round; code: 10"""
    lr_ensemble: float = Field(0.05, gt=0)
    """learning rate of lambda, SGD; code: 0.001 for 10 x the steps"""


class FedAPENStrategy(AveragingStrategy[FedAPENParams]):
    """Averages shared models."""

    shares_small_model = True
    metric_ranges = {"ensemble_weight": (0.0, 1.0)}  # lambda

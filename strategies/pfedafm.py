"""pFedAFM (Yi, Yu, Ren, Wang, Liu and Li 2024, arXiv 2404.17847).

"pFedAFM: Adaptive Feature Mixture for Batch-Level Personalization in Heterogeneous Federated
Learning".

Each way all parameters of a small homogeneous extractor g, float32: CNN-5 without its header,
665,048 floats at d = 500. The server takes their n_k-weighted mean, n over the accepted replies.
The local model F_k = (extractor, header) and the weights alpha in R^d of the mixture never leave
the client; what it computes is in clients/pfedafm.py.
"""

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.strategies.averaging import AveragingStrategy


class PFedAFMParams(Params):
    """Hyper-parameters of pFedAFM."""

    lr_alpha: float = Field(0.1, gt=0)
    """eta_alpha, learning rate of the mixture's weights; code: 0.01"""


class PFedAFMStrategy(AveragingStrategy[PFedAFMParams]):
    """Averages small extractors."""

    shares_small_model = shares_extractor = True
    metric_ranges = {"alpha_mean": (0.0, 1.0)}

"""pFedMoE (Yi, Yu, Ren, Zhang, Wang, Liu and Li 2024, arXiv 2402.01350).

"pFedMoE: Data-Level Personalization with Mixture of Experts for Model-Heterogeneous Personalized
Federated Learning".

Each way all parameters of a small homogeneous extractor g, the global expert, float32: CNN-5
without its header, 665,048 floats at d = 500. The server takes their n_k-weighted mean, n over the
accepted replies. The client's model F_k = (features, header), the local expert, and its gate H_k
never leave it. They are trained at once with g, on one loss: with a = H_k(x) in R^2, a >= 0, a sum
of 1, CE(header(a_1 g(x) + a_2 features(x)), y); see clients/pfedmoe.py.

**The gate is ours**: LayerNorm of the flattened input without parameters (none for a table; texts
read g(x) without gradient), Linear to ``gate-hidden``, LayerNorm, sigmoid, Linear to 2 that starts
at zero, softmax. Inference is by the mixture. Differences: docs/reference/method-notes.md.
"""

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.strategies.averaging import AveragingStrategy


class PFedMoEParams(Params):
    """Hyper-parameters of pFedMoE."""

    gate_hidden: int = Field(64, ge=1)
    """width of the gate's hidden layer; the paper's is unknown"""
    lr_proxy: float = Field(0.0, ge=0)
    """learning rate of the shared extractor; 0: lr, as in the paper"""
    lr_gate: float = Field(0.0, ge=0)
    """learning rate of the gate; 0: lr; paper: from 0.001 to 1"""


class PFedMoEStrategy(AveragingStrategy[PFedMoEParams]):
    """Averages small extractors."""

    shares_small_model = shares_extractor = True
    metric_ranges = {"gate_global_mean": (0.0, 1.0), "gate_global_std": (0.0, 1.0)}

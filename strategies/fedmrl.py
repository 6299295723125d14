"""FedMRL (Yi, Yu, Ren, Wang, Liu and Li, NeurIPS 2024, arXiv 2406.00488).

"Federated Model Heterogeneous Matryoshka Representation Learning".

Each way all parameters of the small homogeneous model G = (G_ex, G_hd), float32: CNN-5 with
representation d1, 465,658 floats at d1 = 100 and 10 classes (474,748 at 100 classes; 670,058 at
d1 = 500). The server takes their n_k-weighted mean (Algorithm 1), n over the accepted replies. The
local model F_k and the projector P_k never leave the client; eq. 2 to 10 are in clients/fedmrl.py.
"""

from typing import Literal

from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.lazy import nn
from fedhet.strategies.averaging import AveragingStrategy


class FedMRLParams(Params):
    """Hyper-parameters of FedMRL and its alternatives for inference (appendix C.3)."""

    d1: int = Field(100, ge=1)
    """d_1, representation of the small model, 1 to d_2; paper: 100 to 500"""
    matryoshka: bool = True
    """false: no global header and no nested representation (section 5.4)"""
    m_global: float = Field(1.0, gt=0, description="m^G, weight of the global header's loss, > 0")
    m_local: float = Field(1.0, gt=0, description="m^F, weight of the local header's loss, > 0")
    inference: Literal["mix-large", "mix-small", "single-small", "single-large"] = "mix-large"
    """all but the global header, all but the local header, G alone, or F_k alone"""
    report_all_inference: bool = False
    """record the accuracies of all inference models, in one pass"""


def global_model(
    config: RunConfig, inputs: Inputs, params: FedMRLParams, classes: int
) -> "nn.Module":
    """Return G with representation d1; without ``matryoshka`` it is G_ex alone."""
    from fedhet.models.zoo import small_model  # noqa: PLC0415  (torch)

    return small_model(config, inputs, classes, params.d1, header=params.matryoshka)


class FedMRLStrategy(AveragingStrategy[FedMRLParams]):
    """Averages small models."""

    shares_small_model = True

    @classmethod
    def check_config(cls, config: RunConfig, params: FedMRLParams) -> None:
        """Refuse inference models that do not exist without the global header."""
        if params.d1 > config.representation:
            most = f"at most the representation, {config.representation}"
            raise UserError(f"d1: '{params.d1}' is not allowed: {most}")
        if not params.matryoshka and params.inference.endswith("small"):
            why = "is not allowed with matryoshka=false: mix-large or single-large"
            raise UserError(f"inference: '{params.inference}' {why}")

    def shared_module(self) -> "nn.Module":
        """Return G, freshly drawn."""
        return global_model(self.config, self.inputs, self.params, self.classes)

"""pFedES (Yi, Yu, Wang and Liu 2023, arXiv 2311.06879).

"pFedES: Model Heterogeneous Personalized Federated Learning with Feature Extractor Sharing".

Each way all parameters of the homogeneous extractor G, image -> image of the same shape, float32:
Conv 3 -> 8 -> 3, 3 x 3, 'same', ReLU after each, weights (8, 3, 3, 3), (3, 8, 3, 3), biases (8,),
(3,), 443 floats. The server takes their n_k-weighted mean (eq. 10); n runs over the accepted
replies, since weights over all N clients, as printed, would not sum to 1.
"""

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.data.inputs import SIGNAL, TABLE, TOKENS, Inputs
from fedhet.lazy import nn
from fedhet.strategies.averaging import AveragingStrategy


class PFedESParams(Params):
    """Hyper-parameters of pFedES."""

    mu: float = Field(0.1, gt=0, le=0.5)
    """mu, weight of the loss on enhanced images, in (0, 0.5]"""
    extractor_epochs: int = Field(5, ge=1)
    """E_fe, epochs of training the extractor per round; paper: 5 to 20"""
    extractor_hidden: int = Field(8, ge=1, le=1024)
    """channels between the extractor's convolutions; code: 8"""


def extractor(params: PFedESParams, inputs: Inputs) -> "nn.Module":
    """Return G, from inputs (B, ...) to enhanced ones of the same shape.

    Images become non-negative, as in the authors' code. Signals are standardised, and half of their
    numbers are negative: their last convolution, over time, has no ReLU. Rows of a table get a
    linear map beside the identity, whatever ``extractor-hidden`` says.
    """
    if inputs.kind == TABLE:
        from fedhet.models.networks import Beside  # noqa: PLC0415  (torch)

        return Beside(inputs.channels)
    convolution, ends = (nn.Conv1d if inputs.kind == SIGNAL else nn.Conv2d), inputs.channels
    first = convolution(ends, params.extractor_hidden, 3, padding="same")
    last = convolution(params.extractor_hidden, ends, 3, padding="same")
    return nn.Sequential(first, nn.ReLU(), last, *([] if inputs.kind == SIGNAL else [nn.ReLU()]))


class PFedESStrategy(AveragingStrategy[PFedESParams]):
    """Averages extractors."""

    refuses = {
        TOKENS: "its extractor changes the values of an input, and word ids cannot be changed so"
    }

    def shared_module(self) -> "nn.Module":
        """Return G, freshly drawn."""
        return extractor(self.params, self.inputs)

"""FedRep (Collins et al. 2021, arXiv 2102.07078): a shared extractor, private headers.

Each way all parameters but the header's; needs one model for all: `models=cnn-5`. An epoch block
trains the extractor with the header frozen, the next one the header alone. Run it here with
`fedhet run quickstart method=fedrep:METHOD models=cnn-5`.
"""

from torch import nn

from fedhet.clients.averaging import AveragingClient
from fedhet.config.registry import Method
from fedhet.models.zoo import build_model
from fedhet.strategies.averaging import AveragingStrategy
from fedhet.training.loop import Phase


def extractor(model: nn.Module) -> nn.Module:
    """Everything but the header, as one module."""
    return nn.ModuleList(part for name, part in model.named_children() if name != "head")


class FedRepStrategy(AveragingStrategy):
    """Averages extractors, weighted by images."""

    def shared_module(self) -> nn.Module:
        """Return an extractor, freshly drawn."""
        (name,) = self.config.models
        return extractor(build_model(name, classes=self.classes, d=self.d, inputs=self.inputs))


class FedRepClient(AveragingClient):
    """Trains the extractor, then the header alone."""

    def shared(self) -> nn.Module:
        """Return the extractor, which crosses the wire."""
        return extractor(self.model)

    def phases(self) -> list[Phase]:
        """Two blocks of `local-epochs`."""
        lr, epochs, head = self.config.lr, self.config.local_epochs, self.model.head
        first = Phase(self.loss, [(self.model, lr)], epochs, frozen=[head])
        return [first, Phase(self.loss, [(head, lr)], epochs, name="header")]


METHOD = Method(FedRepStrategy, FedRepClient, "shared extractor; the header is trained alone")

"""pFedAFM on the client: two representations mixed entry by entry, trained in two steps.

The mixture of R_F = F_ex(x) and R_g = g(x) is alpha R_F + (1 - alpha) R_g, alpha (d,) in [0, 1],
1 at first. Step 1, with g frozen: F_k and alpha minimise CE(F_hd(mixture), y) for E epochs, alpha
clamped after every step. Step 2, with F_k and alpha frozen: g minimises CE(F_hd(R_g), y). Inference
is by the mixture, with the trained g.
"""

from typing import cast

import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient
from fedhet.clients.base import Needs
from fedhet.config.schema import REPRESENTATION
from fedhet.strategies.pfedafm import PFedAFMParams
from fedhet.training.loop import Phase


class Mixture(nn.Module):
    """Alpha (d,), and the mixture of two representations (B, d) that it weighs."""

    def __init__(self, d: int = REPRESENTATION) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(d))

    def forward(self, own: Tensor, shared: Tensor) -> Tensor:
        """Return the mixture alpha R_F + (1 - alpha) R_g."""
        return self.alpha * own + (1 - self.alpha) * shared

    @torch.no_grad()
    def clamp(self) -> None:
        """Keep alpha in [0, 1]."""
        self.alpha.clamp_(0.0, 1.0)


class PFedAFMClient(AveragingClient[PFedAFMParams]):
    """Shares the small extractor; keeps its own model and alpha."""

    shared_name = "extractor"

    def build(self) -> dict[str, nn.Module]:
        """Return F_k, g and alpha."""
        modules = super().build() | {"extractor": self.new_extractor()}
        return modules | {"mixture": Mixture(self.d)}

    @property
    def mixture(self) -> Mixture:
        """Alpha and the mixture."""
        return cast("Mixture", self.modules["mixture"])

    def phases(self) -> list[Phase]:
        """Return step 1, then step 2; each freezes what it does not train."""
        lr, epochs = self.config.lr, self.local_work
        own = [(self.model, lr), (self.mixture, self.params.lr_alpha)]
        return [
            Phase(self.loss, own, epochs, after_step=self.mixture.clamp),
            Phase(self.extractor_loss, [(self.shared(), lr)], epochs, name="extractor"),
        ]

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return step 1, for F_k and alpha."""
        with torch.no_grad():
            general = self.shared().features(inputs)
        mixed = self.mixture(self.model.features(inputs), general)
        return self.cross_entropy(self.model.head(mixed), labels)

    def extractor_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return step 2, for g."""
        return self.cross_entropy(self.model.head(self.shared().features(inputs)), labels)

    def infer(self, inputs: Tensor) -> Tensor:
        """Return the logits of the mixture."""
        own, general = self.model.features(inputs), self.shared().features(inputs)
        logits: Tensor = self.model.head(self.mixture(own, general))
        return logits

    def inference_needs(self) -> Needs:
        """Return both networks and alpha."""
        return Needs(("model", "extractor", "mixture"))

    def extra_metrics(self) -> dict[str, float]:
        """Return the mean of alpha: how much of the client's own representation it uses."""
        return {"alpha_mean": self.mixture.alpha.mean().item()}

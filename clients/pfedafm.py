"""pFedAFM on the client: two representations mixed entry by entry, trained in two steps.

The mixture of R_F = F_ex(x) and R_g = g(x) is alpha R_F + (1 - alpha) R_g, alpha (d,) in [0, 1],
1 at first. Step 1, with g frozen: F_k and alpha minimise CE(F_hd(mixture), y) for E epochs, alpha
clamped after every step. Step 2, with F_k and alpha frozen: g minimises CE(F_hd(R_g), y). Inference
is by the mixture, with the trained g.
"""

import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient, Mixture
from fedhet.strategies.pfedafm import PFedAFMParams
from fedhet.training.loop import Phase


class PFedAFMClient(AveragingClient[PFedAFMParams]):
    """Shares the small extractor; keeps its own model and alpha."""

    shared_name, shares_extractor = "extractor", True

    def build(self) -> dict[str, nn.Module]:
        """Return F_k, g and alpha."""
        return super().build() | {"mixture": Mixture("alpha", torch.ones(self.d))}

    def phases(self) -> list[Phase]:
        """Return step 1, then step 2; each freezes what it does not train."""
        lr, epochs = self.config.lr, self.local_work
        own = [(self.model, lr), (self.mixture, self.params.lr_alpha)]
        return [
            Phase(self.loss, own, epochs, after_step=self.mixture.clip),
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

    def extra_metrics(self) -> dict[str, float]:
        """Return the mean of alpha: how much of the client's own representation it uses."""
        return {"alpha_mean": self.mixture.share.mean().item()}

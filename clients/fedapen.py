"""FedAPEN on the client: an ensemble of a private and the shared model, with a learned weight.

After receiving theta, lambda minimises CE(lambda z_p + (1 - lambda) z_s, y) on held-out images,
both models frozen in evaluation mode; it is clipped to [0, 1] after every step. Then both models
train on the rest, sg being stop-gradient:
L_priv = CE(z_p, y) + KL(p_s || p_p) + CE(lambda z_p + (1 - lambda) sg(z_s), y),
L_sh = CE(z_s, y) + KL(p_p || p_s) + CE(lambda sg(z_p) + (1 - lambda) z_s, y).
Inference is the ensemble; logits are mixed, not probabilities.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient, Mixture
from fedhet.protocol.payload import Array
from fedhet.rng import generator
from fedhet.strategies.fedapen import FedAPENParams
from fedhet.training.loop import Phase, kl, schedule


def hold_out(labels: Array, share: float, rng: np.random.Generator) -> Array:
    """Return positions (H,) int64 of about ``share`` of every class, at least one image each.

    Empty if the share has fewer images than there are classes, or a class has one image only.
    """
    _, counts = np.unique(labels, return_counts=True)
    if int(share * len(labels)) < len(counts) or counts.min() < 2:
        return np.zeros(0, dtype=np.int64)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    taken = np.maximum(1, (share * counts).astype(np.int64))
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - np.repeat(starts, counts)
    held: Array = np.sort(order[rank < np.repeat(taken, counts)])
    return held


class FedAPENClient(AveragingClient[FedAPENParams]):
    """Shares one of its two models; keeps the other and lambda."""

    shared_name, mixture_name = "small", "ensemble"

    def build(self) -> dict[str, nn.Module]:
        """Return w_k, theta and lambda."""
        return super().build() | {"ensemble": Mixture("weight", torch.tensor(0.5))}

    def phases(self) -> list[Phase]:
        """Return two phases: lambda on held-out images, both models on the rest.

        Where the share is too small (see :func:`hold_out`) lambda stays 0.5 and all images train.
        Accuracies before training are those of the received theta with the new lambda, always.
        """
        labels = self.examples("train").labels
        rng = generator(self.config.seed, "holdout", self.setup.data.client)
        held = hold_out(labels.cpu().numpy(), self.params.holdout, rng)
        groups = [(module, self.config.lr) for module in (self.model, self.shared())]
        if not held.size:
            self.score_received()
            return [Phase(self.loss, groups, self.local_work)]
        rest = np.setdiff1d(np.arange(len(labels)), held)
        rate = self.params.lr_ensemble * schedule(self.config, self.round)
        learning = Phase(
            self.ensemble_loss, [(self.mixture, rate)], self.params.ensemble_epochs,
            images=torch.from_numpy(held).to(self.device), after_step=self.mixture.clip,
            after=self.score_received, name="ensemble", plain=True,
        )  # fmt: skip
        images = torch.from_numpy(rest).to(self.device)
        return [learning, Phase(self.loss, groups, self.local_work, images=images)]

    def ensemble_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the ensemble, for lambda alone."""
        with torch.no_grad():
            private, shared = self.model(inputs), self.shared()(inputs)
        return self.cross_entropy(self.mixture(private, shared), labels)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return L_priv + L_sh: every term reaches one model only."""
        private, shared = self.model(inputs), self.shared()(inputs)
        of_private = self.cross_entropy(private, labels) + kl(private, shared)
        mixed = self.mixture(private, shared.detach())
        of_private = of_private + self.cross_entropy(mixed, labels)
        of_shared = self.cross_entropy(shared, labels) + kl(shared, private)
        of_shared = of_shared + self.cross_entropy(self.mixture(private.detach(), shared), labels)
        return of_private + of_shared

    def infer(self, inputs: Tensor) -> Tensor:
        """Return the ensemble's logits."""
        logits: Tensor = self.mixture(self.model(inputs), self.shared()(inputs))
        return logits

    def extra_metrics(self) -> dict[str, float]:
        """Return lambda."""
        return {"ensemble_weight": self.mixture.share.item()}

"""FedMRL on the client: two models, one projector, nested representations, one step for all three.

R = G_ex(x) o F_ex(x), G first (eq. 2, 3); R~ = P_k(R) in R^d2 (eq. 4); the global header sees its
first d1 entries, the local header all of it (eq. 5 to 7); the losses are weighted and summed
(eq. 8, 9) and one gradient step moves G, F_k and P_k (eq. 10). Received G replaces the local one
every round; the trained one is kept as part of the client's inference model.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient
from fedhet.clients.base import Needs
from fedhet.strategies.fedmrl import FedMRLParams, global_model


class FedMRLClient(AveragingClient[FedMRLParams]):
    """Shares the small model; keeps its own model and the projector."""

    shared_name = "small"

    def build(self) -> dict[str, nn.Module]:
        """Return F_k, G and P_k."""
        return super().build() | {"projector": nn.Linear(self.params.d1 + self.d, self.d)}

    def new_shared(self) -> nn.Module:
        """Return G."""
        return global_model(self.config, self.inputs, self.params, self.classes)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return eq. 9: m^G l^G + m^F l^F."""
        fused = self.fuse(inputs)
        loss = self.params.m_local * self.cross_entropy(self.model.head(fused), labels)
        if self.params.matryoshka:
            loss = loss + self.params.m_global * self.cross_entropy(self.coarse(fused), labels)
        return loss

    def fuse(self, inputs: Tensor) -> Tensor:
        """Return eq. 3 and 4: R~ (B, d2) of the representations (B, d1) of G and (B, d2) of F_k."""
        spliced = [self.shared().features(inputs), self.model.features(inputs)]
        fused: Tensor = self.modules["projector"](torch.cat(spliced, dim=1))
        return fused

    def coarse(self, fused: Tensor) -> Tensor:
        """Return eq. 5 and 6: the global header's logits (B, C) of the first d1 entries."""
        logits: Tensor = self.shared().head(fused[:, : self.params.d1])
        return logits

    def infer(self, inputs: Tensor) -> Tensor:
        """Return the logits of the chosen inference model."""
        kind = self.params.inference
        logits: Tensor
        if kind.startswith("single"):
            logits = (self.shared() if kind == "single-small" else self.model)(inputs)
            return logits
        fused = self.fuse(inputs)
        logits = self.coarse(fused) if kind == "mix-small" else self.model.head(fused)
        return logits

    def inference_needs(self) -> Needs:
        """Return all but one header for a mixed model, a single model otherwise."""
        mixed = ("model", "small", "projector")
        return {
            "mix-large": Needs(mixed, without=("small.head",)),
            "mix-small": Needs(mixed, without=("model.head",)),
            "single-small": Needs(("small",)),
            "single-large": Needs(),
        }[self.params.inference]

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the chosen model's logits; with ``report-all-inference`` those of all, by name."""
        if not self.params.report_all_inference:
            return super().predict(inputs)
        fused = self.fuse(inputs)
        found = {"mix-large": self.model.head(fused), "single-large": self.model(inputs)}
        if self.params.matryoshka:
            found |= {"mix-small": self.coarse(fused), "single-small": self.shared()(inputs)}
        return {"": found[self.params.inference], **found}

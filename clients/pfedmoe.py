"""pFedMoE on the client: a gate mixes two representations of each sample; one step trains all."""

import math

import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient
from fedhet.data.inputs import TABLE, TOKENS, Inputs
from fedhet.strategies.pfedmoe import PFedMoEParams
from fedhet.training.loop import outputs_on


class Gate(nn.Module):
    """H_k: the weights (B, 2) of two experts, each sample's by itself; (.5, .5) at first."""

    def __init__(self, inputs: Inputs, d: int, hidden: int) -> None:
        super().__init__()
        self.reads_inputs = inputs.kind != TOKENS
        width = math.prod(inputs.shape) if self.reads_inputs else d
        plain = inputs.kind == TABLE  # whose columns are standardised already
        self.norm = nn.Identity() if plain else nn.LayerNorm(width, elementwise_affine=False)
        self.hidden = nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.Sigmoid())
        self.last = nn.Linear(hidden, 2)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, inputs: Tensor, general: Tensor) -> Tensor:
        """Return the weights for ``inputs`` (B, ...), of texts from R_g = ``general`` (B, d)."""
        x = inputs.flatten(1) if self.reads_inputs else general.detach()
        weights: Tensor = self.last(self.hidden(self.norm(x))).softmax(dim=1)
        return weights


class PFedMoEClient(AveragingClient[PFedMoEParams]):
    """Shares the small extractor; keeps its own model and the gate."""

    shared_name, shares_extractor = "extractor", True

    def build(self) -> dict[str, nn.Module]:
        """Return F_k, g and H_k."""
        return super().build() | {"gate": Gate(self.inputs, self.d, self.params.gate_hidden)}

    def learning_rates(self) -> dict[str, float]:
        """Return the rates of all three, which train at once."""
        lr, params = self.config.lr, self.params
        return {"model": lr, "extractor": params.lr_proxy or lr, "gate": params.lr_gate or lr}

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return CE of the mixture."""
        return self.cross_entropy(self.infer(inputs), labels)

    def infer(self, inputs: Tensor) -> Tensor:
        """Return the header's logits of the mixture."""
        general = self.shared().features(inputs)
        weights = self.modules["gate"](inputs, general)
        mixed = weights[:, :1] * general + weights[:, 1:] * self.model.features(inputs)
        logits: Tensor = self.model.head(mixed)
        return logits

    def extra_metrics(self) -> dict[str, float]:
        """Return mean and deviation of the shared expert's weight over the test split.

        A mean near 0 says that the client answers alone, at the cost of two networks.
        """
        data = self.examples("test")
        if not len(data):
            return {}

        gate, features = self.modules["gate"], self.shared().features
        weights = outputs_on(lambda inputs: gate(inputs, features(inputs)), data, self.config)
        shares = weights[:, 0].double()
        deviation = torch.std(shares, correction=0)
        return {"gate_global_mean": shares.mean().item(), "gate_global_std": deviation.item()}

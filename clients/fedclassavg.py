"""FedClassAvg on the client: two views, cross-entropy, contrastive and proximal term."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedhet.clients.averaging import AveragingClient
from fedhet.data.preparation import two_views
from fedhet.protocol.payload import Payload
from fedhet.strategies.fedclassavg import FedClassAvgParams
from fedhet.training.loop import Phase


def contrastive(features: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Return SupCon (Khosla et al. 2020, L_out) of M features (M, d) with labels (M,), a scalar.

    Mean over anchors a of the mean over a's positives p, the others of its label, of
    -log(exp(f_a.f_p / tau) / sum_{b != a} exp(f_a.f_b / tau)). Every label must occur at least
    twice, as it does with two views of every image.
    """
    scores = (features @ features.T).float() / tau
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    others = scores.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    positive = (labels[:, None] == labels) & ~itself
    return ((others - scores) * positive).sum(dim=1).div(positive.sum(dim=1)).mean()


class FedClassAvgClient(AveragingClient[FedClassAvgParams]):
    """Shares the header of its own model."""

    shares_model = False

    def receive(self, payload: Payload) -> None:
        """Overwrite the header and remember it for the proximal term."""
        super().receive(payload)
        self.received = [p.detach().clone() for p in self.shared().parameters()]

    def phases(self) -> list[Phase]:
        """Return one phase; its views come from a generator of this client and round."""
        self.draws = self.torch_generator("views")
        return super().phases()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the three terms."""
        features = self.model.features(two_views(inputs, self.draws, self.inputs.kind))
        first = self.model.head(features[: len(labels)])
        twice = torch.cat([labels, labels])
        contrast = contrastive(F.normalize(features.float()), twice, self.params.tau)
        pairs = zip(self.shared().parameters(), self.received, strict=True)
        away = torch.stack([(now - before).square().sum() for now, before in pairs]).sum()
        return self.cross_entropy(first, labels) + contrast + self.params.rho / 2 * away

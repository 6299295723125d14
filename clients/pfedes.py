"""pFedES on the client: train the model on images and enhanced images, then the extractor.

Step 1 (eq. 3 to 6): with G frozen, F_k minimises mu CE(F_k(G(x)), y) + (1 - mu) CE(F_k(x), y) for
E epochs; BatchNorm's running statistics, which inference uses, come from the raw images alone.
Step 2 (eq. 7 to 9): with F_k frozen, its BatchNorm in evaluation mode, G minimises CE(F_k(G(x)), y)
for E_fe epochs. Inference is F_k alone on raw images.
"""

import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient
from fedhet.data.inputs import IMAGE
from fedhet.models.networks import still_statistics
from fedhet.strategies.pfedes import PFedESParams, extractor
from fedhet.training.loop import Phase


class PFedESClient(AveragingClient[PFedESParams]):
    """Shares the extractor that stands before its model in training."""

    shared_name = "extractor"

    def new_shared(self) -> nn.Module:
        """Return G."""
        return extractor(self.params, self.inputs)

    def phases(self) -> list[Phase]:
        """Return step 1, then step 2; each freezes what it does not train."""
        lr, epochs = self.config.lr, self.params.extractor_epochs
        return [
            Phase(self.loss, [(self.model, lr)], self.local_work),
            Phase(self.extractor_loss, [(self.shared(), lr)], epochs, name="extractor"),
        ]

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return eq. 5, for F_k: enhanced images with weight mu, raw ones with 1 - mu."""
        with torch.no_grad():
            enhanced = self.shared()(inputs)
        mu = self.params.mu
        with still_statistics(self.model):  # inference is on raw images: so are its statistics
            on_enhanced = self.cross_entropy(self.model(enhanced), labels)
        return mu * on_enhanced + (1 - mu) * self.cross_entropy(self.model(inputs), labels)

    def extractor_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return eq. 8, for G."""
        if self.inputs.kind == IMAGE:
            return self.cross_entropy(self.model(self.shared()(inputs)), labels)
        # cuDNN's recurrent layers have no backward in evaluation mode, which F_k is in here.
        with torch.backends.cudnn.flags(enabled=False):
            return self.cross_entropy(self.model(self.shared()(inputs)), labels)

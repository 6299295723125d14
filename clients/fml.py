"""FML on the client: the local model and the received meme model teach each other, batch by batch.

L_local = alpha CE(z_l, y) + (1 - alpha) KL(p_m || p_l) and L_meme = beta CE(z_m, y) + (1 - beta)
KL(p_l || p_m), both teachers detached: the sum of the two has the gradients of each. Inference is
the local model.
"""

from torch import Tensor

from fedhet.clients.averaging import AveragingClient
from fedhet.strategies.fml import FMLParams
from fedhet.training.loop import kl


class FMLClient(AveragingClient[FMLParams]):
    """Shares the meme model."""

    shared_name = "meme"

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return L_local + L_meme."""
        local, meme = self.model(inputs), self.shared()(inputs)
        alpha, beta = self.params.alpha_local, self.params.beta_meme
        of_local = alpha * self.cross_entropy(local, labels) + (1 - alpha) * kl(local, meme)
        of_meme = beta * self.cross_entropy(meme, labels) + (1 - beta) * kl(meme, local)
        return of_local + of_meme

"""FedKD on the client: mentor and student teach each other; the student's update goes up."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient, get_parameters, set_parameters
from fedhet.errors import Refused
from fedhet.protocol.payload import LowRank, Payload
from fedhet.strategies.fedkd import WHOLE, FedKDParams, apply, blanks, compress, update_norm, whole
from fedhet.training.loop import kl

SMALLEST = 1e-3  # of n: where both networks are certain, 1 / n would let L_h explode


class FedKDClient(AveragingClient[FedKDParams]):
    """Trains three modules at once; predicts with the mentor, ``model``."""

    download_type = LowRank
    shared_name = "student"

    def build(self) -> dict[str, nn.Module]:
        """Return mentor, student, W_h; with ``compress-down`` the student received last."""
        modules = super().build() | {"projector": nn.Linear(self.d, self.d, bias=False)}
        if self.params.compress_down:
            modules["received"] = self.new_shared().requires_grad_(False)
        return modules

    def expect_download(self, came: LowRank) -> Payload | None:
        """Return the student, or with ``compress-down`` an update, whose ranks fix its shapes."""
        student = get_parameters(self.shared())
        if (came.ranks == WHOLE).all():
            return whole(student)
        if not self.params.compress_down:
            raise Refused("an update came, not the student: its ranks say so")
        return LowRank(came.ranks, tuple(blanks(came.ranks, [array.shape for array in student])))

    def check_download(self, payload: LowRank) -> None:
        """Bound the norm of an update."""
        if not (payload.ranks == WHOLE).all():
            shapes = [array.shape for array in get_parameters(self.shared())]
            self.setup.limits.check("max_download_norm", update_norm(payload, shapes))

    def receive(self, payload: LowRank) -> None:
        """Take the student itself, or the update of the one received before."""
        held = self.modules.get("received", self.shared())
        self.received = apply(payload, get_parameters(held))
        set_parameters(self.shared(), self.received)
        set_parameters(held, self.received)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return L_t + L_s with L_h once: each network gets the gradient of its own loss."""
        hidden_t, hidden_s = self.model.features(inputs), self.shared().features(inputs)
        logits_t, logits_s = self.model.head(hidden_t), self.shared().head(hidden_s)
        certain = self.cross_entropy(logits_t, labels) + self.cross_entropy(logits_s, labels)
        align = F.mse_loss(self.modules["projector"](hidden_s), hidden_t)
        taught = kl(logits_t, logits_s) + kl(logits_s, logits_t) + align
        return certain + taught / certain.detach().clamp(min=SMALLEST)

    def upload(self) -> Payload:
        """Return the student after training minus as received, compressed."""
        pairs = zip(get_parameters(self.shared()), self.received, strict=True)
        share = self.params.share(self.round, self.config.rounds)
        return compress([after - before for after, before in pairs], share)

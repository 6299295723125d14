"""FedSSA on the client: fuse global and local header rows (eq. 4, 5), train, send seen rows.

theta_hat_k^{t,s} = theta^{t-1,s} + mu^t theta_k^{t-1,s} for s in S_k; unseen rows stay as they are.
The papers' t is the message round minus one, so that mu_0 acts in the first round.
"""

import math
from typing import Any

import numpy as np
import torch

from fedhet.clients.averaging import get_parameters
from fedhet.clients.base import MethodClient
from fedhet.errors import Refused, RunFailed
from fedhet.protocol.payload import HeaderRows, Payload, blank
from fedhet.strategies.fedssa import FedSSAParams


def stabilisation(params: FedSSAParams, round_: int) -> float:
    """Return mu^t of eq. 4 for message round r = t + 1: mu_0 cos(pi t / (2 T_stable)), then 0."""
    t = round_ - 1
    if not params.stabilise or t >= params.t_stable:
        return 0.0
    return params.mu0 * math.cos(math.pi * t / (2 * params.t_stable))


class FedSSAClient(MethodClient[FedSSAParams]):
    """Exchanges header rows of seen classes."""

    caches_frozen = True
    shares_model = False
    download_type = HeaderRows

    def expect_download(self, came: Any) -> Payload | None:
        """Return rows of exactly the classes that come, each once, ascending."""
        whole = self.params.download_rows == "whole" or self.sent_all
        ids = np.arange(self.classes) if whole else self.seen()
        if not np.array_equal(came.classes, ids):
            raise Refused(f"rows of {came.classes.size} classes, but not of {ids.tolist()}")
        return HeaderRows(ids, blank((len(ids), self.d)), blank((len(ids),)))

    def receive(self, payload: HeaderRows) -> None:
        """Apply eq. 4 to seen rows; ``download-rows: whole`` overwrites unseen rows.

        In a sum, rows of classes with too few owners stay: the global ones are what was drawn.
        """
        mu = stabilisation(self.params, self.round)
        scale = 1.0 + mu if self.params.fusion == "convex" else 1.0
        fused = used = np.isin(payload.classes, self.seen())
        if self.params.download_rows == "whole":
            used = np.ones_like(fused)
        if self.shared_classes is not None:
            used = used & np.isin(payload.classes, sorted(self.shared_classes))
        ids, mixed = payload.classes[used], torch.as_tensor(fused[used]).to(self.device)
        arrays = payload.weight, payload.bias
        with torch.no_grad():
            for local, array in zip(self.model.head.parameters(), arrays, strict=True):
                new = torch.as_tensor(array[used]).to(self.device)
                both = (new + mu * local[ids]) / scale
                local[ids] = torch.where(mixed.view(-1, *[1] * (new.dim() - 1)), both, new)

    def upload(self) -> Payload:
        """Return rows of the seen classes after training, or the whole header."""
        weight, bias = get_parameters(self.model.head)
        if not np.isfinite(weight).all():
            why = "fusion=paper multiplies it by 1 + mu every round"
            advice = "use fusion=convex, a smaller t-stable or a smaller lr"
            raise RunFailed(f"the header is not finite after training; {why}: {advice}")
        whole = self.params.upload_rows == "whole"
        ids = np.arange(self.classes, dtype=np.int64) if whole else self.seen()
        return HeaderRows(ids, weight[ids], bias[ids])

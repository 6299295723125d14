"""FedL2G (Zhang et al. 2024, arXiv 2410.06490): "learning to guide".

The server keeps one guiding vector per class, G (C, w), drawn once: w = C for ``guide: logits``, d
for ``guide: features``. Down: all of G, C w floats (100 of logits at ten classes, 5,000 of features
at d = 500). A client trains on CE + MSE(its own output, G_y), and then sends how G should move for
the step that it causes to help on a *quiz* set, which is never trained on:

    theta'(G) = theta - lr grad_theta (CE + MSE(o(x), G_y))   on a study batch, in a copy
    up: d CE(theta'(G); quiz) / d G_s for the classes s that the client has seen, |S_k| w floats

Rows of seen classes that were not in the study batch are zero and marked so; a row's norm is at
most 100, and others are refused, since honest ones differ by a factor of 1e5 between architectures
and no multiple of their median tells a liar. The server averages, per class, over the clients that
had it, and steps by ``server-lr`` (``FedL2GStrategy.aggregate``). In the first ``warm-up`` rounds
clients do the second part alone.

``theta'`` is linear in G, so that the gradient needs no second derivative of CE: with
v = grad CE(theta'; quiz) it is, for class c, 2 lr / (n w) times the sum over the study images of c
of J_i v, J_i being the Jacobian of the output of image i at theta. That is exact, not an
approximation (the paper's first-order form; ``quiz_loss`` in ``clients/fedl2g.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params
from fedhet.errors import Rejected
from fedhet.lazy import torch
from fedhet.protocol.checks import check_declared
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ClassVectors, Payload
from fedhet.rng import torch_seeded
from fedhet.strategies.averaging import sum_by_class
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import ClassVectorStrategy, declared

LARGEST = 100.0  # norm of a class's gradient, as in the authors' code
ROUNDING = 1.0001


class FedL2GParams(Params):
    """Hyper-parameters of FedL2G."""

    guide: Literal["logits", "features"] = "logits"
    """what is guided: the classifier's outputs, or the representations"""
    server_lr: float = Field(0.0, ge=0)
    """learning rate of the guiding vectors; 0: 0.1 for logits, 100 for features, as in the
    authors' commands"""
    study_batches: int = Field(1, ge=1, le=1000)
    """batches whose step is looked at in a round, >= 1"""
    quiz_batches: int = Field(1, ge=1, le=1000)
    """size of the quiz set in batches, never trained on; at most a quarter of the client's
    training examples"""
    warm_up: int = Field(0, ge=0, description="first rounds in which no model trains; authors: 50")


RATES = {"logits": 0.1, "features": 100.0}  # of the vectors, where no other is given


def width_of(params: FedL2GParams, classes: int, d: int) -> int:
    """Return w, floats of a guiding vector."""
    return classes if params.guide == "logits" else d


class FedL2GStrategy(ClassVectorStrategy[FedL2GParams]):
    """Moves the guiding vectors by the clients' gradients."""

    broadcasts = True
    state = ("guides",)  # G (C, w)
    not_summed = "a sum may hold one client's gradient of a class alone; use method=fedproto"
    bounded = False  # gradients have no common size: see `check`

    @property
    def width(self) -> int:
        """C or d."""
        return width_of(self.params, self.classes, self.d)

    def initialise(self) -> None:
        """Draw G from the run's "global" generator, standard normal."""
        with torch_seeded(self.config.seed, "global"):
            self.guides: Array = torch.randn(self.classes, self.width).numpy()

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return all of G."""
        every = np.arange(self.classes, dtype=np.int64)
        return ClassVectors(every, np.ones(self.classes, dtype=np.int64), self.guides)

    def check(self, info: ClientInfo, payload: ClassVectors) -> None:
        """Check for the declared classes, each with or without a gradient."""
        check_declared("gradients of classes", payload.classes, declared(info)[0])
        if not np.isin(payload.counts, (0, 1)).all():
            raise Rejected("the mark of a gradient must be 0 or 1")
        longest = float(np.linalg.norm(payload.vectors.astype(np.float64), axis=1).max(initial=0.0))
        if longest > LARGEST * ROUNDING and not self.config.dp_clip:  # noise has no such bound
            raise Rejected(f"a gradient of norm {longest:.4g} is above {LARGEST:g}")

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Make one SGD step by the mean gradient per class over its owners."""
        payloads = [upload.payload for upload in uploads]
        sums = sum_by_class(payloads, [one.counts for one in payloads], self.classes)
        means = sums.means(np.zeros_like(self.guides)).astype(np.float64)
        step = (self.params.server_lr or RATES[self.params.guide]) * means
        self.guides = (self.guides.astype(np.float64) - step).astype(np.float32)
        longest = float(np.linalg.norm(step, axis=1).max())
        return {"guided_classes": float(sums.present.sum()), "guide_step": longest}

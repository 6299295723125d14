"""FD on the client: cross-entropy with the labels and with the other owners' mean outputs.

With ``secure-sum`` the sums of all owners come, and the client takes its own part out of those
that it is in: it keeps what it added last, and what it added to the sum of each class that it has
been sent.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedhet.clients.base import Setup
from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.errors import Refused
from fedhet.protocol.handshake import EXACT
from fedhet.protocol.payload import Array, ClassTotals, ClassVectors, Payload, blank
from fedhet.strategies.fd import FDParams, mean_of_others
from fedhet.sums.contribution import Vector


class FDClient(ClassVectorClient[FDParams]):
    """Sends mean softmax outputs."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if self.sent_all:
            self.download_type = ClassTotals

    def initial_tensors(self) -> dict[str, Tensor]:
        """With ``secure-sum``: return zeros, as nothing was added to a sum yet."""
        if not self.sent_all:
            return {}
        vectors = torch.zeros(self.classes, self.classes)
        return {
            "added": vectors,
            "added_round": torch.zeros(1, dtype=torch.int64),
            "inside": vectors.clone(),
            "inside_rounds": torch.zeros(self.classes, dtype=torch.int64),
        }

    def sent_classes(self) -> Array:
        """Return the ids of its own classes."""
        own: Array = self.seen().numpy()
        return own

    def sent_width(self) -> int:
        """Return C probabilities."""
        return self.classes

    def expect_download(self, came: Payload) -> Payload | None:
        """Return sums of all classes, or what :class:`ClassVectorClient` says."""
        if not isinstance(came, ClassTotals):
            return super().expect_download(came)
        ids = blank((self.classes,), np.int64)
        return ClassTotals(ids, ids, blank((self.classes, self.classes)))

    def check_download(self, payload: Payload) -> None:
        """Check that vectors are probabilities; sums are bounded later."""
        super().check_download(payload)
        if isinstance(payload, ClassVectors) and (
            ((payload.vectors < 0) | (payload.vectors > 1)).any()
        ):
            raise Refused("a vector has entries outside 0 to 1, which are not probabilities")
        if isinstance(payload, ClassTotals):
            for what, numbers, most in (
                ("owners", payload.owners, EXACT), ("rounds", payload.rounds, self.round),
            ):  # fmt: skip
                if not ((numbers >= 0) & (numbers < most)).all():
                    raise Refused(f"{what} of a class must be 0 to {most - 1}")

    def receive(self, payload: Payload) -> None:
        """Receive the means of the other owners of its classes."""
        super().receive(self._without_own(payload) if self.sent_all else payload)

    def _without_own(self, payload: Payload) -> ClassVectors:
        """Return the sums of its own classes without its own part, as means over the others."""
        assert isinstance(payload, ClassTotals)
        kept = {name: tensor.cpu().numpy() for name, tensor in self.tensors.items()}
        rounds, inside, inside_rounds = payload.rounds, kept["inside"], kept["inside_rounds"]
        latest = (rounds > 0) & (rounds == kept["added_round"])
        inside = np.where(latest[:, None], kept["added"], inside)
        inside_rounds = np.where(latest, rounds, inside_rounds)
        self.tensors["inside"] = torch.as_tensor(inside).to(self.device)
        self.tensors["inside_rounds"] = torch.as_tensor(inside_rounds).to(self.device)
        own = self.seen().numpy()
        within = (rounds > 0) & (rounds == inside_rounds)
        sums = payload.vectors.astype(np.float64) - np.where(within[:, None], inside, 0.0)
        others = payload.owners - within
        sent = own[others[own] > 0]
        return ClassVectors(sent, others[sent], mean_of_others(sums[sent], others[sent]))

    def added(self, vector: Vector) -> None:
        """Keep the rows, to subtract them from the sum that contains them."""
        rows = vector[: self.classes**2].reshape(self.classes, -1)
        self.tensors["added"] = torch.as_tensor(rows, dtype=torch.float32).to(self.device)
        self.tensors["added_round"] = torch.tensor([self.round], device=self.device)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return probabilities (B, C)."""
        return F.softmax(self.model(inputs).float(), dim=1)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return CE(y, p) + gamma CE(F^_k,y, p); a class without target has a zero row."""
        logits = self.model(inputs)
        soft = self.cross_entropy(logits, labels, self.vectors[labels])
        return self.cross_entropy(logits, labels) + self.params.gamma * soft

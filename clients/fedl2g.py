"""FedL2G on the client: follow the guiding vectors, then compute how they should move.

The formulas stand in ``strategies/fedl2g.py``. The gradient to G has a phase of its own, which
moves nothing. Inference is the model alone.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.models.networks import SplitModel
from fedhet.protocol.payload import ClassVectors, Payload
from fedhet.rng import generator
from fedhet.strategies.fedl2g import LARGEST, FedL2GParams, width_of
from fedhet.training.loop import Phase, batches, schedule


class Guided(nn.Module):
    """A model that answers with what is guided (B, w), its logits or features, and with logits."""

    def __init__(self, model: SplitModel, guide: str) -> None:
        super().__init__()
        self.model, self.guide = model, guide

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both."""
        features = self.model.features(inputs)
        logits = self.model.head(features)
        return (logits if self.guide == "logits" else features), logits


class FedL2GClient(ClassVectorClient[FedL2GParams]):
    """Receives guiding vectors, sends how they should move."""

    def sent_width(self) -> int:
        """Return C or d."""
        return width_of(self.params, self.classes, self.d)

    def receive(self, payload: Payload) -> None:
        """Take G of this round; no gradient is known yet."""
        super().receive(payload)
        self.guides = nn.ParameterList([self.vectors])
        self.gradient = torch.zeros_like(self.vectors)

    def phases(self) -> list[Phase]:
        """Return training on the study set, after warm-up, and the quiz, which moves nothing.

        A client with fewer than eight training examples has no quiz set, since BatchNorm needs two
        examples. It sends rows of zeros, marked as not studied, which count as traffic.
        """
        # BatchNorm uses the batch's statistics in both steps of the quiz, and moves no running one.
        # Study batches are cut from the picked examples as training batches are.
        count, size = len(self.examples("train")), self.config.batch_size
        client = self.setup.data.client
        order = generator(self.config.seed, "quiz", client).permutation(count)
        quarter = count // 4
        held = min(self.params.quiz_batches * size, quarter) if quarter > 1 else 0
        study = torch.from_numpy(np.sort(order[held:])).to(self.device)
        training = []
        if self.round > self.params.warm_up:
            groups = [(self.model, self.config.lr)]
            training.append(Phase(self.loss, groups, self.local_work, images=study))
        if not held:
            return training
        self.quiz = torch.from_numpy(np.sort(order[:held])).to(self.device)
        shown = min(self.params.study_batches * size, len(study))
        drawn = generator(self.config.seed, "study", client, self.round)
        picked = torch.from_numpy(drawn.permutation(len(study))[:shown]).to(self.device)
        self.pieces = sum(1 for _ in batches(picked, size))
        quiz = Phase(
            self.quiz_loss, [(self.guides, 0.0)], 1, images=study[picked], name="guide", plain=True,
        )  # fmt: skip
        return [*training, quiz]

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return CE + MSE to the guiding vectors of the labels."""
        return self._study(Guided(self.model, self.params.guide)(inputs), labels)

    def _study(self, answers: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        guided, logits = answers
        pull = F.mse_loss(guided.float(), self.vectors[labels])
        return self.cross_entropy(logits, labels) + pull

    def quiz_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the quiz's CE after a guided step, with the gradient put in by hand."""
        both = Guided(self.model, self.params.guide).train()
        for layer in self._fixed.layers:
            layer.training = False
        # Fused recurrent layers and attention have no second derivative.
        without, mkldnn = torch.backends.cudnn.flags(enabled=False), torch.backends.mkldnn
        with without, mkldnn.flags(False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH):
            value = self._answer_quiz(both, inputs, labels)
        self.gradient += self.latest / self.pieces  # the mean over the study batches
        both.eval()
        pull: Tensor = (self.guides[0] * self.latest).sum()
        return value + pull - pull.detach()

    def _answer_quiz(self, both: Guided, study: Tensor, labels: Tensor) -> Tensor:
        """Return the quiz's loss after a guided step; ``latest`` is its gradient to the guides."""

        def answer(values: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
            buffers = {name: b.clone() for name, b in both.named_buffers()}
            answers: tuple[Tensor, Tensor] = functional_call(both, {**values, **buffers}, (x,))
            return answers

        frozen, lr = set(self._fixed.parameters), self.config.lr * schedule(self.config, self.round)
        free = {name: p.detach() for name, p in both.named_parameters() if p not in frozen}
        at = {name: weight.requires_grad_() for name, weight in free.items()}
        slopes_of = partial(torch.autograd.grad, inputs=list(at.values()), allow_unused=True)
        output, logits = answer(at, study)
        slopes = slopes_of(self._study((output, logits), labels), retain_graph=True)
        moved = {
            name: (w.detach() if slope is None else w.detach() - lr * slope).requires_grad_()
            for (name, w), slope in zip(at.items(), slopes, strict=True)
        }
        quiz, answers = self.examples("train").batch(self.quiz)
        quizzed = self.cross_entropy(answer(moved, quiz)[1], answers)
        towards = torch.autograd.grad(quizzed, list(moved.values()), allow_unused=True)
        # J v without forward mode: J^T u is linear in u, and its derivative by u along v is J v.
        # Both are gradients of sums: for given gradients torch imports its compiler, a second.
        u = torch.zeros_like(output, requires_grad=True)
        pairs = zip(slopes_of((output * u).sum(), create_graph=True), towards, strict=True)
        terms = [(b * v).sum() for b, v in pairs if b is not None and v is not None]
        (along,) = torch.autograd.grad(torch.stack(terms).sum(), u)
        along = along.to(self.vectors.dtype) * (2 * lr / output.numel())
        self.latest = torch.zeros_like(self.vectors).index_add_(0, labels, along)
        return quizzed.detach()

    def upload(self) -> Payload:
        """Return the gradients of seen classes, clipped, marked by whether they were studied."""
        seen = self.seen()
        own = self.gradient.cpu()[seen].float()
        rows = own * (LARGEST / own.norm(dim=1, keepdim=True).clamp(min=LARGEST))
        return ClassVectors(seen, own.any(dim=1).to(torch.int64).numpy(), rows.numpy())

"""The one training loop and the one evaluation loop.

Examples stay on the device as they are stored, images as uint8; a batch is an index and its
preparation, without a data loader. The host waits for the device once per epoch at most, never per
batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedhet.config.schema import RunConfig
from fedhet.data.preparation import normalise
from fedhet.errors import UserError
from fedhet.training.optimisers import make_optimiser
from fedhet.training.steps import WORTH_IT, EagerStep, GraphStep

Loss = Callable[[Tensor, Tensor], Tensor]

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Examples:
    """Examples (n, ...) as they are stored and labels (n,) int64 on one device.

    ``prepare`` makes a model's inputs of a batch of them; by default they are images (n, s, s, 3)
    uint8. ``augment`` maps a batch as it is stored to another draw of it, of the same shape, and
    ``perturb`` does so with a prepared one.
    """

    examples: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor] = normalise
    augment: Callable[[Tensor], Tensor] | None = None
    perturb: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) for a model, images (B, 3, s, s) in [-1, 1], and labels (B,)."""
        examples = self.examples[index]
        if self.augment is not None:
            examples = self.augment(examples)
        inputs = self.prepare(examples)
        if self.perturb is not None:
            inputs = self.perturb(inputs)
        return inputs, self.labels[index]


class Steps(int):
    """A number of steps, where epochs are expected: their batches go on from epoch to epoch."""


@dataclass(frozen=True)
class Phase:
    """One stretch of local training: what is minimised, what moves, for how long.

    ``groups`` are the trained modules, or parts of them, with their learning rates; ``frozen`` are
    parts of those that stay as they are. Everything else of the client is frozen, too (no
    gradients, evaluation mode). ``images`` restricts training to those positions of the train
    split; with ``data``, which is trained on in place of the client's own examples and as it is,
    positions in that. ``plain`` is for fitting a number to frozen networks: SGD without momentum
    and weight decay, whatever ``optimizer`` says, at the rate given, on images as they are.
    ``after_step`` runs after every step, on tensors only; ``after`` once at the end. The mean loss
    of the last epoch (of all :class:`Steps`) is recorded as ``train_loss`` or
    ``train_loss_<name>``. ``generators`` are those that the loss draws from (a CUDA graph must know
    them).
    """

    loss: Loss
    groups: Sequence[tuple[nn.Module, float]]
    epochs: int  # or Steps
    images: Tensor | None = None
    after_step: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    name: str = ""
    plain: bool = False
    generators: Sequence[torch.Generator] = ()
    frozen: Sequence[nn.Module] = ()
    data: Examples | None = None

    def scalar(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch; UserError if nothing that this phase trains is in it."""
        loss = self.loss(inputs, labels)
        if not loss.requires_grad:
            raise UserError(
                f"phase '{self.name}': its loss has no gradient: see `phases`, and `no_grad` or "
                "`detach` in `loss`",
                "method",
            )
        return loss


def batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Pieces of ``size``; a last piece of one image joins the piece before it (BatchNorm)."""
    count = len(order)
    stops = list(range(size, count, size))
    if stops and count - stops[-1] == 1:
        stops.pop()
    yield from torch.tensor_split(order, stops)


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """bf16 autocast where ``precision: bf16`` asks for it, otherwise nothing."""
    return torch.autocast(
        device.type,
        torch.bfloat16,
        enabled=config.precision == "bf16",
        cache_enabled=device.type == "cpu",
    )


class Fixed:
    """What a model's own factory froze: parameters without gradients, layers in evaluation mode.

    Taken right after the modules are built, since training switches both on and off.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        given = list(modules)
        self.parameters = [p for m in given for p in m.parameters() if not p.requires_grad]
        self.layers = [layer for m in given for layer in m.modules() if not layer.training]


def set_trainable(modules: Sequence[nn.Module], phase: Phase, fixed: Fixed) -> None:
    """Train mode and gradients for what the phase trains, evaluation mode and none for the rest."""
    switches = [*((m, False) for m in modules), *((m, True) for m, _ in phase.groups)]
    for module, active in (*switches, *((part, False) for part in phase.frozen)):
        module.train(active)
        module.requires_grad_(active)
    for layer in fixed.layers:
        layer.training = False
    for parameter in fixed.parameters:
        parameter.requires_grad = False


def train(
    phase: Phase, data: Examples, config: RunConfig, generator: np.random.Generator, round_: int
) -> Tensor:
    """Run one phase of a round; returns the mean loss of its last epoch, a scalar on the device."""
    data = data if phase.data is None else phase.data
    device = data.labels.device
    data = replace(data, augment=None, perturb=None) if phase.plain else data
    chosen = torch.arange(len(data), device=device) if phase.images is None else phase.images
    step = _make_step(phase, config, round_, len(chosen), device)
    total = torch.zeros((), device=device)
    steps = phase.epochs if isinstance(phase.epochs, Steps) else None
    taken = images = 0
    for _ in range(phase.epochs):
        if taken == steps:
            break
        order = torch.from_numpy(generator.permutation(len(chosen))).to(device)
        if steps is None:
            total.zero_()
            images = 0
        for index in batches(chosen[order], config.batch_size):
            if taken == steps:
                break
            total += step(*data.batch(index)) * len(index)
            images, taken = images + len(index), taken + 1
    step.clear()
    return total / max(1, images)


def images_in(phase: Phase, count: int, size: int) -> int:
    """How many examples the steps of a phase on ``count`` examples see, in batches of ``size``."""
    if not isinstance(phase.epochs, Steps):
        return count * phase.epochs
    sizes = [len(index) for index in batches(torch.arange(count), size)]
    epochs, rest = divmod(phase.epochs, len(sizes))
    return epochs * count + sum(sizes[:rest])


def _make_step(
    phase: Phase, config: RunConfig, round_: int, images: int, device: torch.device
) -> EagerStep:
    """The step of a phase with a fresh optimiser; a CUDA graph where there are steps enough."""
    groups = [([p for p in m.parameters() if p.requires_grad], lr) for m, lr in phase.groups]
    checked = False
    optimiser = make_optimiser(groups, config, round_, plain=phase.plain)

    def body(inputs: Tensor, labels: Tensor) -> Tensor:
        nonlocal checked
        with autocast(config, device):
            loss = phase.scalar(inputs, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if not checked:
            _check_gradients(phase)
            checked = True
        for parameters, _ in optimiser.groups if config.grad_clip else ():
            nn.utils.clip_grad_norm_(parameters, config.grad_clip)
        optimiser.step()
        if phase.after_step is not None:
            phase.after_step()
        return loss.detach()

    epochs = phase.epochs
    steps = epochs if isinstance(epochs, Steps) else epochs * (images // config.batch_size)
    if device.type == "cuda" and steps >= WORTH_IT:
        return GraphStep(body, optimiser.clear, config.batch_size, list(phase.generators))
    return EagerStep(body, optimiser.clear)


def _check_gradients(phase: Phase) -> None:
    """UserError for a group that would not move: nothing in it takes part in the loss."""
    for number, (module, _) in enumerate(phase.groups):
        if all(parameter.grad is None for parameter in module.parameters()):
            raise UserError(
                f"phase '{phase.name}': nothing in its group {number} ({type(module).__name__}) "
                "has a gradient: it is frozen, or `loss` does not use it; see `phases`",
                "method",
            )


def _stops(count: int) -> list[int]:
    return list(range(EVALUATION_BATCH, count, EVALUATION_BATCH))


@torch.inference_mode()
def outputs_on(outputs: Callable[[Tensor], Tensor], data: Examples, config: RunConfig) -> Tensor:
    """Outputs (n, w) float32 on all of ``data``, of a function of inputs (B, 3, s, s)."""
    device, found = data.labels.device, []
    for index in torch.arange(len(data), device=device).tensor_split(_stops(len(data))):
        with autocast(config, device):
            found.append(outputs(data.batch(index)[0]).float())
    return torch.cat(found)


@torch.inference_mode()
def class_means(
    outputs: Callable[[Tensor], Tensor], data: Examples, config: RunConfig, classes: int
) -> tuple[Tensor, Tensor]:
    """Mean output vector of every class: means (C, w) float32, images behind each (C,) int64.

    ``outputs`` maps inputs (B, 3, s, s) to vectors (B, w); rows of absent classes are zero.
    """
    device = data.labels.device
    ones = torch.ones_like(data.labels)
    counts = torch.zeros(classes, dtype=ones.dtype, device=device).scatter_add(0, data.labels, ones)
    sums: Tensor | None = None
    for index in torch.arange(len(data), device=device).tensor_split(_stops(len(data))):
        inputs, labels = data.batch(index)
        with autocast(config, device):
            vectors = outputs(inputs).float()
        if sums is None:
            sums = torch.zeros(classes, vectors.shape[1], device=device)
        sums.index_add_(0, labels, vectors)
    assert sums is not None, "a client has at least one training image"
    return sums / counts.clamp(min=1).unsqueeze(1), counts

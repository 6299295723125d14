"""The one training loop with its step and optimisers, and the one evaluation loop.

Examples stay on the device as they are stored; a batch is an index and its preparation, without a
data loader. The host waits for the device once per epoch at most, never per batch.
"""

import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedhet.config.schema import RunConfig
from fedhet.data.preparation import normalise
from fedhet.errors import UserError
from fedhet.models.flops import FlopCounter, slow_attention

EVALUATION_BATCH = 512
log = logging.getLogger("fedhet")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(dict[K, V]):
    """The values that were used last, in order; their sizes add up to ``limit`` at most."""

    def __init__(self, limit: float, size: Callable[[V], float] = lambda _: 1) -> None:
        super().__init__()
        self.limit, self.size = limit, size

    def get(self, key: K) -> V | None:  # type: ignore[override]
        """Return the value of ``key``; None if there is none any more."""
        if key in self:
            self[key] = self.pop(key)
        return super().get(key)

    def put(self, key: K, value: V) -> None:
        """Keep ``value``; drop those that have not been used for the longest time."""
        self.pop(key, None)
        self[key] = value
        while sum(map(self.size, self.values())) > self.limit:
            del self[next(iter(self))]


_FLOPS: Recent[tuple[object, ...], float] = Recent(4096)  # per example, by what decides it


@dataclass(frozen=True)
class Examples:
    """Examples (n, ...) as they are stored and labels (n,) int64 on one device.

    ``prepare`` makes a model's inputs of a batch of them; by default they are images (n, s, s, 3)
    uint8. ``augment``, if there is one, does so in its place, and draws other views each time.
    """

    examples: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor] = normalise
    augment: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, ...) for a model, images (B, 3, s, s) in [-1, 1], and labels (B,)."""
        prepare = self.augment or self.prepare
        return prepare(self.examples[index]), self.labels[index]


class StepCount(int):
    """A number of steps instead of epochs; batches continue from epoch to epoch."""


@dataclass(frozen=True)
class Phase:
    """One part of local training: its loss, the modules that it trains, and its length.

    ``groups`` are the trained modules, or parts of them, with their learning rates; ``frozen`` are
    parts of those that stay as they are, as all else of the client does (no gradients, evaluation
    mode). ``images`` restricts training to positions in the train split, or in ``data`` (trained on
    in its place, as it is). ``plain``: SGD without momentum and weight decay at the rate given, on
    images as they are. ``after_step`` runs after every step, on tensors only; ``after`` once at the
    end. ``train_loss`` or ``train_loss_<name>`` is the mean loss of the last epoch (of all
    :class:`StepCount`). ``generators``, from which the loss draws, are named for CUDA graphs.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    groups: Sequence[tuple[nn.Module, float]]
    epochs: int  # or StepCount
    images: Tensor | None = None
    after_step: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    name: str = ""
    plain: bool = False
    generators: Sequence[torch.Generator] = ()
    frozen: Sequence[nn.Module] = ()
    data: Examples | None = None

    def examples(self, data: Examples) -> tuple[Examples, Tensor]:
        """Return a phase's examples, of a client's ``data``, and their positions (n,) int64."""
        data = data if self.data is None else self.data
        data = replace(data, augment=None) if self.plain else data
        everything = torch.arange(len(data), device=data.labels.device)
        return data, everything if self.images is None else self.images

    def scalar(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of ``inputs`` (B, ...), ``labels`` (B,); UserError: no gradient.

        Of a single example, which has no variance, BatchNorm takes its running statistics.
        """
        layers = (layer for module, _ in self.groups for layer in module.modules())
        one = len(inputs) == 1
        norms = [m for m in layers if isinstance(m, _BatchNorm) and m.training] if one else []
        for layer in norms:
            layer.training = False
        loss = self.loss(inputs, labels)
        for layer in norms:
            layer.training = True
        if not loss.requires_grad:
            what = "its loss has no gradient: check `phases`, and `loss` for `no_grad` or `detach`"
            raise UserError(f"phase '{self.name}': {what}", "method")
        return loss


def batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Yield pieces of ``size``; a last piece of one image joins the one before it (BatchNorm)."""
    count = len(order)
    stops = list(range(size, count, size))
    if stops and count - stops[-1] == 1:
        stops.pop()
    yield from torch.tensor_split(order, stops)


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """Return bf16 autocast with ``precision: bf16``, otherwise a context without effect."""
    low, cpu = config.precision == "bf16", device.type == "cpu"
    return torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=cpu)


@contextmanager
def without_denormals() -> Iterator[None]:
    """Count numbers below 1e-38, which are slow on a CPU, as zero in this thread within the body.

    All that computes with a client's model runs in here, so that its last bits are the run's.
    """
    smallest = torch.full((1,), torch.finfo(torch.float32).tiny)
    before = bool((smallest / 2 == 0).all())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class Fixed:
    """Parameters without gradients and layers in evaluation mode, right after they are built."""

    def __init__(self, modules: Collection[nn.Module]) -> None:
        self.parameters = [p for m in modules for p in m.parameters() if not p.requires_grad]
        self.layers = [layer for m in modules for layer in m.modules() if not layer.training]


def set_trainable(modules: Sequence[nn.Module], phase: Phase, fixed: Fixed) -> None:
    """Set train mode and gradients for the modules that ``phase`` trains, and only for those."""
    switches = [*((m, False) for m in modules), *((m, True) for m, _ in phase.groups)]
    for module, active in (*switches, *((part, False) for part in phase.frozen)):
        module.train(active)
        module.requires_grad_(active)
    for layer in fixed.layers:
        layer.training = False
    for parameter in fixed.parameters:
        parameter.requires_grad = False


# --- optimisers and steps ----------------------------------------------------------------

Groups = Sequence[tuple[Sequence[Tensor], float]]  # parameters with their learning rate
WARM_UP = 3  # eager steps before a capture: optimiser state and workspaces exist by then
WORTH_IT = 20  # fewer steps than this do not pay for a capture


class SGD:
    """Fused SGD with momentum, whose first value is the gradient, and weight decay as L2.

    A fresh one per phase: momentum never outlives the round nor crosses clients. The classes of
    ``torch.optim`` run the same kernels and import torch's compiler: a second of CPU a process.
    """

    moments = 1  # kept of a parameter, beside the number of its steps

    def __init__(self, groups: Groups, weight_decay: float = 0.0, momentum: float = 0.0) -> None:
        self.groups, self.weight_decay, self.momentum = groups, weight_decay, momentum
        self.states: dict[Tensor, tuple[Tensor, ...]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for parameters, lr in self.groups:
            if pairs := [(p, p.grad) for p in parameters if p.grad is not None]:
                moved, gradients = map(list, zip(*pairs, strict=True))
                self.move(moved, gradients, lr)

    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step of one group: v = momentum v + g; p = p - lr v."""
        buffers: list[Tensor | None] = [None] * len(parameters)
        if self.momentum:
            buffers = [*next(zip(*map(self.of, parameters), strict=True))]
        sgd(
            parameters, gradients, buffers, fused=True, weight_decay=self.weight_decay,
            momentum=self.momentum, lr=lr, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip

    def of(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Return a parameter's moments and the number of their steps, which may be written."""
        if parameter not in self.states:
            zeros = map(torch.zeros_like, [parameter] * self.moments)
            self.states[parameter] = (*zeros, torch.zeros((), device=parameter.device))
        return self.states[parameter]

    def clear(self) -> None:
        """Drop all gradients."""
        for parameters, _ in self.groups:
            for parameter in parameters:
                parameter.grad = None


class Adam(SGD):
    """Fused Adam as torch defines it: betas 0.9 and 0.999, eps 1e-8, weight decay as L2."""

    moments = 2

    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step by first and second moments, both corrected for their start at 0."""
        first, second, counts = map(list, zip(*map(self.of, parameters), strict=True))
        adam(
            parameters, gradients, first, second, [], counts, fused=True, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=lr, weight_decay=self.weight_decay, eps=1e-8,
            maximize=False,
        )  # fmt: skip


def schedule(config: RunConfig, round_: int) -> float:
    """Return the factor of the rates in round r of T: 1, or (1 + cos(pi (r - 1) / T)) / 2."""
    if config.lr_schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (round_ - 1) / config.rounds)) / 2


class Step:
    """The steps of a phase with a fresh optimiser: eager, or captured in a CUDA graph.

    A graph replays a whole step with one launch, by which small networks are bound on a GPU. The
    first full batches run eagerly on a side stream, as capturing demands. Batches of another size,
    losses that cannot be captured, and phases of few steps (``size`` 0) stay eager.
    """

    def __init__(
        self, phase: Phase, config: RunConfig, round_: int, images: int, device: torch.device
    ) -> None:
        self.phase, self.config, self.device = phase, config, device
        factor = 1.0 if phase.plain else schedule(config, round_)
        groups = [
            ([p for p in m.parameters() if p.requires_grad], lr * factor) for m, lr in phase.groups
        ]
        self.optimiser = SGD(groups)
        if not phase.plain and config.optimizer == "adam":
            self.optimiser = Adam(groups, config.weight_decay)
        elif not phase.plain:
            self.optimiser = SGD(groups, config.weight_decay, config.momentum)
        epochs = phase.epochs
        steps = epochs if isinstance(epochs, StepCount) else epochs * (images // config.batch_size)
        self.size = config.batch_size * (device.type == "cuda" and steps >= WORTH_IT)
        self.seen, self.checked = 0, False
        self.flops: float | None = None  # of an example; None: the next step counts them
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.size:
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Make a step on inputs (B, ...), labels (B,); return the loss, detached, a copy."""
        if len(labels) != self.size:
            return self._eager(inputs, labels)
        self.seen += 1
        if self.seen <= WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                loss = self._eager(inputs, labels)
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        self.graph = self.graph or self._capture(inputs, labels)
        if self.graph is None:
            return self._eager(inputs, labels)
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss.clone()

    def _eager(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.optimiser.clear()
        return self._body(inputs, labels)

    def _body(self, inputs: Tensor, labels: Tensor) -> Tensor:
        counter: Any = FlopCounter() if self.flops is None else nullcontext()  # type: ignore[no-untyped-call]
        with counter:
            with autocast(self.config, self.device):
                loss = self.phase.scalar(inputs, labels)
            loss.backward()  # type: ignore[no-untyped-call]
        self.flops = counter.total / len(labels) if self.flops is None else self.flops
        for number, (module, _) in enumerate(() if self.checked else self.phase.groups):
            if all(parameter.grad is None for parameter in module.parameters()):
                why = "has no gradient: it is frozen, or `loss` does not use it; check `phases`"
                group = f"group {number} ({type(module).__name__})"
                raise UserError(f"phase '{self.phase.name}': {group} {why}", "method")
        self.checked = True
        for parameters, _ in self.optimiser.groups if self.config.grad_clip else ():
            nn.utils.clip_grad_norm_(parameters, self.config.grad_clip)
        self.optimiser.step()
        if self.phase.after_step is not None:
            self.phase.after_step()
        return loss.detach()

    def _capture(self, inputs: Tensor, labels: Tensor) -> torch.cuda.CUDAGraph | None:
        """Record the step; nothing is executed. None if this loss cannot be captured."""
        self.inputs, self.labels = inputs.clone(), labels.clone()
        self.optimiser.clear()
        graph = torch.cuda.CUDAGraph()
        for generator in self.phase.generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph):
                self.loss = self._body(self.inputs, self.labels)
        except RuntimeError as error:
            log.warning("training stays eager, the step cannot be captured: %s", error)
            self.size = 0
            self.optimiser.clear()
            return None
        return graph


# --- local training ----------------------------------------------------------------


def train(
    phase: Phase, data: Examples, config: RunConfig, generator: np.random.Generator, round_: int,
    kind: tuple[object, ...] = (),
) -> tuple[Tensor, float]:  # fmt: skip
    """Run one phase; return the mean loss of its last epoch, a scalar on the device, and its FLOPs.

    The first step of a ``kind`` is counted: of what decides the work of an example, beside sizes.
    """
    data, chosen = phase.examples(data)
    device, size = data.labels.device, config.batch_size
    step = Step(phase, config, round_, len(chosen), device)
    sizes = list(map(len, batches(chosen, size)))
    key = (*kind, config.params, config.models, sizes[0])
    step.flops = _FLOPS.get(key)
    orders = (
        chosen[torch.from_numpy(generator.permutation(len(chosen))).to(device)]
        for _ in range(phase.epochs)
    )
    steps = chain.from_iterable(batches(order, size) for order in orders)
    counted = isinstance(phase.epochs, StepCount)
    last = phase.epochs if counted else len(sizes) * phase.epochs
    total, images, seen = torch.zeros((), device=device), 0, 0
    with slow_attention():
        for number, index in enumerate(islice(steps, last)):
            loss = step(*data.batch(index))
            seen += len(index)
            if counted or number >= last - len(sizes):
                total += loss * len(index)
                images += len(index)
    step.optimiser.clear()
    each = step.flops or 0.0
    _FLOPS.put(key, each)
    return total / max(1, images), each * seen


# --- evaluation ----------------------------------------------------------------


def pieces(data: Examples) -> tuple[Tensor, ...]:
    """Return the positions of all examples, in pieces as large as an evaluation takes."""
    stops = list(range(EVALUATION_BATCH, len(data), EVALUATION_BATCH))
    return torch.arange(len(data), device=data.labels.device).tensor_split(stops)


@torch.inference_mode()
def outputs_on(outputs: Callable[[Tensor], Tensor], data: Examples, config: RunConfig) -> Tensor:
    """Return the ``outputs`` (n, w) float32 of all inputs (B, ...) of ``data``."""
    device, found = data.labels.device, []
    for index in pieces(data):
        with autocast(config, device):
            found.append(outputs(data.batch(index)[0]).float())
    return torch.cat(found)


@torch.inference_mode()
def mean_outputs(
    outputs: Callable[[Tensor], Tensor], data: Examples, config: RunConfig, classes: int
) -> tuple[Tensor, Tensor]:
    """Return the mean output of every class (C, w) float32, and images of each (C,) int64.

    ``outputs`` maps inputs (B, ...) to vectors (B, w); rows of absent classes are zero.
    """
    vectors, labels = outputs_on(outputs, data, config), data.labels
    counts = labels.new_zeros(classes).scatter_add(0, labels, torch.ones_like(labels))
    sums = vectors.new_zeros(classes, vectors.shape[1]).index_add_(0, labels, vectors)
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(p_teacher || p_student) of logits (B, C), mean over B; the teacher is detached."""
    student, teacher = (
        F.log_softmax(logits, dim=1) for logits in (student_logits, teacher_logits.detach())
    )
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)

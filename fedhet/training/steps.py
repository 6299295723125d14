"""Optimisers, and one step of SGD: eager, or captured in a CUDA graph where that is possible.

A fresh optimiser per phase: momentum never outlives the round nor crosses clients. The classes of
``torch.optim`` run the same kernels as its functional forms here, and import torch's compiler for
their decorators: a second of CPU, which a deployed client would pay with every message.

A graph replays the kernels of a whole step (forward, loss, backward, clipping, update) with one
launch, which is what small networks are bound by on a GPU. The first full batches run eagerly on
a side stream, as capturing demands; they are ordinary steps of the training. Batches of another
size, and losses that cannot be captured, stay eager.
"""

import logging
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedhet.config.schema import RunConfig

Groups = Sequence[tuple[Sequence[Tensor], float]]  # parameters with their learning rate
Body = Callable[[Tensor, Tensor], Tensor]

WARM_UP = 3  # eager steps before a capture: optimiser state and workspaces exist by then
WORTH_IT = 20  # fewer steps than this do not pay for a capture
log = logging.getLogger("fedhet")


class Optimiser:
    """Moves parameters by their gradients, each group at its own rate."""

    def __init__(self, groups: Groups, weight_decay: float = 0.0) -> None:
        self.groups = groups
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for parameters, lr in self.groups:
            moved = [p for p in parameters if p.grad is not None]
            if moved:
                self.move(moved, [p.grad for p in moved if p.grad is not None], lr)

    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step of one group."""
        raise NotImplementedError

    def clear(self) -> None:
        """Drop all gradients."""
        for parameters, _ in self.groups:
            for parameter in parameters:
                parameter.grad = None


class SGD(Optimiser):
    """Fused SGD with momentum, whose first value is the gradient, and weight decay as L2."""

    def __init__(self, groups: Groups, weight_decay: float = 0.0, momentum: float = 0.0) -> None:
        super().__init__(groups, weight_decay)
        self.momentum = momentum
        self.buffers: dict[Tensor, Tensor] = {}

    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step: v = momentum v + g; p = p - lr v."""
        for parameter in parameters if self.momentum else ():
            if parameter not in self.buffers:
                self.buffers[parameter] = torch.zeros_like(parameter)
        sgd(
            parameters, gradients, [self.buffers.get(p) for p in parameters], fused=True,
            weight_decay=self.weight_decay, momentum=self.momentum, lr=lr, dampening=0.0,
            nesterov=False, maximize=False,
        )  # fmt: skip


class Adam(Optimiser):
    """Fused Adam as torch defines it: betas 0.9 and 0.999, eps 1e-8, weight decay as L2."""

    def __init__(self, groups: Groups, weight_decay: float = 0.0) -> None:
        super().__init__(groups, weight_decay)
        self.moments: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {}

    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step by first and second moments, both corrected for their start at 0."""
        first, second, counts = map(list, zip(*map(self.of, parameters), strict=True))
        adam(
            parameters, gradients, first, second, [], counts, fused=True, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=lr, weight_decay=self.weight_decay, eps=1e-8,
            maximize=False,
        )  # fmt: skip

    def of(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a parameter's two moments and the number of their steps; zero before the first.

        They are what the next step goes on from, and may be written.
        """
        if parameter not in self.moments:
            zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
            self.moments[parameter] = (*zeros, torch.zeros((), device=parameter.device))
        return self.moments[parameter]


def schedule(config: RunConfig, round_: int) -> float:
    """Return the factor of the rates in round r of T: 1, or (1 + cos(pi (r - 1) / T)) / 2."""
    if config.lr_schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (round_ - 1) / config.rounds)) / 2


def make_optimiser(groups: Groups, config: RunConfig, round_: int, *, plain: bool) -> Optimiser:
    """Return the configured optimiser; ``plain``: SGD without momentum and weight decay."""
    if plain:
        return SGD(groups)
    factor = schedule(config, round_)
    scaled = [(parameters, lr * factor) for parameters, lr in groups]
    if config.optimizer == "adam":
        return Adam(scaled, config.weight_decay)
    return SGD(scaled, config.weight_decay, config.momentum)


class EagerStep:
    """Runs ``body`` as it is; ``clear`` drops the gradients before."""

    def __init__(self, body: Body, clear: Callable[[], None]) -> None:
        self.body = body
        self.clear = clear

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One step on inputs (B, 3, s, s) and labels (B,); returns the loss, detached."""
        self.clear()
        return self.body(inputs, labels)


class GraphStep(EagerStep):
    """Captures ``body`` for batches of ``size`` images after a few eager steps, then replays it."""

    def __init__(
        self, body: Body, clear: Callable[[], None], size: int, generators: list[torch.Generator]
    ) -> None:
        super().__init__(body, clear)
        self.size = size
        self.generators = generators
        self.seen = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """See :class:`EagerStep`; the result of a replay is a copy."""
        if len(labels) != self.size or self.failed:
            return super().__call__(inputs, labels)
        self.seen += 1
        if self.seen <= WARM_UP:
            return self._beside(inputs, labels)
        if self.graph is None and not self._capture(inputs, labels):
            return super().__call__(inputs, labels)
        assert self.graph is not None
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss.clone()

    def _beside(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Make an eager step on a side stream, as capturing wants for warm-up."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = super().__call__(inputs, labels)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _capture(self, inputs: Tensor, labels: Tensor) -> bool:
        """Record the step; nothing is executed. False if this loss cannot be captured."""
        self.inputs, self.labels = inputs.clone(), labels.clone()
        self.clear()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph):
                self.loss = self.body(self.inputs, self.labels)
        except RuntimeError as error:
            log.warning("training stays eager, the step cannot be captured: %s", error)
            self.failed = True
            self.clear()
            return False
        self.graph = graph
        return True

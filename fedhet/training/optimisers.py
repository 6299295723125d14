"""SGD and Adam by ``torch.optim``'s functional forms, and how the learning rate falls over rounds.

A fresh optimiser per phase: momentum never outlives the round nor crosses clients. The classes
``torch.optim.SGD`` and ``Adam`` run the same kernels, and import torch's compiler for their
decorators: a second of CPU, which a deployed client would pay with every message.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedhet.config.schema import RunConfig

Groups = Sequence[tuple[Sequence[Tensor], float]]  # parameters with their learning rate


class Optimiser(ABC):
    """Moves parameters by their gradients, each group at its own rate."""

    def __init__(self, groups: Groups, weight_decay: float) -> None:
        self.groups = groups
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for parameters, lr in self.groups:
            moved = [p for p in parameters if p.grad is not None]
            if moved:
                self.move(moved, [p.grad for p in moved if p.grad is not None], lr)

    @abstractmethod
    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step of one group."""

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
        sgd(
            parameters,
            gradients,
            [self._momentum(p) for p in parameters],
            fused=True,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _momentum(self, parameter: Tensor) -> Tensor | None:
        if self.momentum and parameter not in self.buffers:
            self.buffers[parameter] = torch.zeros_like(parameter)
        return self.buffers.get(parameter)


class Adam(Optimiser):
    """Fused Adam as torch defines it: betas 0.9 and 0.999, eps 1e-8, weight decay as L2."""

    def __init__(self, groups: Groups, weight_decay: float = 0.0) -> None:
        super().__init__(groups, weight_decay)
        self.moments: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {}

    def move(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """One step by first and second moments, both corrected for their start at 0."""
        first, second, counts = zip(*(self.of(p) for p in parameters), strict=True)
        adam(
            parameters,
            gradients,
            list(first),
            list(second),
            [],
            list(counts),
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def of(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a parameter's two moments and the number of their steps; zero before the first.

        They are what the next step goes on from, and may be written.
        """
        if parameter not in self.moments:
            count = torch.zeros((), dtype=torch.float32, device=parameter.device)
            zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
            self.moments[parameter] = (*zeros, count)
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

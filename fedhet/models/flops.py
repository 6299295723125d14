"""What a model costs: FLOPs, parameters, bytes.

FLOPs are multiply-adds x 2 of convolutions, matrix products, recurrent layers and attention.
Biases, activations, pooling and normalisation count as zero.
"""

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedhet.data.inputs import Inputs
from fedhet.models.networks import untouched
from fedhet.models.zoo import build_model

log = logging.getLogger("fedhet")
# Names of operators that multiply and add; what else has no formula costs nothing worth counting.
_WORK = re.compile(r"rnn|lstm|gru|attention|transformer|conv|mm|matmul|linear|einsum|bilinear|fft")


@cache
def torchs_formulas() -> dict[Any, Callable[..., int]]:
    """Return formulas by operator: torch's, those that it lacks, and one that it has wrong.

    ``torch.utils.flop_counter`` imports Triton: it is imported when it is needed.
    """
    known, aten = dict(import_module("torch.utils.flop_counter").flop_registry), torch.ops.aten
    known[aten.convolution_backward] = _convolution_back
    for times, way in ((1, ""), (2, "_backward")):
        flash = "_scaled_dot_product_flash_attention{}" + way
        known[getattr(aten, flash.format("_for_cpu"))] = known[getattr(aten, flash.format(""))]
        for name in ("mkldnn_rnn_layer", "_cudnn_rnn"):
            known[getattr(aten, name + way)] = partial(_recurrent, times)
    return known


def _recurrent(times: int, x: torch.Tensor, weights: Any, *others: Any, **_: Any) -> int:
    """Return ``times`` the cost of every weight matrix meeting every step of every example."""
    each = weights if isinstance(weights, list | tuple) else (weights, *others[:3])
    size = sum(int(w.numel()) for w in each if w is not None and w.dim() == 2)
    return times * 2 * math.prod(x.shape[:-1]) * size


def _convolution_back(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any, **_: Any
) -> int:
    """Return the forward's cost for each gradient; torch leaves groups out of the weights' one."""
    shapes = (list(one.shape) for one in (x, weight, grad))
    count = import_module("torch.utils.flop_counter").conv_flop_count
    return int(count(*shapes, args[4]) * sum(args[7][:2]))


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the formula of every operation that runs inside ``with``.

    torch's ``FlopCounterMode`` adds the same formulas per module, and imports torch's compiler for
    it: a second of CPU, which a deployed client would pay with every message. An operator that
    looks like work and has no formula is named once.
    """

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no compiler runs here

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run the operation and count it."""
        kwargs, formulas = kwargs or {}, torchs_formulas()
        out, packet = func(*args, **kwargs), func.overloadpacket
        if packet in formulas:
            self.total += formulas[packet](*args, **kwargs, out_val=out)
        else:
            _name_once(packet)
        return out


@cache
def _name_once(packet: Any) -> None:
    """Warn of an operator without a formula that looks like work, once in a process."""
    namespace, _, operator = str(packet).partition(".")
    if namespace not in {"aten", "prim", "prims"} or _WORK.search(operator):
        log.warning("FLOPs: operator %s has no formula and is counted as 0", packet)


@contextmanager
def slow_attention() -> Iterator[None]:
    """Let attention take the way of training within the body: the fast one has no formula."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def forward_flops(model: nn.Module, inputs: Inputs) -> int:
    """Return FLOPs of one forward of one example; the model is left as it was."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(inputs.blank(1)).to(device)
    with untouched(model), slow_attention(), FlopCounter() as counter:  # type: ignore[no-untyped-call]
        model(x)
    return int(counter.total)


def model_sizes(
    names: Sequence[str], classes: int, d: int, inputs: Inputs
) -> Iterator[tuple[str, int, str, int, int]]:
    """Yield name, parameters, their MiB, elements of buffers, FLOPs of one forward of one example.

    torch's generator is left as it was. Raise UserError as :func:`fedhet.models.build_model`.
    """
    for name in names:
        with torch.random.fork_rng(devices=[]):
            model = build_model(name, classes=classes, d=d, inputs=inputs)
            flops = forward_flops(model, inputs)
        parameters = [*model.parameters()]
        size = f"{sum(one.nbytes for one in parameters) / 2**20:.2f}"
        buffers = sum(one.numel() for one in model.buffers())
        yield name, sum(one.numel() for one in parameters), size, buffers, flops

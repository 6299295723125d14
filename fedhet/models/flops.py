"""What a model costs: FLOPs, parameters, bytes.

FLOPs are multiply-adds x 2 of convolutions, matrix products, recurrent layers and attention.

Biases, activations, pooling and normalisation count as zero (``torch.utils.flop_counter``, whose
formulas these are, with those that it lacks, and one that it has wrong).
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
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
def torchs_formulas() -> Any:
    """Return ``torch.utils.flop_counter``, which imports Triton: imported when it is needed."""
    return import_module("torch.utils.flop_counter")


def _recurrent(weights: Any, inputs: torch.Tensor) -> int:
    """Return the cost of every weight matrix meeting every step of every example."""
    size = sum(w.numel() for w in weights if w is not None and w.dim() == 2)
    return 2 * math.prod(inputs.shape[:-1]) * int(size)


def _convolution_back(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any, **__: Any
) -> int:
    """Return what the forward costs for each gradient that is asked for.

    torch's formula leaves the groups out of the weights' gradient: a depthwise convolution of 512
    channels would count 512 times.
    """
    shapes = (list(one.shape) for one in (x, weight, grad))
    return int(torchs_formulas().conv_flop_count(*shapes, args[4]) * sum(args[7][:2]))


_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
_FORMULAS: dict[str, Callable[..., int]] = {  # of operators that torch has no right formula for
    "convolution_backward": _convolution_back,
    "mkldnn_rnn_layer": lambda x, *args, **_: _recurrent(args[:4], x),
    "mkldnn_rnn_layer_backward": lambda x, *args, **_: 2 * _recurrent(args[:4], x),
    "_cudnn_rnn": lambda x, weights, *_, **__: _recurrent(weights, x),
    "_cudnn_rnn_backward": lambda x, weights, *_, **__: 2 * _recurrent(weights, x),
    _FLASH: lambda q, k, v, *_, **__: int(
        torchs_formulas().sdpa_flop_count(q.shape, k.shape, v.shape)
    ),
    f"{_FLASH}_backward": lambda *args, **_: int(
        torchs_formulas().sdpa_backward_flop_count(*(one.shape for one in args[:4]))
    ),
}
_ATEN = torch.ops.aten
_OURS = {getattr(_ATEN, name): one for name, one in _FORMULAS.items() if hasattr(_ATEN, name)}


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the formula of every operation that runs inside ``with``.

    torch's ``FlopCounterMode`` adds the same formulas per module, and imports torch's compiler for
    it: a second of CPU, which a deployed client would pay with every message. Attention layers
    take the way that training takes, since the fast one of inference is one operator of which
    nobody has a formula. An operator that looks like work and has none is named once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0
        self._registry = torchs_formulas().flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no compiler runs here

    def __enter__(self) -> Any:
        """Start counting, without the fast path."""
        self._fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Stop counting, with the fast path as before."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.backends.mha.set_fastpath_enabled(self._fast)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run the operation and count it."""
        kwargs, packet = kwargs or {}, func.overloadpacket
        out = func(*args, **kwargs)
        if packet in _OURS:
            self.total += _OURS[packet](*args, **kwargs)
        elif packet in self._registry:
            self.total += self._registry[packet](*args, **kwargs, out_val=out)
        else:
            _name_once(packet)
        return out


@cache
def _name_once(packet: Any) -> None:
    """Warn of an operator without a formula that looks like work, once in a process."""
    namespace, _, operator = str(packet).partition(".")
    if namespace not in {"aten", "prim", "prims"} or _WORK.search(operator):
        log.warning("FLOPs: operator %s has no formula and is counted as 0", packet)


def forward_flops(model: nn.Module, inputs: Inputs) -> int:
    """Return FLOPs of one forward of one example; the model is left as it was."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(inputs.blank(1)).to(device)
    counter = FlopCounter()
    with untouched(model), counter:
        model(x)
    return counter.total


def training_flops(step: Callable[[], torch.Tensor]) -> int:
    """Return FLOPs of ``step()``, which returns a scalar loss, and of its backward.

    Both really run: gradients are added and BatchNorm's buffers move, so give it a step on copies.
    """
    counter = FlopCounter()
    with counter:
        torch.autograd.backward(step())
    return counter.total


def model_sizes(names: Sequence[str], classes: int, d: int, inputs: Inputs) -> list[dict[str, Any]]:
    """Build each model once and return its sizes, as ``fedhet models`` prints them.

    ``parameters`` are trainable or not, ``mib`` their size as stored; ``buffers`` are elements,
    such as BatchNorm's running statistics; ``forward_flops`` are of one example. torch's generator
    is left as it was. Raise UserError as :func:`fedhet.models.build_model`.
    """
    rows = []
    with torch.random.fork_rng(devices=[]):
        for name in names:
            model = build_model(name, classes=classes, d=d, inputs=inputs)
            rows.append({
                "name": name, "kind": inputs.kind,
                "parameters": sum(one.numel() for one in model.parameters()),
                "mib": sum(one.nbytes for one in model.parameters()) / 2**20,
                "buffers": sum(one.numel() for one in model.buffers()),
                "forward_flops": forward_flops(model, inputs),
            })  # fmt: skip
    return rows

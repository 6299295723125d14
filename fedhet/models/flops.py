"""What a model costs: FLOPs, parameters, bytes.

FLOPs are multiply-adds x 2 of convolutions, matrix products, recurrent layers and attention.

Biases, activations, pooling and normalisation count as zero (``torch.utils.flop_counter``, whose
formulas these are, with those that it lacks, and one that it has wrong).
"""

import logging
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
_MATRIX = 2  # dimensions
_MIB = 2**20


@cache
def torchs_formulas() -> Any:
    """Return ``torch.utils.flop_counter``, which imports Triton: imported when it is needed."""
    return import_module("torch.utils.flop_counter")


def _recurrent(weights: Any, inputs: torch.Tensor) -> int:
    """Return the cost of every weight matrix meeting every step of every example."""
    steps = inputs.shape[0] * inputs.shape[1] if inputs.dim() > _MATRIX else inputs.shape[0]
    size = sum(w.numel() for w in weights if w is not None and w.dim() == _MATRIX)
    return 2 * int(steps) * int(size)


def _convolution_back(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any, **__: Any
) -> int:
    """Return what the forward costs for each gradient that is asked for.

    torch's formula leaves the groups out of the weights' gradient: a depthwise convolution of 512
    channels would count 512 times.
    """
    transposed, wanted = args[4], args[7]
    count = torchs_formulas().conv_flop_count
    forward = count(list(x.shape), list(weight.shape), list(grad.shape), transposed)
    return int(forward * sum(wanted[:2]))


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
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula: Callable[..., int] | None = self._registry.get(func.overloadpacket)
        if func.overloadpacket in _OURS:
            self.total += _OURS[func.overloadpacket](*args, **kwargs)
        elif formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        else:
            _name_once(func.overloadpacket)
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
    such as BatchNorm's running statistics; ``forward_flops`` are of one example. torch's CPU
    generator is left as it was. Raises UserError as :func:`fedhet.models.build_model`.
    """
    rows = []
    with torch.random.fork_rng(devices=[]):
        for name in names:
            model = build_model(name, classes=classes, d=d, inputs=inputs)
            row: dict[str, Any] = {"name": name, "kind": inputs.kind}
            for key, size, tensors in (
                ("parameters", "mib", list(model.parameters())),
                ("buffers", "buffers_mib", list(model.buffers())),
            ):
                row[key] = sum(t.numel() for t in tensors)
                row[size] = sum(t.nbytes for t in tensors) / _MIB
            rows.append(row | {"forward_flops": forward_flops(model, inputs)})
    return rows

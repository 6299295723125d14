"""What a model costs: FLOPs, parameters, bytes.

FLOPs are multiply-adds x 2 of convolutions, matrix products, recurrent layers and attention.

Biases, activations, pooling and normalisation count as zero (``torch.utils.flop_counter``, whose
formulas these are, with those that it lacks, and one that it has wrong).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import nn

from fedhet.data.inputs import Inputs
from fedhet.models.base import untouched
from fedhet.models.zoo import build_model

_MATRIX = 2  # dimensions
_MIB = 2**20


def _formulas(torchs: Any) -> dict[Any, Callable[..., int]]:
    """Return formulas, of shapes, of operators that torch has no right one for, if it has them.

    Of a convolution's backward torch's formula leaves out the groups of the weights' gradient: a
    depthwise convolution of 512 channels would count 512 times. In a recurrent layer every weight
    matrix meets every step of every example.
    """

    def convolution_back(grad: Any, x: Any, weight: Any, *args: Any, **_: Any) -> int:
        forward = torchs.conv_flop_count(list(x), list(weight), list(grad), args[4])
        return int(forward * sum(args[7][:2]))

    def recurrent(x: Any, weights: Any) -> int:
        size = sum(math.prod(w) for w in weights if w is not None and len(w) == _MATRIX)
        return int(2 * math.prod(x[:-1]) * size)

    def attention(formula: Callable[..., int], tensors: int) -> Callable[..., int]:
        return lambda *shapes, **_: formula(*shapes[:tensors])

    flash = "_scaled_dot_product_flash_attention_for_cpu"
    wanted: dict[str, Callable[..., int]] = {
        "convolution_backward": convolution_back,
        "mkldnn_rnn_layer": lambda x, *args, **_: recurrent(x, args[:4]),
        "mkldnn_rnn_layer_backward": lambda x, *args, **_: 2 * recurrent(x, args[:4]),
        "_cudnn_rnn": lambda x, weights, *_, **__: recurrent(x, weights),
        "_cudnn_rnn_backward": lambda x, weights, *_, **__: 2 * recurrent(x, weights),
        flash: attention(torchs.sdpa_flop_count, 3),
        f"{flash}_backward": attention(torchs.sdpa_backward_flop_count, 4),
    }
    aten = torch.ops.aten
    return {getattr(aten, name): own for name, own in wanted.items() if hasattr(aten, name)}


@contextmanager
def counting() -> Iterator[Any]:
    """Count what runs inside ``with`` by torch's ``FlopCounterMode``, with the formulas above.

    Attention layers take the way that training takes: the fast one of inference is one operator
    without a formula.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torchs = import_module("torch.utils.flop_counter")  # it imports Triton
    counter = torchs.FlopCounterMode(display=False, custom_mapping=_formulas(torchs))
    try:
        with counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def forward_flops(model: nn.Module, inputs: Inputs) -> int:
    """Return FLOPs of one forward of one example; the model is left as it was."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(inputs.blank(1)).to(device)
    with untouched(model), counting() as counter:
        model(x)
    return int(counter.get_total_flops())


def training_flops(step: Callable[[], torch.Tensor]) -> int:
    """Return FLOPs of ``step()``, which returns a scalar loss, and of its backward.

    Both really run: gradients are added and BatchNorm's buffers move, so give it a step on copies.
    """
    with counting() as counter:
        torch.autograd.backward(step())
    return int(counter.get_total_flops())


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
            parameters, mib = _size(model.parameters())
            buffers, buffers_mib = _size(model.buffers())
            rows.append({
                "name": name, "kind": inputs.kind, "parameters": parameters, "mib": mib,
                "buffers": buffers, "buffers_mib": buffers_mib,
                "forward_flops": forward_flops(model, inputs),
            })  # fmt: skip
    return rows


def _size(tensors: Iterable[torch.Tensor]) -> tuple[int, float]:
    """Return elements and MiB."""
    pairs = [(t.numel(), t.numel() * t.element_size()) for t in tensors]
    return sum(n for n, _ in pairs), sum(b for _, b in pairs) / _MIB

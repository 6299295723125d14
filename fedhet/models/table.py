"""The table that ``fedhet models`` prints."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

import torch

from fedhet.data.inputs import Inputs
from fedhet.models.flops import forward_flops
from fedhet.models.zoo import build_model

_MIB = 2**20


class ModelRow(TypedDict):
    """One model's sizes."""

    name: str
    kind: str
    """Of the examples that it is for: image, signal, table, tokens."""
    parameters: int
    """Trainable or not, buffers apart."""
    mib: float
    """Of the parameters as stored (float32), in MiB."""
    buffers: int
    """Elements of buffers, e.g. BatchNorm's running statistics; private in a client's own model."""
    buffers_mib: float
    forward_flops: int
    """Of one example, multiply-adds x 2."""


def model_table(
    names: Sequence[str], classes: int, d: int = 500, image_size: int = 32,
    inputs: Inputs | None = None,
) -> list[ModelRow]:  # fmt: skip
    """Build each model once and measure it; torch's CPU generator is left as it was.

    Raises:
        UserError: as :func:`fedhet.models.build_model`.

    """
    inputs = inputs or Inputs.image(image_size)
    with torch.random.fork_rng(devices=[]):
        return [_row(name, classes, d, inputs) for name in names]


def _row(name: str, classes: int, d: int, inputs: Inputs) -> ModelRow:
    model = build_model(name, classes=classes, d=d, inputs=inputs)
    parameters, mib = _size(model.parameters())
    buffers, buffers_mib = _size(model.buffers())
    return ModelRow(
        name=name,
        kind=inputs.kind,
        parameters=parameters,
        mib=mib,
        buffers=buffers,
        buffers_mib=buffers_mib,
        forward_flops=forward_flops(model, inputs),
    )


def _size(tensors: Iterable[torch.Tensor]) -> tuple[int, float]:
    """Elements and MiB."""
    pairs = [(t.numel(), t.numel() * t.element_size()) for t in tensors]
    return sum(n for n, _ in pairs), sum(b for _, b in pairs) / _MIB

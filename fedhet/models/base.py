"""What every method may expect of a model, and how to look at one without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class SplitModel(nn.Module):
    """A classifier cut in two: ``forward(x) = head(features(x))``.

    ``features`` maps images ``(B, 3, s, s)`` float32 to representations ``(B, d)``; ``head``, a
    ``nn.Linear(d, C)`` with bias, maps those to logits ``(B, C)``. A user's own model has the same
    two parts but need not inherit this class, so never test for it with ``isinstance``.
    """

    head: nn.Linear

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return representations ``(B, d)`` of the images ``(B, 3, s, s)``."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``(B, C)`` of the images ``(B, 3, s, s)``."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits


def exchanged(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return what is sent of a module that is shared as a whole, by name, in a fixed order.

    Its parameters, then BatchNorm's running means and variances, all floating point; not how many
    batches they are of, which nothing needs.
    """
    found: dict[str, torch.Tensor] = dict(module.named_parameters())
    for prefix, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            for name, buffer in layer.named_buffers(prefix, recurse=False):
                if buffer.is_floating_point():
                    found[name] = buffer
    return found


@contextmanager
def still_statistics(model: nn.Module) -> Iterator[None]:
    """Run the body so that BatchNorm uses a batch's own statistics and does not remember them.

    For images that inference never sees. Layers in eval mode stay as they are.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the body with ``model`` in eval mode and without gradients, then put everything back.

    Each module's own training flag is restored (a frozen BatchNorm stays frozen), and the buffers'
    values too, for a module that writes them even in eval mode. Not ``inference_mode``: a tensor
    that a module caches in there could not be trained with later.
    """
    training = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, flag in training.items():
            module.training = flag
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)

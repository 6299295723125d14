"""torch, imported when something of it is used: what describes a method does without it.

So lists, mistakes in a configuration and a sweep's ``--dry-run`` do not wait two seconds for it.
Annotations that name an attribute (``nn.Module``) are quoted, since that would use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
else:

    class _Later:
        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._module), name)

    torch, nn, F = map(_Later, ("torch", "torch.nn", "torch.nn.functional"))
    Tensor = _Later("torch")  # for annotations alone

__all__ = ["F", "Tensor", "nn", "torch"]

"""The model zoo: every model is split into ``features`` (private) and a last layer ``head``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedhet.models.names import CNN_NAMES, GROUPS, MODEL_NAMES, MODELS, validate_model_name

if TYPE_CHECKING:
    from fedhet.models.flops import forward_flops, model_sizes
    from fedhet.models.networks import Beside, SplitModel, exchanged
    from fedhet.models.zoo import build_model, check_model, small_model

__all__ = [
    "CNN_NAMES", "GROUPS", "MODELS", "MODEL_NAMES", "Beside", "SplitModel", "build_model",
    "check_model", "exchanged", "forward_flops", "model_sizes", "small_model",
    "validate_model_name",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return what needs torch, imported when it is used: reports and lists need names only."""
    if name not in __all__:
        raise AttributeError(f"module 'fedhet.models' has no attribute '{name}'")
    modules = dict.fromkeys(("Beside", "SplitModel", "exchanged"), "networks")
    modules |= dict.fromkeys(("forward_flops", "model_sizes"), "flops")
    return getattr(import_module(f"fedhet.models.{modules.get(name, 'zoo')}"), name)

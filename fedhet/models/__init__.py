"""The model zoo: every model is split into ``features`` (private) and a last layer ``head``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedhet.models.names import CNN_NAMES, GROUPS, MODEL_NAMES, MODELS, validate_model_name

if TYPE_CHECKING:
    from fedhet.models.flops import forward_flops, model_sizes, training_flops
    from fedhet.models.networks import SplitModel
    from fedhet.models.zoo import build_model, check_model

__all__ = [
    "CNN_NAMES", "GROUPS", "MODELS", "MODEL_NAMES", "SplitModel", "build_model", "check_model",
    "forward_flops", "model_sizes", "training_flops", "validate_model_name",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return what needs torch, imported when it is used: reports and lists need names only."""
    if name not in __all__:
        raise AttributeError(f"module 'fedhet.models' has no attribute '{name}'")
    elsewhere = {"SplitModel": "networks", "build_model": "zoo", "check_model": "zoo"}
    return getattr(import_module(f"fedhet.models.{elsewhere.get(name, 'flops')}"), name)

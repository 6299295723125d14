"""The model zoo: every model is split into ``features`` (private) and a last layer ``head``."""

from fedhet.models.base import SplitModel
from fedhet.models.flops import forward_flops, model_sizes, training_flops
from fedhet.models.names import CNN_NAMES, GROUPS, MODEL_NAMES, MODELS, validate_model_name
from fedhet.models.zoo import build_model, check_model

__all__ = [
    "CNN_NAMES", "GROUPS", "MODELS", "MODEL_NAMES", "SplitModel", "build_model", "check_model",
    "forward_flops", "model_sizes", "training_flops", "validate_model_name",
]  # fmt: skip

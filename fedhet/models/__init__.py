"""The model zoo: every model is split into ``features`` (private) and a last layer ``head``."""

from fedhet.models.base import SplitModel
from fedhet.models.cnn import CNN, cnn
from fedhet.models.flops import forward_flops, training_flops
from fedhet.models.names import CNN_NAMES, GROUPS, MODEL_NAMES, MODELS, validate_model_name
from fedhet.models.table import ModelRow, model_table
from fedhet.models.zoo import build_model, check_model

__all__ = [
    "CNN",
    "CNN_NAMES",
    "GROUPS",
    "MODELS",
    "MODEL_NAMES",
    "ModelRow",
    "SplitModel",
    "build_model",
    "check_model",
    "cnn",
    "forward_flops",
    "model_table",
    "training_flops",
    "validate_model_name",
]

"""The model zoo: every model is split into ``features`` (private) and a last layer ``head``."""

from fedhet.models.base import SplitModel
from fedhet.models.cnn import CNN, CNN_NAMES, cnn
from fedhet.models.flops import forward_flops, training_flops
from fedhet.models.table import ModelRow, model_table
from fedhet.models.zoo import MODEL_NAMES, build_model, check_model, validate_model_name

__all__ = [
    "CNN",
    "CNN_NAMES",
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

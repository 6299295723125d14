"""The small homogeneous model that clients of several methods share beside their own."""

from torch import nn

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.errors import UserError
from fedhet.models.base import SplitModel
from fedhet.models.names import (
    CNN_NAMES,
    MODEL_NAMES,
    is_built_in,
    plain_names,
    validate_model_name,
    with_weights,
)
from fedhet.models.zoo import build_model

SMALLEST = {IMAGE: "cnn-5", SIGNAL: "conv1d-5", TABLE: "mlp-5", TOKENS: "fasttext"}


def small_name(config: RunConfig, kind: str, chosen: str = "") -> str:
    """Which model all clients share: ``chosen``, else ``small-model``, else the kind's smallest.

    Where all clients have one and the same CNN it is that one, the papers' homogeneous setting, and
    CNN-1, which theirs is throughout, where all have one and the same of torchvision's.
    Raises UserError where clients' models are other people's, of which nothing is known.
    """
    name, models = chosen or config.small_model, plain_names(config.models)
    if with_weights(name)[1]:
        raise UserError(f"small-model: '{name}' has weights of its own, and all must start alike")
    if not name and len(set(models)) == 1 and models[0] in MODEL_NAMES:
        name = models[0] if models[0] in CNN_NAMES else CNN_NAMES[0]
    if not name:
        own = [model for model in models if not is_built_in(model)]
        if own:
            raise UserError(
                f"small-model: method={config.method} shares a small model, and '{own[0]}' does "
                f"not say which: give small-model, such as {SMALLEST[kind]} or your own "
                "module:factory"
            )
        name = SMALLEST[kind]
    validate_model_name(name, kind)
    return name


def small_model(
    config: RunConfig, inputs: Inputs, chosen: str, classes: int, d: int | None = None
) -> SplitModel:
    """A new model with features (B, d) that all clients share beside their own.

    It is :func:`small_name`'s; d is by default the run's ``representation``.
    """
    name = small_name(config, inputs.kind, chosen)
    return build_model(name, classes=classes, d=d or config.representation, inputs=inputs)


def small_extractor(
    config: RunConfig, inputs: Inputs, chosen: str, classes: int, d: int | None = None
) -> SplitModel:
    """:func:`small_model` without its header: its ``features`` are all of it."""
    model = small_model(config, inputs, chosen, classes, d)
    model.head = nn.Identity()  # type: ignore[assignment]
    return model

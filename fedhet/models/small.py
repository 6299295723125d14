"""The small homogeneous model that clients of several methods share beside their own."""

from torch import nn

from fedhet.models.base import SplitModel
from fedhet.models.cnn import CNN_NAMES
from fedhet.models.zoo import build_model
from fedhet.schema import REPRESENTATION, RunConfig


def small_model(
    config: RunConfig, chosen: str, classes: int, d: int = REPRESENTATION
) -> SplitModel:
    """A new model with features (B, d) that all clients share beside their own.

    It is ``chosen``, or if that is empty CNN-5. Where all clients have one and the same CNN it is
    that one (the papers' homogeneous setting is CNN-1 throughout), and CNN-1 for another model.
    """
    name = chosen or "cnn-5"
    if not chosen and len(set(config.models)) == 1:
        name = config.models[0] if config.models[0] in CNN_NAMES else "cnn-1"
    return build_model(name, classes=classes, d=d, image_size=config.image_size)


def small_extractor(
    config: RunConfig, chosen: str, classes: int, d: int = REPRESENTATION
) -> SplitModel:
    """:func:`small_model` without its header: its ``features`` are all of it."""
    model = small_model(config, chosen, classes, d)
    model.head = nn.Identity()  # type: ignore[assignment]
    return model

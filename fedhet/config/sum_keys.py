"""What ``secure-sum`` goes together with: every mistake in one line."""

from collections.abc import Mapping
from typing import Any

from fedhet.config.schema import RunConfig, kebab
from fedhet.errors import UserError
from fedhet.sums.masks import fraction_bits
from fedhet.sums.member import Terms

HIDE_CLASSES = "hide-classes"
# Keys of a method that went: runs made before have them, and were like today's at this value.
GONE: Mapping[str, Mapping[str, Any]] = {"fedssa": {HIDE_CLASSES: False}}
# Keys by which a server looks at single uploads, and none reaches it.
_OF_SINGLE = {
    "aggregation": "it needs every upload by itself",
    "max_weight": "no share of a mean is known",
    "max_update_norm": "no single update is seen; sum-range bounds the entries",
    "max_update_ratio": "no single update is seen; sum-range bounds the entries",
}


def replaced(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without the key that ``secure-sum`` replaced; UserError if it asks for something.

    Configurations of older runs have it, switched off.
    """
    asked = str(values.get(HIDE_CLASSES, False)).strip().lower()
    if asked not in {"false", ""}:
        raise UserError(
            f"hide-classes: '{asked}' is not allowed any more: secure-sum=masked replaces it, and "
            "hides classes, counts and rows from the server as well"
        )
    return {key: value for key, value in values.items() if key != HIDE_CLASSES}


def check(config: RunConfig, not_summed: str) -> None:
    """UserError for what does not go with sums; ``not_summed``: why the method is none, or empty.

    Keys of sums without ``secure-sum`` are left to :mod:`fedhet.config.idle_keys`.
    """
    if not config.summed:
        return
    mode = f"secure-sum={config.secure_sum}"
    if not_summed:
        raise UserError(
            f"secure-sum: '{config.secure_sum}' is not allowed with method={config.method}: "
            f"{not_summed}"
        )
    for name, why in _OF_SINGLE.items():
        value = getattr(config, name)
        if value != RunConfig.model_fields[name].default:
            raise UserError(f"{kebab(name)}: '{value}' is not allowed with {mode}: {why}")


def check_unit(config: RunConfig, *, weighs_images: bool) -> None:
    """UserError for weights by images whose unit, ``max-images``, nobody has chosen."""
    most = config.max_images
    if config.summed and weighs_images and most == RunConfig.model_fields["max_images"].default:
        raise UserError(
            f"max-images: {most} is not allowed with secure-sum={config.secure_sum} and method="
            f"{config.method}: it is the unit of weights, and {100 / most:g} of 100 images is lost "
            "in a sum's rounding; set it to the most training images that one client has"
        )


def check_cohort(config: RunConfig) -> None:
    """UserError if a round is too small, or too large, for its sum; ``clients`` is known."""
    if not config.summed:
        return
    size = config.cohort(config.clients)
    if size < config.sum_min:
        raise UserError(
            f"sum-min: {config.sum_min} is more than the {size} clients of a round "
            "(fraction x clients)"
        )
    needed = Terms(config.sum_min, config.sum_threshold).needed(size)
    if not size // 2 < needed <= size:
        raise UserError(
            f"sum-threshold: {config.sum_threshold} is not allowed with {size} clients a round: 0, "
            f"or {size // 2 + 1} to {size}"
        )
    try:
        fraction_bits(size, config.sum_range)
    except ValueError as error:
        raise UserError(f"sum-range: {config.sum_range:g} is too large: {error}") from error

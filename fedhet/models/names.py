"""The models by name and kind of input, and groups of them; no model is built or imported here."""

from collections.abc import Sequence

from fedhet import plugins
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS
from fedhet.errors import UserError, nearest

CNN_NAMES = tuple(f"cnn-{number}" for number in range(1, 6))
TORCHVISION_NAMES = ("resnet18", "mobilenet_v2", "googlenet", "shufflenet_v2_x1_0")
MODEL_NAMES: tuple[str, ...] = (*CNN_NAMES, *TORCHVISION_NAMES)  # for images
CONV1D_NAMES = tuple(f"conv1d-{number}" for number in range(1, 6))
MLP_NAMES = tuple(f"mlp-{number}" for number in range(1, 6))
TRANSFORMER_NAMES = tuple(f"transformer-{number}" for number in range(1, 6))
MODELS: dict[str, tuple[str, ...]] = {
    IMAGE: MODEL_NAMES,
    SIGNAL: (*CONV1D_NAMES, "lstm", "gru"),
    TABLE: MLP_NAMES,
    TOKENS: ("fasttext", "textcnn", "lstm", "bilstm", "gru", *TRANSFORMER_NAMES),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "@image-5": CNN_NAMES,
    "@signal-5": CONV1D_NAMES,
    "@table-5": MLP_NAMES,
    "@tokens-5": ("transformer-1", "bilstm", "lstm", "textcnn", "fasttext"),
}
DEFAULT_GROUP = {IMAGE: "@image-5", SIGNAL: "@signal-5", TABLE: "@table-5", TOKENS: "@tokens-5"}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Model names with those of a group in place of its ``@name``.

    Raises UserError for a group that does not exist.
    """
    found: list[str] = []
    for name in names:
        if name.startswith("@") and name not in GROUPS:
            raise UserError(
                f"models: group {name!r} is unknown{nearest(name, GROUPS)}; allowed: "
                f"{', '.join(GROUPS)}"
            )
        found += GROUPS.get(name, (name,))
    return tuple(found)


def is_built_in(name: str) -> bool:
    """Whether a model of that name is ours, for whatever kind."""
    return any(name in names for names in MODELS.values())


def validate_model_name(name: str, kind: str = "") -> None:
    """Accept a built-in model, of ``kind`` if one is given, an installed one or ``module:factory``.

    Imports nothing.

    Raises:
        UserError: anything else; names the nearest model.

    """
    if name in MODELS.get(kind, ()) or (not kind and is_built_in(name)):
        return
    if is_built_in(name):
        kinds = [PLURAL[own] for own, names in MODELS.items() if name in names]
        raise UserError(
            f"model {name!r} is for {' and '.join(kinds)}, and this run's examples are "
            f"{PLURAL[kind]}: {', '.join(MODELS[kind])} or your own module:factory"
        )
    if not plugins.is_own("model", name):
        known = [*(MODELS[kind] if kind else _all()), *plugins.installed("model")]
        raise UserError(
            f"model {name!r} is unknown{plugins.hint('model', name, known)}; allowed: "
            f"{', '.join(known)} or your own module:factory"
        )


def _all() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in MODELS.values() for name in names))

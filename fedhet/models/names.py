"""The models by name and kind of input, and groups of them; no model is built or imported here."""

from collections.abc import Sequence
from functools import cache

from fedhet import plugins
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS
from fedhet.errors import UserError, nearest

CNN_NAMES = tuple(f"cnn-{number}" for number in range(1, 6))
TORCHVISION_NAMES = ("resnet18", "mobilenet_v2", "googlenet", "shufflenet_v2_x1_0")
MODEL_NAMES: tuple[str, ...] = (*CNN_NAMES, *TORCHVISION_NAMES)  # for images, those listed first
TIMM = "timm:"  # and the name of one of timm's, from the extra `timm`
CONV1D_NAMES = tuple(f"conv1d-{number}" for number in range(1, 6))
MLP_NAMES = tuple(f"mlp-{number}" for number in range(1, 6))
TRANSFORMER_NAMES = tuple(f"transformer-{number}" for number in range(1, 6))
MODELS: dict[str, tuple[str, ...]] = {
    IMAGE: MODEL_NAMES,
    SIGNAL: (*CONV1D_NAMES, "lstm", "gru", "inception-time"),
    TABLE: (*MLP_NAMES, "resnet-table", "ft-transformer"),
    TOKENS: ("fasttext", "logistic", "textcnn", "lstm", "bilstm", "gru", *TRANSFORMER_NAMES),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "@image-5": CNN_NAMES,
    "@signal-5": CONV1D_NAMES,
    "@table-5": MLP_NAMES,
    "@tokens-5": ("transformer-1", "bilstm", "lstm", "textcnn", "fasttext"),
}
SMALLEST = {IMAGE: "cnn-5", SIGNAL: "conv1d-5", TABLE: "mlp-5", TOKENS: "fasttext"}
DEFAULT_GROUP = {IMAGE: "@image-5", SIGNAL: "@signal-5", TABLE: "@table-5", TOKENS: "@tokens-5"}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return model names with those of a group in place of its ``@name``; UserError for none."""
    found: list[str] = []
    for name in names:
        if name.startswith("@") and name not in GROUPS:
            raise UserError(
                f"models: group {name!r} is unknown{nearest(name, GROUPS)}; allowed: "
                f"{', '.join(GROUPS)}"
            )
        found += GROUPS.get(name, (name,))
    return tuple(found)


def with_weights(name: str) -> tuple[str, str]:
    """Return the name and the file of ``NAME [frozen] weights=FILE``; UserError for other forms."""
    plain, space, rest = name.partition(" ")
    key, _, file = rest.strip().removeprefix("frozen ").lstrip().partition("=")
    if space and (key != "weights" or not file):
        raise UserError(f"model {name!r} is not of the form NAME, or NAME [frozen] weights=FILE")
    return plain, file


def is_frozen(name: str) -> bool:
    """Return whether ``NAME frozen weights=FILE`` was given."""
    return name.partition(" ")[2].lstrip().startswith("frozen ")


def plain_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return models without their files of weights, which stay private."""
    return tuple(with_weights(name)[0] for name in names)


def is_built_in(name: str) -> bool:
    """Return whether a model of that name needs no module of the user's, for whatever kind."""
    return any(is_known(with_weights(name)[0], kind) for kind in (*MODELS, IMAGE))


def is_known(name: str, kind: str) -> bool:
    """Return whether a model of that name is for ``kind``: one that is listed, or of a library."""
    if any(name in listed for listed in MODELS.values()) or ":" in name:
        return name in MODELS[kind] or (kind == IMAGE and name.startswith(TIMM))
    return kind == IMAGE and name in of_torchvision()


@cache
def of_torchvision() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers; none if it does not fit torch.

    torchvision is imported only for a name that is not one of fedhet's own.
    """
    try:
        from torchvision import models  # noqa: PLC0415  (it takes a second)
    except (ImportError, RuntimeError):
        return TORCHVISION_NAMES
    return tuple(models.list_models(module=models))


def validate_model_name(name: str, kind: str = "") -> None:
    """Accept a built-in model, of ``kind`` if one is given, an installed one or ``module:factory``.

    Imports nothing. Raise UserError, which names the nearest model, for anything else.
    """
    name = with_weights(name)[0]
    if is_built_in(name):
        if not kind or is_known(name, kind):
            return
        kinds = [PLURAL[own] for own in MODELS if is_known(name, own)]
        raise UserError(
            f"model {name!r} is for {' and '.join(kinds)}; this run's examples are "
            f"{PLURAL[kind]}; allowed: {', '.join(MODELS[kind])} or your own module:factory"
        )
    if not plugins.is_own("model", name):
        kinds = [kind] if kind else list(MODELS)
        known = list(dict.fromkeys(one for own in kinds for one in MODELS[own]))
        known += plugins.installed("model")
        unlisted = of_torchvision() if IMAGE in kinds else ()
        hint = plugins.hint("model", name, [*known, *unlisted])
        more = ", any classifier of torchvision, timm:NAME" if IMAGE in kinds else ""
        raise UserError(
            f"model {name!r} is unknown{hint}; allowed: {', '.join(known)}{more} or your own "
            "module:factory"
        )


def small_name(config: RunConfig, kind: str, chosen: str = "") -> str:
    """Return which model all clients share: ``chosen``, ``small-model``, or the kind's smallest.

    If all clients have the same CNN it is that one, the papers' homogeneous setting; if all have
    the same of torchvision's it is CNN-1. Raises UserError if a client's model is a user's own.
    """
    name, models = chosen or config.small_model, plain_names(config.models)
    if with_weights(name)[1]:
        raise UserError(f"small-model: '{name}' is not allowed: weights= is for `models` only")
    if not name and len(set(models)) == 1 and models[0] in MODEL_NAMES:
        name = models[0] if models[0] in CNN_NAMES else CNN_NAMES[0]
    if not name:
        own = [model for model in models if not is_built_in(model)]
        if own:
            raise UserError(
                f"small-model: '' is not allowed: method={config.method} shares a small model, and "
                f"'{own[0]}' is your own: give small-model, such as {SMALLEST[kind]} or "
                "module:factory"
            )
        name = SMALLEST[kind]
    validate_model_name(name, kind)
    return name

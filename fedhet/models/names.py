"""The models by name and kind of input, and groups of them; no model is built or imported here."""

from collections.abc import Sequence

from fedhet import plugins
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS
from fedhet.errors import UserError, nearest

CNN_NAMES = tuple(f"cnn-{number}" for number in range(1, 6))
TORCHVISION_NAMES = ("resnet18", "mobilenet_v2", "googlenet", "shufflenet_v2_x1_0")
MODEL_NAMES: tuple[str, ...] = (*CNN_NAMES, *TORCHVISION_NAMES)  # for images, those listed first
# Every other classifier of torchvision: by name, so that nothing need be imported to know them.
MORE_OF_TORCHVISION = tuple(
    """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
    efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l
    efficientnet_v2_m efficientnet_v2_s inception_v3 maxvit_t mnasnet0_5 mnasnet0_75 mnasnet1_0
    mnasnet1_3 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf regnet_x_32gf
    regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf
    regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf
    resnet101 resnet152 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d
    shufflenet_v2_x0_5 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b
    swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19
    vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
    """.split()  # noqa: SIM905  (a list of eighty lines says no more)
)
TIMM = "timm:"  # and the name of one of timm's, from the extra `timm`
CONV1D_NAMES = tuple(f"conv1d-{number}" for number in range(1, 6))
HARCNN_NAMES = tuple(  # convolutions x stride, as HtFLlib's groups for sensors have them
    f"harcnn-{one}" for one in ("2x1", "2x2", "2x3", "1x1", "1x2", "1x3", "3x1", "3x2")
)
MLP_NAMES = tuple(f"mlp-{number}" for number in range(1, 6))
TRANSFORMER_NAMES = tuple(f"transformer-{number}" for number in range(1, 6))
_DEPTHS = (1, 2, 4, 8, 16)
_OF_LAYERS = tuple(f"transformer-{n}x8" for n in _DEPTHS)
_OF_HEADS = tuple(f"transformer-4x{n}" for n in _DEPTHS)
_OF_BOTH = tuple(f"transformer-{n}x{n}" for n in _DEPTHS)
TRANSFORMERS_OF_HEADS = tuple(dict.fromkeys((*_OF_LAYERS, *_OF_HEADS, *_OF_BOTH)))
RESNETS = {"resnet10": 4, "resnet8": 3, "resnet6": 2, "resnet4": 1}  # stages of one block each
MODELS: dict[str, tuple[str, ...]] = {
    IMAGE: MODEL_NAMES,
    SIGNAL: (*CONV1D_NAMES, "lstm", "gru", "inception-time"),
    TABLE: (*MLP_NAMES, "resnet-table", "ft-transformer"),
    TOKENS: ("fasttext", "logistic", "textcnn", "lstm", "bilstm", "gru", *TRANSFORMER_NAMES),
}
MORE: dict[str, tuple[str, ...]] = {  # those that have a name and are not listed first
    IMAGE: (*RESNETS, *MORE_OF_TORCHVISION),
    SIGNAL: HARCNN_NAMES,
    TABLE: (),
    TOKENS: TRANSFORMERS_OF_HEADS,
}
_EIGHT = ("cnn-1", "googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101",
          "resnet152")  # fmt: skip
GROUPS: dict[str, tuple[str, ...]] = {
    "@image-5": CNN_NAMES,
    # HtFLlib's groups (Zhang et al. 2025) by what they list: CNN-1 in place of its own small
    # network, our widths of what reads texts, and signals of any length.
    "@htfe-img-2": ("cnn-1", "resnet18"),
    "@htfe-img-3": ("resnet10", "resnet18", "resnet34"),
    "@htfe-img-4": ("cnn-1", "googlenet", "mobilenet_v2", "resnet18"),
    "@htfe-img-5": ("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"),
    "@htfe-img-8": _EIGHT,
    "@htfe-img-9": (
        "resnet4", "resnet6", "resnet8", "resnet10", "resnet18", "resnet34", "resnet50",
        "resnet101", "resnet152",
    ),
    "@htm-img-10": (*_EIGHT, "vit_b_16", "vit_b_32"),
    "@signal-5": CONV1D_NAMES,
    "@htfe-sen-2": HARCNN_NAMES[:2],
    "@htfe-sen-3": HARCNN_NAMES[:3],
    "@htfe-sen-5": (*HARCNN_NAMES[:4], HARCNN_NAMES[6]),
    "@htfe-sen-8": HARCNN_NAMES,
    "@table-5": MLP_NAMES,
    "@tokens-5": ("transformer-1", "bilstm", "lstm", "textcnn", "fasttext"),
    "@htfe-txt-2": ("fasttext", "logistic"),
    "@htfe-txt-4": ("fasttext", "logistic", "lstm", "bilstm"),
    "@htfe-txt-5-1": _OF_LAYERS,
    "@htfe-txt-5-2": _OF_HEADS,
    "@htfe-txt-5-3": _OF_BOTH,
    "@htfe-txt-6": ("fasttext", "lstm", "bilstm", "transformer-2x8", "logistic", "gru"),
}  # fmt: skip
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
    return any(is_known(with_weights(name)[0], kind) for kind in MODELS)


def is_known(name: str, kind: str) -> bool:
    """Return whether a model of that name is for ``kind``: one that is listed, or of a library."""
    of_timm = kind == IMAGE and name.startswith(TIMM)
    return of_timm or name in MODELS[kind] or name in MORE[kind]


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
        unlisted = [one for own in kinds for one in MORE[own]]
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

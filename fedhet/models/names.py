"""The models by name and kind of input, and groups of them; no model is built or imported here."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedhet import plugins
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS
from fedhet.errors import UserError, nearest

CNN_NAMES = tuple(f"cnn-{number}" for number in range(1, 6))
TORCHVISION_NAMES = ("resnet18", "mobilenet_v2", "googlenet", "shufflenet_v2_x1_0")
MODEL_NAMES: tuple[str, ...] = (*CNN_NAMES, *TORCHVISION_NAMES)  # for images, those listed first
TIMM = "timm:"  # and the name of one of timm's, from the extra `timm`
FOLDER = "hf:"  # and a folder with a network of transformers', from the extra `transformers`
MAX_RANK = 1024
CONV1D_NAMES = tuple(f"conv1d-{number}" for number in range(1, 6))
MLP_NAMES = tuple(f"mlp-{number}" for number in range(1, 6))
TRANSFORMER_NAMES: tuple[str, ...] = tuple(f"transformer-{number}" for number in range(1, 6))
MODELS: dict[str, tuple[str, ...]] = {
    IMAGE: MODEL_NAMES,
    SIGNAL: (*CONV1D_NAMES, "lstm", "gru", "inception-time"),
    TABLE: (*MLP_NAMES, "resnet-table", "ft-transformer"),
    TOKENS: ("fasttext", "textcnn", "lstm", "bilstm", "gru", *TRANSFORMER_NAMES),
}
_KINDS = {name: tuple(k for k in MODELS if name in MODELS[k]) for name in sum(MODELS.values(), ())}
GROUPS: dict[str, tuple[str, ...]] = {
    "@image-5": CNN_NAMES,
    "@signal-5": CONV1D_NAMES,
    "@table-5": MLP_NAMES,
    "@tokens-5": ("transformer-1", "bilstm", "lstm", "textcnn", "fasttext"),
}
DEFAULT_GROUP = {kind: f"@{kind}-5" for kind in MODELS}
SMALLEST = {kind: GROUPS[DEFAULT_GROUP[kind]][-1] for kind in MODELS}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return model names with those of a group in place of its ``@name``; UserError for none."""
    for name in names:
        if name.startswith("@") and name not in GROUPS:
            allowed = f"{nearest(name, GROUPS)}; allowed: {', '.join(GROUPS)}"
            raise UserError(f"models: group {name!r} is unknown{allowed}")
    return tuple(one for name in names for one in GROUPS.get(name, (name,)))


FORM = (
    "NAME [frozen | lora=RANK [layers=PATTERN]] [pool=cls|mean] [grad-checkpointing] [weights=FILE]"
)
_NAME = re.compile(
    r"(hf:.+?|\S*)"
    r"((?: frozen| untrained| grad-checkpointing| (?:lora|layers|pool)=\S+)*)(?: weights=(.+))?"
)


@dataclass(frozen=True)
class ModelName:
    """A model as it is named: ``plain``, then how it starts and what of it is trained.

    ``lora`` is the rank of the adapters, 0 for none, and ``layers`` a pattern for the names of the
    layers that have one. ``untrained`` is a network of a folder without the folder's weights.
    """

    plain: str
    weights: str
    frozen: bool
    untrained: bool
    grad_checkpointing: bool
    lora: int
    layers: str
    pool: str

    @property
    def partly(self) -> bool:
        """Return whether the network's own weights stay as they are."""
        return self.frozen or self.lora > 0

    @property
    def structure(self) -> str:
        """Return the name without its weights, and without what changes no tensor's shape."""
        pairs = {"lora": self.lora, "layers": self.layers, "pool": self.pool}
        return " ".join([self.plain, *(f"{key}={value}" for key, value in pairs.items() if value)])

    @property
    def public(self) -> str:
        """Return what a server is told: of a folder only the type of its network."""
        name = self.plain
        if name.startswith(FOLDER):
            network = (folder := folder_of(name)).name
            with suppress(OSError, ValueError, KeyError, TypeError):
                network = str(json.loads((folder / "config.json").read_text("utf-8"))["model_type"])
            name = FOLDER + re.sub(r"[^A-Za-z0-9_.-]", "", network)[:80]
        return f"{name}/lora-{self.lora}" if self.lora else name


def folder_of(name: str) -> Path:
    """Return the folder of ``hf:FOLDER``."""
    return Path(name.removeprefix(FOLDER)).expanduser()


def parse(name: str) -> ModelName:
    """Return the parts of a model's name; raise UserError unless it is of the form ``FORM``."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(f"model {name!r} is not of the form {FORM}")
    plain, behind, file = match.groups(default="")
    options = dict[str, str]()
    for word in behind.split():
        option, _, options[option] = word.partition("=")
    frozen, untrained = "frozen" in options, "untrained" in options
    again = "grad-checkpointing" in options
    rank, layers, pool = options.get("lora", ""), options.get("layers", ""), options.get("pool", "")
    lora, folder = int(rank) if rank.isdecimal() else 0, plain.startswith(FOLDER)
    for wrong, what in (
        (rank and not 0 < lora <= MAX_RANK, f"has lora={rank}: a rank is 1 to {MAX_RANK}"),
        ((frozen or rank) and not (file or untrained or folder),
         "freezes random weights: add weights=FILE"),
        (frozen and rank, "cannot be frozen and have adapters: frozen or lora=RANK"),
        (layers and not rank, "has layers= without lora=RANK"),
        (file and folder, "has weights= beside those of its folder"),
        (pool and not folder, "has pool=, which is for hf:FOLDER"),
        (pool not in ("", "cls", "mean"), f"has pool={pool}: cls or mean"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"model {name!r} {what}")
    return ModelName(plain, file, frozen, untrained, again, lora, layers, pool)


def public_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return models without files and folders, which stay private."""
    return tuple(parse(name).public for name in names)


def kinds_of(name: str) -> tuple[str, ...]:
    """Return the kinds that a model of fedhet or a library is for, by its plain name; else none."""
    if name in _KINDS or name.startswith(FOLDER):
        return _KINDS.get(name, (IMAGE, SIGNAL, TOKENS))
    of_images = name.startswith(TIMM) or (":" not in name and name in of_torchvision())
    return (IMAGE,) if of_images else ()


@cache
def of_torchvision() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers; some of them if it does not fit torch."""
    try:
        from torchvision import models  # noqa: PLC0415  (it takes a second)
    except (ImportError, RuntimeError):
        return TORCHVISION_NAMES
    return tuple(models.list_models(module=models))


def validate_model_name(name: str, kind: str = "") -> None:
    """Accept a built-in model, of ``kind`` if one is given, an installed one or ``module:factory``.

    Imports nothing. Raise UserError, which names the nearest model, for anything else.
    """
    name = parse(name).plain
    kinds = kinds_of(name)
    if (not kind or kind in kinds) if kinds else plugins.is_own("model", name):
        return
    known = [*(MODELS[kind] if kind else _KINDS), *plugins.installed("model")]
    images = kind in ("", IMAGE)
    if kinds:
        its = " and ".join(PLURAL[taken] for taken in kinds)
        what = f"is for {its}; this run's examples are {PLURAL[kind]}"
    else:
        what = f"is unknown{nearest(name, [*known, *(of_torchvision() if images else ())])}"
    more = ", any classifier of torchvision, timm:NAME" * images + ", hf:FOLDER" * (kind != TABLE)
    what += f"; allowed: {', '.join(known)}{more} or your own module:factory"
    raise UserError(f"model {name!r} {what}")


def small_name(config: RunConfig, kind: str) -> str:
    """Return which model all clients share: ``small-model``, or the kind's smallest.

    An empty ``kind`` is not known yet. If all clients have the same CNN it is that one; if all have
    the same of torchvision's, CNN-1. Raise UserError if a client's model is a user's own.
    """
    name, models = config.small_model, public_names(config.models)
    if " " in name or name.startswith(FOLDER):
        what = "weights, folders and adapters are for `models`"
        raise UserError(f"small-model: '{name}' is not allowed: {what}")
    if not name and len(set(models)) == 1 and models[0] in MODEL_NAMES:
        name = models[0] if models[0] in CNN_NAMES else CNN_NAMES[0]
    smallest = SMALLEST[kind or IMAGE]
    for model in models if not name else ():
        if not kinds_of(model.partition("/")[0]):
            why = f"method={config.method} shares a small model, and '{model}' is your own"
            give = f"give small-model, such as {smallest} or module:factory"
            raise UserError(f"small-model: '' is not allowed: {why}: {give}")
    name = name or smallest
    validate_model_name(name, kind)
    return name

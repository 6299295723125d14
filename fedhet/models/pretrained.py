"""Pretrained networks: those of transformers from a local folder, frozen ones, LoRA's adapters.

``hf:FOLDER`` is an encoder as ``save_pretrained`` writes it: config, safetensors, for texts the
tokenizer. Nothing is downloaded or unpickled, and no code of the folder is run.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.checkpoint import checkpoint

from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TOKENS, Inputs
from fedhet.errors import UserError, brief
from fedhet.models.names import ModelName, folder_of
from fedhet.models.networks import SplitModel, untouched

Usual = tuple[Sequence[float], Sequence[float]]  # mean and deviation by channel, in [0, 1]
IMAGENET: Usual = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF: Usual = (0.5,) * 3, (0.5,) * 3  # of images in [-1, 1], as torchvision's GoogLeNet takes
_READS = {  # the first argument of a network's forward, and the kind of examples that it is
    "input_ids": TOKENS, "pixel_values": IMAGE, "input_values": SIGNAL, "past_values": SIGNAL,
}  # fmt: skip
_DIGEST, _ADAPTER = "network_sha256", ".lora_"  # in names of tensors
_CAREFUL = {"local_files_only": True, "trust_remote_code": False}
_UNOPENED = (OSError, ValueError, RuntimeError, KeyError, ImportError)  # of transformers


class Backbone(SplitModel):
    """A network of a library without its last FC, then ReLU(Linear(width, d)), then ``head``.

    The representation is non-negative like the CNNs', so that prototypes of all architectures live
    in one space. A grey image is repeated to three channels. ``mean`` and ``std`` (3, 1, 1)
    normalise what the network sees; weights of its library set them. A frozen network's answers
    (B, width) may stand in place of inputs. ``still`` are the names of tensors that no training
    changes: a client's state has their digest alone.
    """

    mean: Tensor
    std: Tensor
    still: frozenset[str] = frozenset()
    frozen = False
    encode: Callable[[Sequence[str]], npt.NDArray[np.int32]] | None = None  # of texts

    def __init__(
        self, network: nn.Module, width: int, classes: int, d: int, *, cut: str, usual: Usual
    ) -> None:
        super().__init__()
        self.network, self.width, self.usual = network, width, usual
        self.cut = cut  # name of the layer that it has lost
        self.projection = nn.Linear(width, d)
        self.head = nn.Linear(d, classes)
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("std", torch.ones(3, 1, 1))

    def features(self, x: Tensor) -> Tensor:
        """Return the representations ``(B, d)``, after the ReLU, of inputs ``(B, ...)``."""
        return relu(self.projection(self.answers(x)))

    def answers(self, x: Tensor) -> Tensor:
        """Return what the network makes of inputs, (B, width); of its own answers themselves."""
        if x.dim() == 2 and x.is_floating_point():
            return x
        if x.dim() == 4:
            x = (x.expand(-1, 3, -1, -1) - self.mean) / self.std
        return cast("Tensor", self.network(x))

    def normalise_as_usual(self) -> None:
        """Normalise images as the library's weights want them, out of [-1, 1]."""
        for buffer, values, shift in zip((self.mean, self.std), self.usual, (1, 0), strict=True):
            buffer.copy_((2 * torch.tensor(values) - shift).view(3, 1, 1))

    @property
    def network_digest(self) -> str:
        """Return the digest of the tensors that stay as they are; empty if all are trained."""
        return bytes(getattr(self, _DIGEST, torch.empty(0)).tolist()).hex()


class Encoder(nn.Module):
    """A network of transformers, from a model's inputs to one vector (B, width) an example."""

    def __init__(self, model: Any, pool: str, length: int, padding: int) -> None:
        super().__init__()
        self.model, self.pool, self.length, self.padding = model, pool, length, padding
        self.reads = str(model.main_input_name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the first vector (``cls``) or the mean over positions, of texts over words."""
        mask: Tensor | None = None
        if self.reads == "input_ids":
            x = x[:, -self.length :]  # in front may stand ids of the run's own hash
            mask = x != self.padding
            mask[:, 0] = True  # a text without words must attend to something
            hidden = self.model(input_ids=x, attention_mask=mask.long()).last_hidden_state
        else:
            forms = {"input_values": x[:, 0], "past_values": x.transpose(1, 2)}
            hidden = self.model(**{self.reads: forms.get(self.reads, x)}).last_hidden_state
        if self.pool == "cls":
            return cast("Tensor", hidden[:, 0])
        if mask is not None:
            weights = mask.to(hidden.dtype).unsqueeze(2)
            return cast("Tensor", (hidden * weights).sum(dim=1) / weights.sum(dim=1))
        channels_first = self.reads == "pixel_values" and hidden.dim() == 4
        flat = hidden.flatten(2) if channels_first else hidden.flatten(1, -2).transpose(1, 2)
        return cast("Tensor", flat.mean(dim=2))


def extra(name: str, package: str, how: str = "pip install 'fedhet[transformers]'") -> Any:
    """Return a package that a model needs; raise UserError, which says ``how`` to get it."""
    try:
        return import_module(package)
    except (ImportError, RuntimeError) as error:
        raise UserError(f"model {name!r} needs {package}: {how} ({brief(error)})") from error


def from_folder(named: ModelName, classes: int, d: int, inputs: Inputs) -> Backbone:
    """Return a network of transformers with the weights of its folder, unless ``untrained``.

    Raise UserError for a folder that cannot be opened so, or a network for other examples.
    """
    name, folder, length = named.plain, folder_of(named.plain), inputs.shape[0]
    model = _opened(named, folder)
    reads, config = str(model.main_input_name), model.config
    kind, most = _READS.get(reads), getattr(config, "max_position_embeddings", length)
    has_cls = any("cls_token" in key for key, _ in model.named_parameters())
    what = PLURAL[kind] if kind else f"{reads}, which is not supported"
    what += " of one channel" * (kind == SIGNAL)
    for wrong, text in (
        (kind != inputs.kind or (reads == "input_values" and inputs.channels != 1),
         f"reads {what}; this run's examples are {inputs}"),
        (kind == IMAGE and named.pool == "cls" and not has_cls, "has no token for pool=cls"),
        (kind == TOKENS and length > most, f"length: {length} is not allowed: at most {most}"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"model {name!r} {text}")
    if any(True for _ in (getattr(model, "pooler", None) or nn.Module()).parameters()):
        model.pooler = None  # its parameters would be trained by nobody
    padding = getattr(config, "pad_token_id", None) or 0
    network = Encoder(model, named.pool or ("cls" if has_cls else "mean"), length, padding)
    blank = torch.from_numpy(inputs.blank(2))
    with untouched(network):
        width = network(blank.expand(-1, 3, -1, -1) if kind == IMAGE else blank).shape[1]
    backbone = Backbone(network.train(), width, classes, d, cut="", usual=HALF)
    if kind == TOKENS:
        backbone.encode = partial(encode, folder, length, padding)
    if kind == IMAGE:  # as the folder says, by default by one half
        with suppress(OSError, ValueError, KeyError, TypeError):
            about = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
            mean, deviation = about["image_mean"], about["image_std"]
            backbone.usual = tuple(map(float, mean)), tuple(map(float, deviation))
        backbone.normalise_as_usual()
    return backbone


def _opened(named: ModelName, folder: Path) -> Any:
    """Return the network of a folder, without code of the folder and without pickles."""
    name = named.plain
    if not (folder / "config.json").is_file():
        raise UserError(f"model {name!r}: '{folder}' has no config.json: name a model's folder")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    library = extra(name, "transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    try:
        config = library.AutoConfig.from_pretrained(folder, **_CAREFUL)
        if named.untrained:
            model = library.AutoModel.from_config(config, trust_remote_code=False)
        else:
            model = library.AutoModel.from_pretrained(
                folder, config=config, use_safetensors=True, dtype=torch.float32, **_CAREFUL
            )
    except _UNOPENED as error:
        raise UserError(f"model {name!r}: '{folder}' cannot be opened: {brief(error)}") from error
    return model.get_encoder() if getattr(config, "is_encoder_decoder", False) else model


@lru_cache(maxsize=4)
def _tokenizer(folder: Path) -> Any:
    try:
        return import_module("transformers").AutoTokenizer.from_pretrained(folder, **_CAREFUL)
    except _UNOPENED as error:
        raise UserError(f"'{folder}' has no tokenizer that opens: {brief(error)}") from error


def encode(folder: Path, length: int, padding: int, texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return ids (n, ``length``) of texts by the tokenizer of ``folder``, cut and padded."""
    ids = np.full((len(texts), length), padding, dtype=np.int32)
    if len(texts):
        rows = _tokenizer(folder)(list(texts), truncation=True, max_length=length)["input_ids"]
        for row, numbers in zip(ids, rows, strict=True):
            row[: len(numbers)] = numbers[:length]
    return ids


# --- what of a network is trained -----------------------------------------------------------------


def train_partly(model: SplitModel, named: ModelName) -> None:
    """Freeze a network (of other models: all but the head), and add adapters if it has some."""
    last: list[nn.Module] = [model.head]
    if isinstance(model, Backbone):
        last.append(model.projection)
        if named.lora:
            _adapt(model.network, named)
    elif named.lora:
        which = "networks of torchvision, timm and hf:FOLDER"
        raise UserError(f"model {named.plain!r}: lora= is for {which}")
    trained = {id(part) for module in last for part in (*module.parameters(), *module.modules())}
    for name, parameter in model.named_parameters():
        parameter.requires_grad = id(parameter) in trained or _ADAPTER in name
    for module in model.modules():
        # Under adapters dropout goes on; running statistics stay.
        fixed = isinstance(module, _BatchNorm) if named.lora else module is not model
        if fixed and id(module) not in trained:
            module.training = False
    if isinstance(model, Backbone):
        model.frozen = named.frozen
        state = model.network.state_dict(prefix="network.")
        still = {key: tensor for key, tensor in state.items() if _ADAPTER not in key}
        model.still, digest = frozenset(still), hashlib.sha256()
        for key in sorted(still):
            digest.update(key.encode() + still[key].contiguous().numpy().tobytes())
        model.register_buffer(_DIGEST, torch.tensor(list(digest.digest()), dtype=torch.uint8))


def _adapt(network: nn.Module, named: ModelName) -> None:
    """Add W x + B A x, with A drawn and B = 0, to the pattern's layers, all linear or all 1 x 1."""
    peft = extra(named.plain, "peft")
    layers = {
        path: layer for path, layer in network.named_modules()
        if (isinstance(layer, nn.Linear | nn.Embedding) or type(layer).__name__ == "Conv1D"
            or (isinstance(layer, nn.Conv2d) and layer.groups == 1))
        and not isinstance(layer, NonDynamicallyQuantizableLinear)  # read past, by attention
    }  # fmt: skip
    linear = [path for path, one in layers.items() if not isinstance(one, nn.Conv2d | nn.Embedding)]
    chosen = linear or [path for path, one in layers.items() if isinstance(one, nn.Conv2d)]
    if named.layers:
        try:
            chosen = [path for path in layers if re.search(named.layers, path)]
        except re.error as error:
            raise UserError(f"model {named.plain!r}: layers={named.layers}: {error}") from error
    if not chosen:
        what = f"is in no layer's name, such as {', '.join(list(layers)[:3])}"
        raise UserError(f"model {named.plain!r}: layers={named.layers} {what}")
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=named.lora, lora_alpha=named.lora, target_modules=chosen), network
    )


def adapters(model: nn.Module) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
    """Return A and B of each adapted layer by its name, in the order of names."""
    parameters, end = dict(model.named_parameters()), ".lora_A.default.weight"
    names = sorted(name.removesuffix(end) for name in parameters if name.endswith(end))
    other = end.replace("A", "B")
    return {name: (parameters[name + end], parameters[name + other]) for name in names}


def recompute(model: SplitModel, name: str) -> None:
    """Compute the blocks of a library's network again in the backward pass, to save memory."""
    if not isinstance(model, Backbone):
        raise UserError(f"model {name!r}: grad-checkpointing is for networks of a library")
    inside: set[nn.Module] = set()
    for module in model.network.modules():
        if isinstance(module, _BatchNorm):
            counted = "its BatchNorm would count each batch twice"
            raise UserError(f"model {name!r}: grad-checkpointing is not allowed: {counted}")
        if isinstance(module, nn.Sequential | nn.ModuleList) and module not in inside:
            inside |= {*module.modules()}
            for block in module:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)

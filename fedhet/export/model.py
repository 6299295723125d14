"""A client's inference model on its own, outside any run: rebuilt, stored, loaded again.

An exported model is a folder with ``card.yaml``, which says what the model is and what goes in and
out, and ``model.safetensors`` with the tensors that inference needs. The card is enough to build
the network again, so neither the run nor the client's private state is needed to predict.
"""

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedhet import plugins
from fedhet.clients.base import PREPARATION, MethodClient, Setup
from fedhet.config.checks import HIDE_CLASSES
from fedhet.config.load import find_method
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import Inputs, load_inputs
from fedhet.data.labels import READ_KEYS
from fedhet.data.preparation import preparation
from fedhet.errors import UserError, brief, one_line
from fedhet.files import read_yaml
from fedhet.models.names import with_weights
from fedhet.site.local_data import without_examples
from fedhet.site.state import FileStore

CARD, WEIGHTS = "card.yaml", "model.safetensors"
FORMAT = 1
# What a card raises that does not fit its weights.
_MISFITS = (KeyError, TypeError, ValueError, RuntimeError, AttributeError)
SPARE = 64 << 20  # bytes that a header may take beyond the weights: methods hold theirs otherwise
_CONFIG = (
    "method", "image-size", "models", "precision", "threads", "small-model", "representation",
    "grey", *READ_KEYS,
)  # fmt: skip


class Personalised(nn.Module):
    """What one client answers with: inputs (B, ...) as its models get them, to logits (B, C).

    Images (B, 3, s, s) are float32 in [-1, 1]. ``prepare`` makes them of stored or raw examples.

    Logits and not probabilities: equal probabilities may come of different logits, and the class
    would then not be the one that the run's accuracy counted. It owns copies of those modules and
    tensors that the method declares for inference, and nothing else.
    """

    def __init__(self, client: MethodClient) -> None:
        super().__init__()
        needs = client.inference_needs()
        names = [*needs.modules, *(name for name in (PREPARATION,) if name in client.modules)]
        modules = copy.deepcopy({name: client.modules[name] for name in names})
        self.parts = nn.ModuleDict(modules)
        for path in needs.without:
            self.parts.set_submodule(path, nn.Identity())
        for name in needs.tensors:
            self.register_buffer(name, client.tensors[name].clone())
        self.config = client.config
        self.classes = tuple(client.setup.classes)
        self.inputs = client.inputs
        self._client = copy.copy(client)
        self._client.modules = dict(self.parts.items())
        self.requires_grad_(requires_grad=False)
        self.eval()

    def prepare(self, examples: Tensor) -> Tensor:
        """Inputs (B, ...) of examples as they are stored, by what the client fitted."""
        if PREPARATION in self.parts:
            inputs: Tensor = self.parts[PREPARATION](examples)
            return inputs
        made: Tensor = preparation(self.inputs)(examples)
        return made

    def window(self) -> tuple[float, float] | None:
        """The range of values of the scans that it was trained on; None for other examples."""
        if not self.inputs.scan:
            return None
        fitted = self.parts[PREPARATION]
        return float(fitted.low), float(fitted.high)  # type: ignore[arg-type]

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, C)."""
        # Asked for anew: a buffer is another object after .to() and while it is traced.
        self._client.tensors = dict(self.named_buffers(recurse=False))
        return self._client.infer(inputs)

    def predict(self, examples: Any) -> Any:
        """Classes and probabilities as a DataFrame; see :func:`fedhet.export.predict.frame_of`.

        ``examples``: a DataFrame, a path or several, or an array of examples as they are stored.
        """
        from fedhet.export.predict import frame_of  # noqa: PLC0415  (it imports this module)

        return frame_of(self, examples)

    def parameter_count(self) -> int:
        """Trained numbers of all parts; BatchNorm's statistics are not among them."""
        return sum(parameter.numel() for parameter in self.parameters())


def rebuild(description: Mapping[str, Any], folder: Path, generation: int = 0) -> MethodClient:
    """The client of ``description`` on the CPU, as it is in a stored generation of ``folder``.

    Generation 0 is a fresh client. Raises UserError where the description says something
    impossible, Refused, KeyError or RuntimeError where the generation does not fit it.
    """
    method = find_method(str(description["method"]))
    classes = [str(name) for name in description["classes"]]
    try:
        own = description["hyper-parameters"]
        params = method.params.model_validate({k: v for k, v in own.items() if k != HIDE_CLASSES})
        config = RunConfig.model_validate({k: description[k] for k in _CONFIG if k in description})
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        key = ".".join(str(part) for part in error["loc"])
        raise UserError(f"'{folder}': {key}: '{error['input']}': {error['msg']}") from None
    inputs = _inputs(description, config)
    architecture = str(description["architecture"])
    if with_weights(architecture)[1]:  # whoever wrote it would choose which file is opened here
        raise UserError(f"'{folder}': architecture: '{architecture}' is not allowed: no weights=")
    client = method.client(
        Setup(
            config=config.model_copy(update={"params": params}),
            data=without_examples(str(description["client"]), classes, inputs),
            classes=classes,
            model=architecture,
            device=torch.device("cpu"),
            store=FileStore(folder, sync=True),
        )
    )
    client.restore(generation)
    return client


def _inputs(description: Mapping[str, Any], config: RunConfig) -> Inputs:
    """What the examples are; images where nothing is said."""
    if "inputs" not in description:
        if "image-size" not in description:
            raise KeyError("image-size")
        return Inputs.image(config.image_size, grey=config.grey)
    try:
        return load_inputs(description["inputs"])
    except ValueError as error:
        raise KeyError(str(error)) from error


def write_weights(model: Personalised, folder: Path) -> str:
    """Write ``model.safetensors``; returns its SHA-256."""
    data = save({name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()})
    (folder / WEIGHTS).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def load_model(folder: Path, *, trust: bool = False) -> tuple[Personalised, dict[str, Any]]:
    """An exported model and its card, without the run or the client's state.

    Raises UserError, in one line, if ``folder`` is no exported model or is damaged, or names code
    of others, unless this user exported it or ``trust``.
    """
    card = _read_card(folder)
    plugins.require_trust(f"model '{folder}'", card, trusted=trust or plugins.made_here(card))
    try:
        data = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(data).hexdigest() != card["sha256"]:
            raise UserError(
                f"model '{folder}': {WEIGHTS} is damaged: its SHA-256 is not the card's"
            )
        _check_size(card, len(data), folder)
        model = Personalised(rebuild(card, folder))
        weights = load(data)
        _check_weights(weights, model.state_dict(), folder)
        model.load_state_dict(weights, strict=True)
    except OSError as error:
        raise UserError(f"model '{folder}': {WEIGHTS} cannot be read: {error.strerror}") from error
    except (*_MISFITS, SafetensorError) as error:
        raise UserError(
            f"model '{folder}': {CARD} does not fit {WEIGHTS}: {brief(error)}"
        ) from error
    return model, card


def _check_size(card: Mapping[str, Any], weights: int, folder: Path) -> None:
    """UserError for a header that the weights cannot hold, before the network takes its memory."""
    d = int(card.get("representation", RunConfig.model_fields["representation"].default))
    if 4 * len(card["classes"]) * d > weights + SPARE:
        raise UserError(
            f"model '{folder}': {CARD} names {len(card['classes']):,} classes and representation "
            f"{d}, which are not those of {WEIGHTS}"
        )


def _check_weights(found: Mapping[str, Tensor], own: Mapping[str, Tensor], folder: Path) -> None:
    """UserError for other dtypes, which would be cast, and for numbers that are not finite."""
    for name in found.keys() & own.keys():
        if found[name].dtype != own[name].dtype:
            raise UserError(
                f"model '{folder}': {WEIGHTS}: '{one_line(name)}' is {found[name].dtype}, and the "
                f"model has {own[name].dtype}"
            )
        if not found[name].isfinite().all():
            raise UserError(f"model '{folder}': {WEIGHTS}: '{one_line(name)}' is not finite")


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / CARD
    if not path.is_file():
        raise UserError(
            f"'{folder}' is not an exported model: it has no {CARD}; "
            "`fedhet export RUN --all --out DIR` writes such folders"
        )
    card = read_yaml(path)
    if card.get("format") != FORMAT:
        raise UserError(f"model '{folder}': {CARD} is not of format {FORMAT}")
    return card

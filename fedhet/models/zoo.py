"""Build a model by its name: ours, a library's, a user's ``module:factory``; with weights or not.

``NAME weights=FILE`` starts from weights in safetensors; nothing is unpickled or downloaded. They
are the model's own tensors, as ``fedhet export`` writes them, or those of a library's network as
the library names them, with or without its last layer; such a network is then given images
normalised as its library does. Without a ``head`` one is drawn.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fedhet import plugins
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.errors import Damaged, UserError, brief, nearest, place
from fedhet.files import read_tensors
from fedhet.models import names
from fedhet.models.networks import NETWORKS, SplitModel, untouched
from fedhet.models.pretrained import (
    HALF,
    IMAGENET,
    Backbone,
    extra,
    from_folder,
    recompute,
    train_partly,
)

# Factory arguments besides weights=None. Auxiliary heads have no place in features().
_TORCHVISION: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
_RGB = Inputs.image(32)
EXAMPLES = {  # what a model is built for where no data set is named
    IMAGE: _RGB,
    SIGNAL: Inputs(SIGNAL, (6, 128)),
    TABLE: Inputs.table(tuple(f"x{number}" for number in range(10))),
    TOKENS: Inputs(TOKENS, (64,), 5000),
}


def build_model(name: str, *, classes: int, d: int = 500, inputs: Inputs = _RGB) -> SplitModel:
    """Return a new model in train mode on the CPU, drawn from torch's global generator.

    The caller seeds that generator (``fedhet.rng.torch_seeded``): same seed, same weights. ``name``
    is one that ``fedhet models`` lists for this kind of ``inputs``, or ``module:factory``, called
    with those of ``classes``, ``d`` and ``inputs`` (or ``image_size``) that it takes; see
    :func:`check_model`. After either may stand more, see :class:`fedhet.models.names.ModelName`.

    Raise UserError for an unknown name, one for another kind of input, a value out of range, a
    factory that breaks the contract, or weights that do not fit.
    """
    for key, value in {"classes": classes, "d": d}.items():
        if value < 1:
            raise UserError(f"model {name!r}: {key} is {value}, must be at least 1")
    names.validate_model_name(name, inputs.kind)
    named = names.parse(name)
    plain = named.plain
    try:
        if not names.kinds_of(plain):
            model = _users_own(plain, classes, d, inputs)
        elif maker := NETWORKS[inputs.kind].get(plain):
            model = maker(inputs, classes, d)
        elif plain.startswith(names.FOLDER):
            model = from_folder(named, classes, d, inputs)
        else:
            cut = _timm if plain.startswith(names.TIMM) else _torchvision
            network, width, last, usual = cut(plain, inputs)
            model = Backbone(network, width, classes, d, cut=last, usual=usual)
            check_model(model, plain, classes, d, inputs)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UserError(f"model {plain!r} takes no {inputs}: {brief(error)}") from error
    if named.weights:
        load_weights(model, plain, named.weights)
    if named.grad_checkpointing:
        recompute(model, plain)
    if named.partly:
        train_partly(model, named)
    return model


def check_model(model: object, name: str, classes: int, d: int, inputs: Inputs) -> None:
    """Raise UserError unless a model keeps the contract; it is left as it was.

    Required: a ``nn.Module`` in training mode, with a callable ``features``, two zero examples ->
    ``(2, d)`` float32, and ``head``, a ``nn.Linear(d, C)`` with bias; ``forward``, if it has one,
    equals ``head(features(x))``.
    """
    where, head = f"model {name!r}", getattr(model, "head", None)
    actual = head.extra_repr() if isinstance(head, nn.Linear) else type(head).__name__
    wanted = f"in_features={d}, out_features={classes}, bias=True"
    shape, fits = ", ".join(map(str, inputs.shape)), (torch.float32, (2, d))
    for good, what in (
        (isinstance(model, nn.Module), f"got a {type(model).__name__}, must be a torch.nn.Module"),
        (getattr(model, "training", False), "is in evaluation mode: leave out .eval()"),
        (callable(getattr(model, "features", None)),
         f"has no features(x); required: (B, {shape}) -> (B, {d})"),
        (actual == wanted, f"head is {actual}, must be a Linear of {wanted}"),
    ):  # fmt: skip
        if not good:
            raise UserError(f"{where}: {what}")
    split = cast(SplitModel, model)

    def forwards(x: Tensor) -> None:
        h: Any = split.features(x)
        answer = (h.dtype, tuple(h.shape)) if isinstance(h, Tensor) else type(h).__name__
        if answer != fits:
            raise UserError(f"{where}: features(x) of 2 examples is {answer}, must be {fits}")
        logits = split.head(h)
        full = split(x) if _has_forward(split) else logits
        if not torch.allclose(full, logits, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise UserError(f"{where}: forward(x) must equal head(features(x)), and does not")

    _of_two(split, name, inputs, forwards)


def _of_two(model: nn.Module, name: str, inputs: Inputs, forward: Callable[[Tensor], Any]) -> Any:
    """Return what ``forward`` makes of two examples (of the last id); UserError if it fails."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with untouched(model):
            last = max(0, inputs.vocabulary - 1)  # an Embedding may be too small for it
            return forward(torch.from_numpy(inputs.blank(2)).add(last).to(device))
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        what = f"a forward of two examples, {inputs}, fails: {brief(error)}{place(error)}"
        raise UserError(f"model {name!r}: {what}") from error


def _torchvision(name: str, inputs: Inputs) -> tuple[nn.Module, int, str, Any]:
    # Without its last layer; then the width before it, that layer's name, and the usual mean and
    # deviation of images.
    # Only here: a torchvision that does not fit torch must not break the CNNs.
    how = f"of the same build as torch {torch.__version__}"
    get_model = extra(name, "torchvision.models", how).get_model
    arguments = dict(_TORCHVISION.get(name, {}))
    if name.startswith("vit_"):
        arguments["image_size"] = inputs.shape[-1]
    if name.startswith("maxvit"):
        arguments["input_size"] = inputs.shape[1:]
    network = get_model(name, weights=None, num_classes=1, **arguments)
    # The last layer is the Linear or convolution with a single output.
    single = [
        (path, layer) for path, layer in network.named_modules()
        if 1 in (getattr(layer, "out_features", 0), getattr(layer, "out_channels", 0))
    ]  # fmt: skip
    path, layer = sorted(single, key=lambda pair: isinstance(pair[1], nn.Linear))[-1]
    network.set_submodule(path, nn.Identity())
    width = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    return network, cast("int", width), path, HALF if name in _TORCHVISION else IMAGENET


def _timm(name: str, inputs: Inputs) -> tuple[nn.Module, int, str, Any]:
    timm = extra(name, "timm", "pip install 'fedhet[timm]'")
    plain = name.removeprefix(names.TIMM)
    if not timm.is_model(plain):
        near = nearest(plain, timm.list_models())
        raise UserError(f"model {name!r}: timm has no model {plain!r}{near}")
    try:
        size = inputs.shape[1:]
        network = timm.create_model(plain, pretrained=False, num_classes=0, img_size=size)
    except TypeError:  # most convolutional networks take any size, and no such argument
        network = timm.create_model(plain, pretrained=False, num_classes=0)
    with untouched(network):
        answer = network(torch.from_numpy(inputs.blank(2)).expand(-1, 3, -1, -1))
    about = network.pretrained_cfg
    last = str(about.get("classifier") or "")
    return network, answer.shape[1], last, (about["mean"], about["std"])


def _users_own(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    factory = plugins.load("model", name)
    if isinstance(factory, nn.Module):  # a template, whose weights are the start
        model: Any = copy.deepcopy(factory).cpu()
    elif callable(factory):
        arguments = _what_it_takes(factory, name, classes, d, inputs)
        try:
            model = factory(**arguments)
        except (Exception, SystemExit) as error:
            call = f"factory({', '.join(f'{key}={value}' for key, value in arguments.items())})"
            why = f"called by {call}, fails: {brief(error)}{place(error)}"
            raise UserError(f"model {name!r}: its factory, {why}") from error
    else:
        raise UserError(f"model {name!r} is a {type(factory).__name__}, must be a factory")
    features = getattr(model, "features", None)
    whole = features is None or isinstance(features, nn.Module) or not hasattr(model, "head")
    if isinstance(model, nn.Module) and whole and _has_forward(model):
        model = Adopted(*_last_linear(model, name, inputs), classes, d)
    check_model(model, name, classes, d, inputs)
    if not _has_forward(model):
        model.forward = MethodType(SplitModel.forward, model)
    return cast(SplitModel, model)


class Adopted(SplitModel):
    """A user's classifier, cut before its last Linear: what that reads is the representation.

    Where it has another width than d, ReLU(Linear(width, d)) follows, and ``head`` is a new layer.
    Its tensors stay as its author lays them out: a ``view`` takes no channels-last ones.
    """

    def __init__(self, network: nn.Module, last: nn.Linear, classes: int, d: int) -> None:
        super().__init__()
        self.network, width = network, last.in_features
        self.projection = nn.Linear(width, d) if width != d else None
        fits = width == d and last.out_features == classes and last.bias is not None
        self.head = last if fits else nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the representations ``(B, d)``."""
        h: Tensor = self.network(x.contiguous())
        return h if self.projection is None else relu(self.projection(h))

    def to(self, *where: Any, **how: Any) -> "Adopted":
        """Move it; keep the order of channels."""
        how.pop("memory_format", None)
        return super().to(*where, **how) if where or how else self


def _last_linear(model: nn.Module, name: str, inputs: Inputs) -> tuple[nn.Module, nn.Linear]:
    """Return a classifier without its last Linear, whose logits it must return, and that layer."""
    linear = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear)]
    if not linear:
        raise UserError(f"model {name!r}: has no torch.nn.Linear, whose input would be shared")
    path, last = linear[-1]
    passed: list[Tensor] = []
    hook = last.register_forward_hook(lambda _, __, out: passed.append(out))
    try:
        answer = _of_two(model, name, inputs, model)
    finally:
        hook.remove()
    logits = len(passed) == 1 and isinstance(answer, Tensor) and torch.equal(answer, passed[0])
    if not logits or passed[0].shape != (2, last.out_features):
        outcome = f"of 2 examples it made {getattr(answer, 'shape', type(answer).__name__)}"
        must = f"forward(x) must return what its last Linear, '{path}', gives, of shape"
        other = f"no softmax; or have `features` and `head` ({outcome})"
        raise UserError(f"model {name!r}: {must} (B, classes): {other}")
    if not path:
        return nn.Identity(), last
    model.set_submodule(path, nn.Identity())
    return model, last


def _has_forward(model: nn.Module) -> bool:
    """Return whether somebody gave this module (or its class) a forward."""
    return "forward" in vars(model) or type(model).forward is not nn.Module.forward


def _what_it_takes(
    factory: Callable[..., Any], name: str, classes: int, d: int, inputs: Inputs
) -> dict[str, Any]:
    """Return those of our arguments that a factory takes; of square RGB images ``image_size``."""
    taken = inspect.signature(factory).parameters
    by_side = "image_size" in taken and "inputs" not in taken
    if by_side and replace(inputs, standardised=False) != Inputs.image(inputs.shape[-1]):
        what = f"{PLURAL[inputs.kind]} of shape {inputs.shape}: let it take `inputs` instead"
        raise UserError(f"model {name!r}: its factory takes image_size, and these are {what}")
    ours: dict[str, Any] = {"classes": classes, "num_classes": classes, "d": d}
    ours |= {"image_size": inputs.shape[-1]} if by_side else {"inputs": inputs}
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    return {k: v for k, v in ours.items() if k in taken or (every and k != "num_classes")}


# --- weights from a file ----------------------------------------------------------------------

_EXPORTED = "parts.model."  # how names begin in a model that was exported
_COUNTER = "num_batches_tracked"  # of BatchNorm, which some files lack and nothing here reads
_HEAD = ("head.weight", "head.bias")


def load_weights(model: SplitModel, name: str, file: str) -> None:
    """Put the tensors of ``file`` into ``model``, in place.

    Raise UserError for one that is missing, not the model's, of other shape or dtype, or infinite.
    """
    where = f"model {name!r}: weights '{file}'"
    try:
        stored, _ = read_tensors(Path(file).expanduser(), "pt")
    except (Damaged, OSError) as error:
        why = error.what if isinstance(error, Damaged) else error.strerror
        raise UserError(f"{where} cannot be read: {why}") from error
    tensors = {k.removeprefix(_EXPORTED): v for k, v in stored.items() if k.startswith(_EXPORTED)}
    target, tensors = cast("nn.Module", model), tensors or dict(stored)
    if isinstance(model, Backbone) and not any(key.startswith("network.") for key in tensors):
        target = model.network
        tensors = {key: one for key, one in tensors.items() if not key.startswith(f"{model.cut}.")}
    try:
        missing, more = target.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        hint = "if the classes differ, remove the head from the file"
        raise UserError(f"{where}: {brief(error)}; {hint}") from error
    dtypes = {key: tensor.dtype for key, tensor in target.state_dict().items()}
    wrong = [f"lacks {k!r}" for k in missing if k not in _HEAD and not k.endswith(_COUNTER)]
    wrong += [f"has {key!r}, which the model lacks" for key in more]
    wrong += [
        f"has {key!r} as {tensor.dtype}, or not finite: must be finite {dtypes[key]}"
        for key, tensor in tensors.items() if key not in more
        and not (tensor.dtype == dtypes[key] and tensor.isfinite().all())
    ]  # fmt: skip
    if wrong:
        raise UserError(f"{where}: the file {wrong[0]}")
    if isinstance(model, Backbone) and target is not model:
        model.normalise_as_usual()


# --- the small model that clients of several methods share ----------------------------------


def small_model(
    config: RunConfig, inputs: Inputs, classes: int, d: int = 0, *, header: bool = True
) -> SplitModel:
    """Return a new model of :func:`small_name`, d by default the run's, maybe without a header."""
    name, d = names.small_name(config, inputs.kind), d or config.representation
    model = build_model(name, classes=classes, d=d, inputs=inputs)
    if not header:
        model.head = nn.Identity()  # type: ignore[assignment]
    return model

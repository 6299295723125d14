"""Build a model by its name: ours, a library's, a user's ``module:factory``; with weights or not.

``NAME weights=FILE`` starts from weights that somebody trained. The file is safetensors; nothing is
unpickled and nothing downloaded. It holds the model's own tensors by their names, as ``fedhet
export`` writes them. Of a network of torchvision or timm the tensors of the network alone will do,
as its library names them, with or without the last layer. Such a network is then fed with images
normalised as its library does. ``head`` may be missing and is then drawn: other classes need
another. ``NAME frozen weights=FILE`` trains only what stands after the network (of other models:
the head), ``NAME lora=RANK weights=FILE`` adapters of its layers as well
(:mod:`fedhet.models.pretrained`).
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
from fedhet.models.pretrained import HALF, Backbone, extra, from_folder, train_partly

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

    The caller seeds that generator (``fedhet.rng.torch_seeded``): same seed, same weights. In train
    mode BatchNorm needs batches of at least two examples. A user's model is only typed as
    SplitModel; if it has no ``forward`` of its own it gets ``head(features(x))``.

    ``name`` is one that ``fedhet models`` lists for this kind of ``inputs``, or ``module:factory``,
    called as ``factory(classes=C, d=d, inputs=inputs)``, or with ``image_size=s`` in place of
    ``inputs`` if that is what it takes; see :func:`check_model`. After either may stand
    more, see :class:`fedhet.models.names.ModelName`.

    Raise UserError for an unknown name, one for another kind of input, a value out of range, an
    unusable torchvision, a factory that breaks the contract, or weights that do not fit.
    """
    for key, value in {"classes": classes, "d": d}.items():
        if value < 1:
            raise UserError(f"model {name!r}: {key} is {value}, must be at least 1")
    names.validate_model_name(name, inputs.kind)
    named = names.parse(name)
    plain = named.plain
    if named.pool and not plain.startswith(names.FOLDER):
        raise UserError(f"model {plain!r}: pool= is for hf:FOLDER")
    try:
        if not names.kinds_of(plain):
            model = _users_own(plain, classes, d, inputs)
        elif own := NETWORKS[inputs.kind].get(plain):
            model = own(inputs, classes, d)
        elif plain.startswith(names.FOLDER):
            model = from_folder(named, classes, d, inputs)
        else:
            make = _timm if plain.startswith(names.TIMM) else _torchvision
            model = make(plain, classes, d, inputs)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UserError(f"model {plain!r} takes no {_sized(inputs)}: {brief(error)}") from error
    if named.weights:
        load_weights(model, plain, named.weights)
    if named.partly or named.grad_checkpointing:
        train_partly(model, named)
    return model


def check_model(model: object, name: str, classes: int, d: int, inputs: Inputs) -> None:
    """Raise UserError unless a model keeps the contract; it is left as it was.

    Required: a ``nn.Module`` in training mode, with a callable ``features``, two zero examples ->
    ``(2, d)`` float32, and ``head``, a ``nn.Linear(d, C)`` with bias; ``forward``, if it has one,
    equals ``head(features(x))``.
    """
    where, head = f"model {name!r}", getattr(model, "head", None)
    actual = type(head).__name__
    if isinstance(head, nn.Linear):
        without = " without bias" * (cast("Tensor | None", head.bias) is None)
        actual = f"Linear({head.in_features}, {head.out_features}){without}"
    wanted, shape = f"Linear({d}, {classes})", ", ".join(map(str, inputs.shape))
    for good, what in (
        (isinstance(model, nn.Module), f"got a {type(model).__name__}, must be a torch.nn.Module"),
        (getattr(model, "training", False), "is in evaluation mode: leave out .eval()"),
        (callable(getattr(model, "features", None)),
         f"has no features(x); required: (B, {shape}) -> (B, {d})"),
        (actual == wanted, f"head is {actual}, must be {wanted} with bias"),
    ):  # fmt: skip
        if not good:
            raise UserError(f"{where}: {what}")
    split, fits = cast(SplitModel, model), f"float32 of shape {(2, d)}"

    def forwards(x: Tensor) -> None:
        h: Any = split.features(x)
        answer = _form(h) if isinstance(h, Tensor) else type(h).__name__
        if answer != fits:
            raise UserError(f"{where}: features(x) of 2 examples is {answer}, must be {fits}")
        logits, full = split.head(h), split(x) if _has_forward(split) else split.head(h)
        same = isinstance(full, Tensor) and full.shape == logits.shape
        if not same or not torch.allclose(full, logits, rtol=1e-3, atol=1e-4, equal_nan=True):
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
        what = f"a forward of two {_sized(inputs)} fails: {brief(error)}{place(error)}"
        raise UserError(f"model {name!r}: {what}") from error


def _torchvision(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    try:  # only here: a torchvision that does not fit torch must not break the CNNs
        from torchvision.models import get_model  # noqa: PLC0415  (a second)
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"model {name!r} needs a torchvision of the same build as torch {torch.__version__}: "
            f"{brief(error)}"
        ) from error
    arguments = dict(_TORCHVISION.get(name, {}))
    if name.startswith("vit_"):
        if inputs.shape[1] != inputs.shape[2]:
            raise UserError(f"model {name!r} needs square images; these are {_sized(inputs)}")
        arguments["image_size"] = inputs.shape[-1]
    if name.startswith("maxvit"):
        arguments["input_size"] = inputs.shape[1:]
    network = get_model(name, weights=None, num_classes=1, **arguments)
    width, cut = _cut(network)
    model = Backbone(network, width, classes, d, cut=cut)
    if name in _TORCHVISION:
        model.usual = HALF
    if name not in names.TORCHVISION_NAMES:  # of those it is known that they take any size
        check_model(model, name, classes, d, inputs)
    return model


def _timm(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    timm = extra(name, "timm")
    own = name.removeprefix(names.TIMM)
    if not timm.is_model(own):
        raise UserError(
            f"model {name!r}: timm has no model {own!r}{nearest(own, timm.list_models())}"
        )
    try:
        size = inputs.shape[1:]
        network = timm.create_model(own, pretrained=False, num_classes=0, img_size=size)
    except TypeError:  # most convolutional networks take any size, and no such argument
        network = timm.create_model(own, pretrained=False, num_classes=0)
    with untouched(network):
        answer = network(torch.from_numpy(inputs.blank(2)).expand(-1, 3, -1, -1))
    if answer.dim() != 2:
        raise UserError(f"model {name!r} is no classifier: of two images it makes {answer.shape}")
    cut = str(network.pretrained_cfg.get("classifier") or "")
    model = Backbone(network, answer.shape[1], classes, d, cut=cut)
    model.usual = network.pretrained_cfg["mean"], network.pretrained_cfg["std"]
    return model


def _cut(network: nn.Module) -> tuple[int, str]:
    """Put Identity in place of the last layer, a Linear or SqueezeNet's convolution.

    Return how many features it took, and its name. It is the one with a single output.
    """
    single = [
        (name, layer) for name, layer in network.named_modules()
        if 1 in (getattr(layer, "out_features", 0), getattr(layer, "out_channels", 0))
    ]  # fmt: skip
    name, layer = sorted(single, key=lambda pair: isinstance(pair[1], nn.Linear))[-1]
    network.set_submodule(name, nn.Identity())
    width = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    return cast("int", width), name


def _sized(inputs: Inputs) -> str:
    if inputs.kind == IMAGE:
        return f"{inputs.shape[1]} x {inputs.shape[2]} images"
    ids = f" with ids up to {inputs.vocabulary - 1}" if inputs.vocabulary else ""
    return f"{PLURAL[inputs.kind]} of shape {inputs.shape}{ids}"


def _users_own(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    factory = plugins.load("model", name)
    if isinstance(factory, nn.Module):  # a template, whose weights are the start
        model: Any = copy.deepcopy(factory).cpu()
    elif callable(factory):
        arguments = _what_it_takes(factory, name, classes, d, inputs)
        try:
            model = factory(**arguments)
        except (Exception, SystemExit) as error:
            shown = ", ".join(f"{key}={value}" for key, value in arguments.items())
            raise UserError(
                f"model {name!r}: its factory, called by factory({shown}), fails: {brief(error)}"
                f"{place(error)}"
            ) from error
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
    """Put Identity in place of a classifier's last Linear; return both.

    Raise UserError if it has none, or does not answer with what that gives.
    """
    linear = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear)]
    if not linear:
        raise UserError(f"model {name!r}: has no torch.nn.Linear, whose input would be shared")
    path, last = linear[-1]
    given: list[Tensor] = []
    hook = last.register_forward_hook(lambda _, __, out: given.append(out))
    try:
        answer = _of_two(model, name, inputs, model)
    finally:
        hook.remove()
    logits = len(given) == 1 and isinstance(answer, Tensor) and torch.equal(answer, given[0])
    if not logits or given[0].shape != (2, last.out_features):
        raise UserError(
            f"model {name!r}: forward(x) must return what its last Linear, '{path}', gives, of "
            f"shape (B, classes): no softmax after it; or give it `features(x)` and `head` (of 2 "
            f"examples it made {getattr(answer, 'shape', type(answer).__name__)})"
        )
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
    """Return the arguments for a factory: those of ours whose names are among its parameters.

    It may take the ``image_size`` of square RGB images instead of ``inputs``.
    """
    taken = inspect.signature(factory).parameters
    by_side = "image_size" in taken and "inputs" not in taken
    if by_side and replace(inputs, standardised=False) != Inputs.image(inputs.shape[-1]):
        raise UserError(
            f"model {name!r}: its factory takes image_size, and this run's examples are "
            f"{PLURAL[inputs.kind]} of shape {inputs.shape}: let it take `inputs` instead"
        )
    ours: dict[str, Any] = {"classes": classes, "num_classes": classes, "d": d}
    ours |= {"image_size": inputs.shape[-1]} if by_side else {"inputs": inputs}
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    return {k: v for k, v in ours.items() if k in taken or (every and k != "num_classes")}


# --- weights from a file ----------------------------------------------------------------------

_EXPORTED = "parts.model."  # how names begin in a model that was exported
_COUNTER = "num_batches_tracked"  # of BatchNorm, which some files lack and nothing here reads
_HEAD = ("head.weight", "head.bias")
_NORMALISED = ("mean", "std")  # of a Backbone; older files lack them


def load_weights(model: SplitModel, name: str, file: str) -> None:
    """Put the tensors of ``file`` into ``model``, in place, if every one fits.

    Otherwise raise UserError, which names the file and the first tensor that is missing, is not
    the model's, has another shape or dtype, or is not finite.
    """
    where = f"model {name!r}: weights '{file}'"
    try:
        found, _ = read_tensors(Path(file).expanduser(), "pt")
    except Damaged as error:
        raise UserError(f"model {name!r}: weights {error}") from error
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}") from error
    own = {k.removeprefix(_EXPORTED): v for k, v in found.items() if k.startswith(_EXPORTED)}
    own, target, optional = own or dict(found), cast(nn.Module, model), {*_HEAD, *_NORMALISED}
    if isinstance(model, Backbone) and not any(key.startswith("network.") for key in own):
        target, optional = model.network, set()
        own = {key: one for key, one in own.items() if not key.startswith(f"{model.cut}.")}
    wanted = target.state_dict()
    optional |= {key for key in wanted if key.rpartition(".")[2] == _COUNTER}
    missing = [key for key in wanted if key not in own and key not in optional]
    more = [key for key in own if key not in wanted]
    if missing or more:
        what = f"lacks {missing[0]!r}" if missing else f"has {more[0]!r}, which the model lacks"
        raise UserError(
            f"{where}: the file {what}; it has {len(own)} tensors, the model {len(wanted)}"
        )
    for key, tensor in own.items():
        what = "" if torch.isfinite(tensor).all() else "holds NaN or infinity"
        if _form(tensor) != _form(wanted[key]):
            what = f"is {_form(tensor)}, must be {_form(wanted[key])}"
            what += "; if the classes differ, remove the head from the file" * (key in _HEAD)
        if what:
            raise UserError(f"{where}: {key!r} {what}")
    target.load_state_dict({**wanted, **own})
    if isinstance(model, Backbone) and target is model.network:
        model.normalise_as_usual()


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


# --- the small model that clients of several methods share ----------------------------------


def small_model(
    config: RunConfig, inputs: Inputs, classes: int, d: int | None = None
) -> SplitModel:
    """Return a new model of :func:`small_name`; d is by default the run's ``representation``."""
    name = names.small_name(config, inputs.kind)
    return build_model(name, classes=classes, d=d or config.representation, inputs=inputs)


def small_extractor(
    config: RunConfig, inputs: Inputs, classes: int, d: int | None = None
) -> SplitModel:
    """Return a new :func:`small_model` without its header."""
    model = small_model(config, inputs, classes, d)
    model.head = nn.Identity()  # type: ignore[assignment]
    return model

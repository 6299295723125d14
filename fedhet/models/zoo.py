"""Models by name, each built for a kind of input; a user's own ``module:factory`` among them."""

import inspect
from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import relu
from torch.nn.parameter import is_lazy

from fedhet import plugins
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.errors import UserError, brief, nearest
from fedhet.models.base import SplitModel, untouched
from fedhet.models.cnn import cnn
from fedhet.models.names import (
    CNN_NAMES,
    RESNETS,
    TIMM,
    TORCHVISION_NAMES,
    is_built_in,
    validate_model_name,
    with_weights,
)
from fedhet.models.rows import table_model
from fedhet.models.signals import signal_model
from fedhet.models.tokens import token_model
from fedhet.models.weights import load_weights

# Factory arguments besides weights=None. Auxiliary heads have no place in features().
_TORCHVISION: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
_FACTORIES: dict[str, Callable[[str, Inputs, int, int], SplitModel]] = {
    SIGNAL: signal_model,
    TABLE: table_model,
    TOKENS: token_model,
}


class Backbone(SplitModel):
    """A network of a library without its last FC, then ReLU(Linear(width, d)), then ``head``.

    The ReLU makes the representation non-negative like the CNNs', so that prototypes and nested
    representations of different architectures live in the same space. Dropout before the last FC
    (MobileNetV2, GoogLeNet) stays.
    """

    def __init__(self, network: nn.Module, width: int, classes: int, d: int, *, cut: str) -> None:
        super().__init__()
        self.network = network
        self.cut = cut  # name of the layer that it has lost
        self.projection = nn.Linear(width, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the images ``(B, 3, s, s)``."""
        return relu(self.projection(self.network(x)))


def build_model(
    name: str, *, classes: int, d: int = 500, image_size: int = 32, inputs: Inputs | None = None
) -> SplitModel:
    """Build a model in train mode on the CPU; weights come from torch's global generator.

    The caller seeds that generator (``fedhet.rng.torch_seeded``): same seed, same weights.
    BatchNorm's running statistics are buffers of this model; of a client's own model they stay with
    it, and only a model that is shared as a whole is sent with them. In train mode BatchNorm needs
    batches of at least two examples.

    Args:
        name: one that ``fedhet models`` lists for this kind of input, or ``module:factory``, called
            as ``factory(classes=C, d=d, inputs=inputs)``, or with ``image_size=s`` in place of
            ``inputs`` if that is what it takes; :func:`check_model` says what it must return. After
            either may stand `` weights=FILE``, see :mod:`fedhet.models.weights`.
        classes: C, number of classes, >= 1.
        d: representation dimension, >= 1.
        image_size: s, height and width of the images in pixels, >= 1 (CNNs: >= 16), for those who
            give no ``inputs``.
        inputs: what the examples are; by default square RGB images.

    Returns:
        A module with ``features`` and ``head``. A user's is only typed as SplitModel; where it has
        no ``forward`` of its own it gets ``head(features(x))``.

    Raises:
        UserError: unknown name, one for another kind of input, value out of range, torchvision
            unusable, a user's factory that does not do what is required, or a file of weights
            that does not fit.

    """
    for key, value in {"classes": classes, "d": d, "image-size": image_size}.items():
        if value < 1:
            raise UserError(f"model {name!r}: {key} is {value}, must be at least 1")
    inputs = inputs or Inputs.image(image_size)
    validate_model_name(name, inputs.kind)
    name, weights = with_weights(name)
    model = _drawn(name, classes, d, inputs)
    if weights:
        load_weights(model, name, weights)
    return model


def _drawn(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    if name in CNN_NAMES:
        return cnn(name, classes, d, shape=inputs.shape)
    if not is_built_in(name):
        return _users_own(name, classes, d, inputs)
    if inputs.kind != IMAGE:
        return _FACTORIES[inputs.kind](name, inputs, classes, d)
    if name.startswith(TIMM):
        return _timm(name, classes, d, inputs)
    return _torchvision(name, classes, d, inputs)


def check_model(model: object, name: str, classes: int, d: int, inputs: Inputs) -> None:
    """Check that a model keeps the contract; it is left as it was.

    Required: a ``nn.Module`` with a callable ``features``, two zero examples -> ``(2, d)`` float32,
    and ``head``, a ``nn.Linear(d, C)`` with bias; ``forward``, if it has one, equals
    ``head(features(x))``.

    Raises:
        UserError: one line naming the model, what is wrong and what is required.

    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model {name!r}: got a {type(model).__name__}, must be a torch.nn.Module")
    _check_trainable(model, name)
    if not callable(getattr(model, "features", None)):
        shape = ", ".join(str(side) for side in inputs.shape)
        raise UserError(f"model {name!r}: has no features(x); required: (B, {shape}) -> (B, {d})")
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear):
        raise UserError(
            f"model {name!r}: head is {type(head).__name__}, must be nn.Linear({d}, {classes})"
        )
    bias = cast("torch.Tensor | None", head.bias)
    if (head.in_features, head.out_features) != (d, classes) or bias is None:
        without = "" if bias is not None else " without bias"
        raise UserError(
            f"model {name!r}: head is Linear({head.in_features}, {head.out_features}){without}, "
            f"must be Linear({d}, {classes}) with bias"
        )
    _check_forward(cast(SplitModel, model), name, d, inputs)


def _check_trainable(model: nn.Module, name: str) -> None:
    """UserError for a model that cannot be trained as it is."""
    for path, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UserError(
                f"model {name!r}: '{path}' is of a lazy layer, which has no weights yet: give the "
                "layer its input size"
            )
        if parameter.is_complex():
            raise UserError(f"model {name!r}: '{path}' is complex, weights must be real numbers")
    if not model.training:
        raise UserError(
            f"model {name!r} is in evaluation mode, in which nothing of it would be trained as "
            "usual: leave out .eval(), and freeze single layers instead"
        )


def _check_forward(model: SplitModel, name: str, d: int, inputs: Inputs) -> None:
    """One forward of two zero examples; the shapes and ``forward == head o features``."""
    try:
        with untouched(model):
            x = torch.from_numpy(inputs.blank(2)).to(model.head.weight.device)
            h = model.features(x)
            _check_tensor(h, name, d)
            logits = model.head(h)
            full = model(x) if _has_forward(model) else logits
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model {name!r}: a forward of two {_sized(inputs)} fails: {brief(error)}"
        ) from error
    same = isinstance(full, torch.Tensor) and full.shape == logits.shape
    if not same or not torch.allclose(full, logits, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise UserError(f"model {name!r}: forward(x) is not head(features(x)), as it must be")


def _check_tensor(h: object, name: str, d: int) -> None:
    if not isinstance(h, torch.Tensor):
        got = type(h).__name__
    elif h.shape != (2, d) or h.dtype != torch.float32:
        got = f"{str(h.dtype).removeprefix('torch.')} of shape {tuple(h.shape)}"
    else:
        return
    raise UserError(
        f"model {name!r}: features(x) of 2 examples is {got}, must be float32 of shape (2, {d})"
    )


def _torchvision(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    try:  # only here: a torchvision that does not fit torch must not break the CNNs
        from torchvision.models import get_model  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"model {name!r} needs a torchvision of the same build as torch {torch.__version__}: "
            f"{brief(error)}"
        ) from error
    if inputs.channels != 3:  # noqa: PLR2004
        raise UserError(f"model {name!r} takes RGB images: say grey=false, or take a CNN")
    arguments = dict(_TORCHVISION.get(name, {}))
    if name.startswith("vit_") and inputs.shape[1] != inputs.shape[2]:
        raise UserError(f"model {name!r} takes square images, and these are {_sized(inputs)}")
    if name.startswith("vit_"):
        arguments["image_size"] = inputs.shape[-1]
    if name.startswith("maxvit"):
        arguments["input_size"] = inputs.shape[1:]
    network: nn.Module
    try:
        if name in RESNETS:
            network = _short_resnet(RESNETS[name])
        else:
            network = get_model(name, weights=None, num_classes=1, **arguments)
    except (ValueError, AssertionError) as error:
        raise UserError(f"model {name!r} takes no {_sized(inputs)}: {brief(error)}") from error
    width, cut = _cut(network)
    model = Backbone(network, width, classes, d, cut=cut)
    if name not in TORCHVISION_NAMES:  # of those it is known that they take any size
        _check_forward(model, name, d, inputs)
    return model


def _short_resnet(stages: int) -> nn.Module:
    """A ResNet of torchvision's with one block in each of its first ``stages`` stages, of four."""
    from torchvision.models.resnet import BasicBlock, ResNet  # noqa: PLC0415

    network: nn.Module = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=1)
    for stage in range(stages, 4):
        setattr(network, f"layer{stage + 1}", nn.Identity())
    network.fc = nn.Linear(64 * 2 ** (stages - 1), 1)
    return network


def _timm(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    try:
        timm: Any = import_module("timm")  # an extra
    except ImportError as error:
        raise UserError(
            f"model {name!r} needs timm: pip install 'fedhet[timm]' ({brief(error)})"
        ) from error
    own = name.removeprefix(TIMM)
    if not timm.is_model(own):
        raise UserError(
            f"model {name!r}: timm has no model {own!r}{nearest(own, timm.list_models())}"
        )
    size = {"img_size": inputs.shape[1:]}
    channels = {"in_chans": inputs.channels}
    try:
        try:
            network = timm.create_model(own, pretrained=False, num_classes=0, **channels, **size)
        except TypeError:  # most convolutional networks take any size, and no such argument
            network = timm.create_model(own, pretrained=False, num_classes=0, **channels)
        with untouched(network):
            answer = network(torch.from_numpy(inputs.blank(2)))
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UserError(f"model {name!r} takes no {_sized(inputs)}: {brief(error)}") from error
    if answer.dim() != 2:  # noqa: PLR2004  (B, width)
        raise UserError(
            f"model {name!r} answers with {tuple(answer.shape)} for two images: a classifier is "
            "needed, whose features are (B, width)"
        )
    cut = str(network.pretrained_cfg.get("classifier") or "")
    return Backbone(network, answer.shape[1], classes, d, cut=cut)


def _cut(network: nn.Module) -> tuple[int, str]:
    """Replace the last Linear, or SqueezeNet's convolution in its place, by Identity, in place.

    Returns how many features it took, and its name.
    """
    for kind in (nn.Linear, nn.Conv2d):
        found = [
            (parent, f"{path}.{key}".lstrip("."), child)
            for path, parent in network.named_modules()
            for key, child in parent.named_children()
            if isinstance(child, kind)
        ]
        last = [(p, k, c) for p, k, c in found if 1 in (getattr(c, "out_features", 0),
                                                        getattr(c, "out_channels", 0))]  # fmt: skip
        if last:
            parent, name, layer = last[-1]
            setattr(parent, name.rpartition(".")[2], nn.Identity())
            width: int = getattr(layer, "in_features", 0) or getattr(layer, "in_channels", 0)
            return width, name
    raise AssertionError("every classifier ends in a layer with as many outputs as classes")


def _sized(inputs: Inputs) -> str:
    if inputs.kind == IMAGE:
        return f"{inputs.shape[1]} x {inputs.shape[2]} images"
    return f"{PLURAL[inputs.kind]} of shape {inputs.shape}"


def _users_own(name: str, classes: int, d: int, inputs: Inputs) -> SplitModel:
    factory = plugins.load("model", name)
    if not callable(factory):
        raise UserError(f"model {name!r} is a {type(factory).__name__}, must be a factory")
    arguments = {"classes": classes, "d": d} | _what_it_takes(factory, name, inputs)
    try:
        model = factory(**arguments)
    except Exception as error:
        shown = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise UserError(
            f"model {name!r}: its factory, called with {shown}, fails: {brief(error)}"
        ) from error
    check_model(model, name, classes, d, inputs)
    if not _has_forward(model):
        model.forward = MethodType(SplitModel.forward, model)
    return cast(SplitModel, model)


def _has_forward(model: nn.Module) -> bool:
    """Whether somebody gave this module (or its class) a forward."""
    return "forward" in vars(model) or type(model).forward is not nn.Module.forward


def _what_it_takes(factory: Callable[..., Any], name: str, inputs: Inputs) -> dict[str, Any]:
    """``inputs``, or the ``image_size`` that factories took when there were images only."""
    try:
        taken = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # nobody can say: as it always was, where that makes sense
        return {"image_size": inputs.shape[-1]} if inputs.kind == IMAGE else {"inputs": inputs}
    if "inputs" in taken:
        return {"inputs": inputs}
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    plain = inputs.kind == IMAGE and inputs == Inputs.image(inputs.shape[-1])
    if plain and ("image_size" in taken or anything):
        return {"image_size": inputs.shape[-1]}
    if anything:
        return {"inputs": inputs}
    if "image_size" in taken:
        raise UserError(
            f"model {name!r}: its factory takes image_size, and this run's examples are "
            f"{PLURAL[inputs.kind]} of shape {inputs.shape}: let it take `inputs` instead"
        )
    return {}

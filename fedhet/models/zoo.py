"""All models by name: the five CNNs, four of torchvision's, and a user's own ``module:factory``."""

from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import relu

from fedhet import plugins
from fedhet.errors import UserError, brief
from fedhet.models.base import SplitModel, untouched
from fedhet.models.cnn import CNN_NAMES, cnn

# Factory arguments besides weights=None. GoogLeNet's auxiliary heads have no place in features().
_TORCHVISION: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "mobilenet_v2": {},
    "googlenet": {"aux_logits": False, "init_weights": False},
    "shufflenet_v2_x1_0": {},
}
MODEL_NAMES: tuple[str, ...] = (*CNN_NAMES, *_TORCHVISION)


class Backbone(SplitModel):
    """A torchvision network without its last FC, then ReLU(Linear(width, d)), then ``head``.

    The ReLU makes the representation non-negative like the CNNs', so that prototypes and nested
    representations of different architectures live in the same space. Dropout before the last FC
    (MobileNetV2, GoogLeNet) stays.
    """

    def __init__(self, network: nn.Module, width: int, classes: int, d: int) -> None:
        super().__init__()
        self.network = network
        self.projection = nn.Linear(width, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the images ``(B, 3, s, s)``."""
        return relu(self.projection(self.network(x)))


def validate_model_name(name: str) -> None:
    """Accept one of :data:`MODEL_NAMES`, an installed one or ``module:factory``; imports nothing.

    Raises:
        UserError: anything else; names the nearest model.

    """
    if name in MODEL_NAMES:
        return
    if not plugins.is_own("model", name):
        known = [*MODEL_NAMES, *plugins.installed("model")]
        raise UserError(
            f"model {name!r} is unknown{plugins.hint('model', name, known)}; allowed: "
            f"{', '.join(known)} or your own module:factory"
        )


def build_model(name: str, *, classes: int, d: int = 500, image_size: int = 32) -> SplitModel:
    """Build a model in train mode on the CPU; weights come from torch's global generator.

    The caller seeds that generator (``fedhet.rng.torch_seeded``): same seed, same weights.
    BatchNorm's running statistics are buffers of this model; they are private to a client and no
    method ever exchanges them. In train mode BatchNorm needs batches of at least two images.

    Args:
        name: one of :data:`MODEL_NAMES`, or ``module:factory``, called as
            ``factory(classes=C, d=d, image_size=s)``; :func:`check_model` says what it must return.
        classes: C, number of classes, >= 1.
        d: representation dimension, >= 1.
        image_size: s, height and width of the images in pixels, >= 1 (CNNs: >= 16).

    Returns:
        A module with ``features`` and ``head``. A user's is only typed as SplitModel; where it has
        no ``forward`` of its own it gets ``head(features(x))``.

    Raises:
        UserError: unknown name, value out of range, torchvision unusable, or a user's factory that
            does not do what is required.

    """
    validate_model_name(name)
    for key, value in {"classes": classes, "d": d, "image-size": image_size}.items():
        if value < 1:
            raise UserError(f"model {name!r}: {key} is {value}, must be at least 1")
    if name in CNN_NAMES:
        return cnn(name, classes, d, image_size)
    if name in _TORCHVISION:
        return _torchvision(name, classes, d)
    return _users_own(name, classes, d, image_size)


def check_model(model: object, name: str, classes: int, d: int, image_size: int) -> None:
    """Check that a model keeps the contract; it is left as it was.

    Required: a ``nn.Module`` with a callable ``features``, zeros ``(2, 3, s, s)`` -> ``(2, d)``
    float32, and ``head``, a ``nn.Linear(d, C)`` with bias; ``forward``, if it has one, equals
    ``head(features(x))``.

    Raises:
        UserError: one line naming the model, what is wrong and what is required.

    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model {name!r}: got a {type(model).__name__}, must be a torch.nn.Module")
    if not callable(getattr(model, "features", None)):
        raise UserError(f"model {name!r}: has no features(x); required: (B, 3, s, s) -> (B, {d})")
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
    _check_forward(cast(SplitModel, model), name, d, image_size)


def _check_forward(model: SplitModel, name: str, d: int, image_size: int) -> None:
    """One forward of two black images; the shapes and ``forward == head o features``."""
    size = image_size
    try:
        with untouched(model):
            x = torch.zeros(2, 3, size, size, device=model.head.weight.device)
            h = model.features(x)
            _check_tensor(h, name, d)
            logits = model.head(h)
            full = model(x) if _has_forward(model) else logits
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model {name!r}: a forward of two {size} x {size} images fails: {brief(error)}"
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
        f"model {name!r}: features(x) of 2 images is {got}, must be float32 of shape (2, {d})"
    )


def _torchvision(name: str, classes: int, d: int) -> SplitModel:
    try:  # only here: a torchvision that does not fit torch must not break the CNNs
        from torchvision.models import get_model  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"model {name!r} needs a torchvision of the same build as torch {torch.__version__}: "
            f"{brief(error)}"
        ) from error
    network: nn.Module = get_model(name, weights=None, num_classes=1, **_TORCHVISION[name])
    return Backbone(network, _cut(network), classes, d)


def _cut(network: nn.Module) -> int:
    """Replace the last Linear by Identity, in place; returns how many features it took."""
    linears = [
        (parent, key, child)
        for parent in network.modules()
        for key, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    assert len(linears) == 1, "each of these networks has one fully connected layer"
    parent, key, last = linears[0]
    setattr(parent, key, nn.Identity())
    return last.in_features


def _users_own(name: str, classes: int, d: int, image_size: int) -> SplitModel:
    factory = plugins.load("model", name)
    if not callable(factory):
        raise UserError(f"model {name!r} is a {type(factory).__name__}, must be a factory")
    try:
        model = factory(classes=classes, d=d, image_size=image_size)
    except Exception as error:
        raise UserError(
            f"model {name!r}: its factory, called with classes={classes}, d={d}, "
            f"image_size={image_size}, fails: {brief(error)}"
        ) from error
    check_model(model, name, classes, d, image_size)
    if not _has_forward(model):
        model.forward = MethodType(SplitModel.forward, model)
    return cast(SplitModel, model)


def _has_forward(model: nn.Module) -> bool:
    """Whether somebody gave this module (or its class) a forward."""
    return "forward" in vars(model) or type(model).forward is not nn.Module.forward

"""``NAME weights=FILE``: a model that starts from weights that somebody trained and has a file of.

The file is safetensors; nothing is unpickled and nothing downloaded. It holds the model's own
tensors by their names; of a network of torchvision or timm those of the network alone, as its
library names them, will do, with or without the last layer, which is cut. ``head`` may be missing,
and is drawn as always: a file of other classes has none that fits. What ``fedhet export`` writes is
such a file.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedhet.errors import Damaged, UserError
from fedhet.files import read_tensors
from fedhet.models.base import SplitModel

_EXPORTED = "parts.model."  # how names begin in a model that was exported
_COUNTER = "num_batches_tracked"  # of BatchNorm, which older files lack and nothing here reads
_HEAD = ("head.weight", "head.bias")


def load_weights(model: SplitModel, name: str, file: str) -> None:
    """Put the tensors of ``file`` into ``model``, in place, if every one fits.

    Raises:
        UserError: one line, with the file and the first tensor that is missing, is not the model's,
            has another shape or dtype, or is not finite. The model is then as it was.

    """
    where = f"model {name!r}: weights '{file}'"
    try:
        found, _ = read_tensors(Path(file).expanduser(), "pt")
    except Damaged as error:
        raise UserError(f"model {name!r}: weights {error}") from error
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}") from error
    target, own, optional = _meant(model, found)
    wanted = target.state_dict()
    missing = [key for key in wanted if key not in own and key not in optional]
    more = [key for key in own if key not in wanted]
    if missing or more:
        what = f"lacks {missing[0]!r}" if missing else f"has {more[0]!r}, which it does not"
        raise UserError(
            f"{where}: the model has {len(wanted)} tensors, and the file, which {what}, {len(own)}"
        )
    for key, tensor in own.items():
        _check(where, key, tensor, wanted[key])
    target.load_state_dict({**wanted, **own})


def _meant(
    model: SplitModel, found: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor], set[str]]:
    """Which module the tensors are of, those that count by name, and names that may be missing."""
    own = {k.removeprefix(_EXPORTED): v for k, v in found.items() if k.startswith(_EXPORTED)}
    own = own or dict(found)
    counters = {key for key in model.state_dict() if key.rpartition(".")[2] == _COUNTER}
    network = getattr(model, "network", None)
    if isinstance(network, nn.Module) and not any(key.startswith("network.") for key in own):
        lost = f"{getattr(model, 'cut', '')}."
        kept = {key: tensor for key, tensor in own.items() if not key.startswith(lost)}
        return network, kept, {key.removeprefix("network.") for key in counters}
    return model, own, counters.union(_HEAD)


def _check(where: str, key: str, tensor: Tensor, wanted: Tensor) -> None:
    if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
        other = "; leave the head out if its classes are others" if key in _HEAD else ""
        raise UserError(f"{where}: {key!r} is {_form(tensor)}, must be {_form(wanted)}{other}")
    if not torch.isfinite(tensor).all():
        raise UserError(f"{where}: {key!r} holds NaN or infinity")


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"

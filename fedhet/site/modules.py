"""A client's modules: built once per process, filled anew for each client, kept as one bundle."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedhet.site.state import Bundle
from fedhet.training.loop import Fixed

Modules = dict[str, nn.Module]

_BUILT: dict[Hashable, tuple[Modules, Fixed]] = {}
_TENSORS, _METRICS = "tensors", "metrics"  # parts of a bundle that are no module


def instance(
    key: Hashable, build: Callable[[], Modules], device: torch.device, *, fresh: bool
) -> tuple[Modules, Fixed]:
    """The modules of ``key`` on ``device``, and what ``build`` froze of them.

    If this process has none they are built. Their weights are those of ``build`` if ``fresh``, else
    whatever the last client left there: :func:`fill` them.
    """
    if key in _BUILT and not fresh:
        return _BUILT[key]
    made = build()
    if key in _BUILT:
        for name, module in _BUILT[key][0].items():
            module.load_state_dict(made[name].state_dict())
    else:
        placed = {
            name: module.to(device).to(memory_format=torch.channels_last)
            for name, module in made.items()
        }
        _BUILT[key] = placed, Fixed(placed.values())
    return _BUILT[key]


@contextmanager
def forgotten() -> Iterator[None]:
    """Modules that are built inside do not stay in memory."""
    kept = dict(_BUILT)
    try:
        yield
    finally:
        _BUILT.clear()
        _BUILT.update(kept)


def to_bundle(
    modules: Mapping[str, nn.Module],
    tensors: Mapping[str, Tensor],
    accuracies: Iterable[tuple[str, float]],
) -> Bundle:
    """All that a client keeps, on the CPU: ``<module>/<name>``, ``tensors/`` and ``metrics/``."""
    bundle: Bundle = {}
    stored: set[int] = set()
    for name, module in modules.items():
        for key, tensor in module.state_dict().items():
            mine = tensor.detach().cpu().contiguous()
            if mine.numel() and mine.data_ptr() in stored:  # tied weights: a copy for each name
                mine = mine.clone()
            stored.add(mine.data_ptr())
            bundle[f"{name}/{key}"] = mine
    bundle |= {f"{_TENSORS}/{name}": tensor.detach().cpu() for name, tensor in tensors.items()}
    for name, value in accuracies:
        bundle[f"{_METRICS}/{name}"] = torch.tensor(value, dtype=torch.float64)
    return bundle


def not_finite(bundle: Bundle) -> str:
    """The name of a tensor that holds NaN or infinity, or nothing."""
    floating = ((n, t) for n, t in bundle.items() if t.is_floating_point() and t.numel())
    return next((name for name, t in floating if not torch.isfinite(t).all()), "")


def fill(modules: Mapping[str, nn.Module], bundle: Bundle) -> dict[str, Tensor]:
    """Put a bundle's weights into the modules, strictly by name; returns its ``tensors/``."""
    parts: dict[str, Bundle] = {}
    for name, tensor in bundle.items():
        owner, _, rest = name.partition("/")
        parts.setdefault(owner, {})[rest] = tensor
    for name, module in modules.items():
        module.load_state_dict(parts.get(name, {}), strict=True)
    return parts.get(_TENSORS, {})


def accuracies_of(bundle: Bundle) -> dict[str, float]:
    """The accuracies in percent that were kept with a state, by name."""
    parts = ((name.partition("/"), value) for name, value in bundle.items())
    return {name: float(value) for (owner, _, name), value in parts if owner == _METRICS}

"""What a phase of local training costs, counted once per process and kind of work."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedhet.config.schema import RunConfig
from fedhet.models import training_flops
from fedhet.rng import torch_seeded
from fedhet.training.loop import Examples, Phase, autocast, batches, images_in

_FLOPS: dict[tuple[object, ...], float] = {}  # per image, by what decides it


def phase_flops(
    kind: tuple[object, ...],
    phase: Phase,
    data: Examples,
    config: RunConfig,
    modules: Mapping[str, nn.Module],
    generators: Sequence[torch.Generator],
) -> float:
    """FLOPs of a whole phase on ``data``, from one batch that is counted once per ``kind``.

    ``kind`` is what decides the work beside sizes. The counted step leaves no trace in ``modules``
    and in ``generators``, from which its loss may draw.
    """
    data = data if phase.data is None else phase.data
    device = data.labels.device
    chosen = torch.arange(len(data), device=device) if phase.images is None else phase.images
    batch = next(iter(batches(chosen, config.batch_size)))
    key = (*kind, config.params, config.models, len(batch))
    if key not in _FLOPS:
        kept = {n: {k: v.clone() for k, v in m.state_dict().items()} for n, m in modules.items()}
        drawn = [(made, made.get_state()) for made in generators]

        def step() -> Tensor:
            with autocast(config, device):
                return phase.scalar(*data.batch(batch))

        with torch_seeded(config.seed, "flops"):
            _FLOPS[key] = training_flops(step) / len(batch)
        for made, state in drawn:
            made.set_state(state)
        for name, module in modules.items():
            module.load_state_dict(kept[name])
            module.zero_grad(set_to_none=True)
    return _FLOPS[key] * images_in(phase, len(chosen), config.batch_size)

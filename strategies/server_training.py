"""Train on the server, as FedGH, FedTGP and FedGen do with the uploads between two rounds.

It is deterministic: draws come from the run's generator of purpose "server" and this round, numbers
are float32, on one thread of the CPU. It is bounded: a fixed number of steps, and what is no longer
finite after them is thrown away. And it outlives a crash: what it moves are the strategy's
``arrays``, an optimiser's moments among them where one goes on with them.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fedhet.config.schema import RunConfig
from fedhet.protocol.payload import Array
from fedhet.rng import one_thread, torch_seed
from fedhet.training.loop import batches
from fedhet.training.optimisers import SGD, Optimiser

log = logging.getLogger("fedhet")

MOST_EPOCHS = 10_000  # of the keys `server-epochs`


def server_generator(config: RunConfig, round_: int) -> torch.Generator:
    """Return the generator of the server's random numbers in a round."""
    return torch.Generator().manual_seed(torch_seed(config.seed, "server", round_=round_))


def shuffled(count: int, size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield positions of ``count`` examples in batches of ``size``, reshuffled every epoch."""
    for _ in range(epochs):
        yield from batches(torch.randperm(count, generator=generator), size)


def train_on_server(
    module: nn.Module,
    optimiser: Optimiser,
    loss: Callable[[Tensor], Tensor],
    steps: Iterable[Tensor],
) -> dict[str, float]:
    """Make one step on ``loss(batch)`` for every batch of ``steps``; return numbers.

    ``module`` is what the optimiser moves. If it ends with NaN or infinity it is put back as it was
    and ``server_discarded`` is 1; otherwise ``server_loss`` is the mean loss of the steps.
    """
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    total, count = torch.zeros((), dtype=torch.float64), 0
    module.train()
    with one_thread():
        for batch in steps:
            optimiser.clear()
            value = loss(batch)
            torch.autograd.backward(value)
            optimiser.step()
            total += value.detach()
            count += 1
    optimiser.clear()
    module.eval()
    if not all(bool(tensor.isfinite().all()) for tensor in module.state_dict().values()):
        log.warning("the server's training did not stay finite and is thrown away")
        module.load_state_dict(before)
        return {"server_discarded": 1.0}
    return {"server_discarded": 0.0, "server_loss": float(total) / max(1, count)}


def train_on_pairs(  # noqa: PLR0913
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    config: RunConfig,
    round_: int,
    epochs: int,
    lr: float,
) -> dict[str, float]:
    """Train ``epochs`` of plain SGD on ``loss(positions)`` of ``count`` pairs.

    In shuffled batches of ``batch-size``; returns what :func:`train_on_server` does.
    """
    optimiser = SGD([(list(module.parameters()), lr)])
    steps = shuffled(count, config.batch_size, epochs, server_generator(config, round_))
    return train_on_server(module, optimiser, loss, steps)


def state_arrays(module: nn.Module, prefix: str = "") -> dict[str, Array]:
    """Return parameters and buffers of a module, by name, as copies."""
    state = module.state_dict()
    return {prefix + name: tensor.detach().numpy().copy() for name, tensor in state.items()}


def load_state(module: nn.Module, arrays: Mapping[str, Array], prefix: str = "") -> None:
    """Inverse of :func:`state_arrays`; ``arrays`` may hold others as well."""
    module.load_state_dict(
        {name: torch.tensor(arrays[prefix + name]) for name in module.state_dict()}
    )

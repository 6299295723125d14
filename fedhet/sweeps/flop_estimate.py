"""What a kind of cell may cost where it was never timed: FLOPs, and how fast this machine is.

The method's own losses are counted on two blank examples per model, as a server counts them, and a
matrix product of one second says how fast the arithmetic is. To that comes what moves the memory
of a model: a step of the optimiser, and a state that is read and written.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import find_method
from fedhet.config.registry import METHODS
from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset
from fedhet.data.inputs import Inputs
from fedhet.data.partition import ClientSplit
from fedhet.data.synthetic import Synthetic, synthetic
from fedhet.errors import RunFailedError, UserError, brief
from fedhet.models.flops import FlopCounter
from fedhet.models.names import MODELS, MORE_OF_TORCHVISION
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.protocol.payload import Payload
from fedhet.site.local_data import LocalData
from fedhet.site.modules import forgotten, to_bundle
from fedhet.site.on_device import choose_device
from fedhet.site.state import FileStore
from fedhet.sweeps.calibration import Calibration
from fedhet.sweeps.cost import Cost
from fedhet.training.loop import autocast, set_trainable

Counts = list[tuple[float, float, float, float, float]]
OURS = [*chain.from_iterable(MODELS.values()), *MORE_OF_TORCHVISION]  # models as torch is
EXAMPLES = 20  # blank ones of a client whose FLOPs are counted
BATCH = 2  # FLOPs grow with the examples of a batch; BatchNorm needs two
SECONDS = 1.0  # of matrix products
SIDE = 1024  # of their matrices
# As measured on one core of an EPYC (family 26), CNN-1, 3 and 5 with batches of 16 and of 64:
SHARE = 0.9  # of a matrix product's speed that forward and backward reach
STEP = 2.5e9  # bytes of its model that a step of the optimiser does in a second
CLIENT = 0.02  # seconds of a client's round beside its images, and
BYTES = 3e8  # bytes of its state that are read and written in a second


class Rough:
    """Costs by arithmetic, with the speeds that a calibration remembers."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._counted: dict[tuple[RunConfig, Inputs], list[float]] = {}

    def cost(self, probe: RunConfig, classes: int) -> Cost:
        """In the mean over the models. RunFailedError if a model or the method cannot work."""
        device = choose_device(probe, {})
        what = f"{device.type}, {probe.precision}, {probe.threads} threads"
        try:
            with _arithmetic(probe):
                product_ = self.calibration.product(what, lambda: product(probe, device))
                means = self._count(probe, classes)
        except (UserError, RunFailedError):
            raise
        except Exception as error:  # a method or a model of somebody else may fail in any way
            raise RunFailedError(f"its FLOPs cannot be counted: {brief(error)}") from error
        image, epoch, held, state, others = means
        speed, step = SHARE * product_, state / STEP / probe.batch_size
        client = CLIENT + state / BYTES + others / speed
        return Cost(client, image / speed, epoch / speed + step, held / speed, state)

    def _count(self, probe: RunConfig, classes: int) -> list[float]:
        """What :func:`_counts` says, in the mean over the models.

        One count for probes that differ in nothing but the number of their classes: those decide
        the last layer, a hundredth of the work, and of the state. It is kept unless somebody
        else's code has a part in it, which may be another tomorrow.
        """
        inputs = _inputs(probe)
        kind = probe.model_copy(update={"dataset": "", "max_classes": 1}), inputs

        def count() -> list[float]:
            counts = _counts(probe, tuple(map(str, range(classes))), inputs)
            return [sum(one) / len(counts) for one in zip(*counts, strict=True)]

        models = {probe.small_model or OURS[0], *probe.models}
        if probe.method not in METHODS or not models <= set(OURS):
            if kind not in self._counted:
                self._counted[kind] = count()
            return self._counted[kind]
        text = repr((sorted(kind[0].flat().items(), key=lambda pair: pair[0]), inputs))
        return self.calibration.count(text, count)


@contextmanager
def _arithmetic(config: RunConfig) -> Iterator[None]:
    """Torch as a training process of that configuration sets it."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def product(config: RunConfig, device: torch.device) -> float:
    """FLOP/s of a matrix product."""
    with torch.inference_mode(), autocast(config, device):
        matrix = torch.full((SIDE, SIDE), 1 / SIDE, device=device)
        _finish(matrix @ matrix)  # the first one makes ready
        # Of a processor the time it worked for us, whoever else is on the machine.
        clock = time.perf_counter if device.type != "cpu" else time.process_time
        done, started, begun = 0, clock(), time.perf_counter()
        while time.perf_counter() - begun < SECONDS:
            _finish(matrix @ matrix)
            done += 1
        worked = (clock() - started) / (config.threads if device.type == "cpu" else 1)
        return 2.0 * SIDE**3 * done / worked


def _finish(result: torch.Tensor) -> None:
    """Wait for the device."""
    result[0, 0].item()


def _inputs(probe: RunConfig) -> Inputs:
    """What a probe's invented examples are."""
    source = synthetic(probe.dataset, probe.seed)
    if isinstance(source, Synthetic):
        return Inputs.image(probe.image_size, grey=probe.grey)
    return source.inputs()


def _counts(probe: RunConfig, classes: tuple[str, ...], inputs: Inputs) -> Counts:
    """Per model: FLOPs of an image's round, its epoch, its evaluation; the state's bytes; the rest.

    The rest are FLOPs of a round that no image of the client's own has a part in.
    """
    each = (2,) * len(classes)
    roster, ids = Roster(), tuple(range(len(classes)))
    roster.classes, roster.inputs = classes, inputs
    for k, model in enumerate(probe.models):
        roster.infos[str(k)] = ClientInfo(
            str(k), classes, classes, each, sum(each), model, "cpu", ids
        )
        roster.generations[str(k)] = 0
    strategy = find_method(probe.method).strategy(probe, roster)
    strategy.initialise()
    found = []
    for info in roster.infos.values():
        with forgotten():
            client = new_client(probe, classes, info, strategy.download(info, 1), inputs, 1)
            once, others = _work(client)
            client.config = probe.model_copy(update={"local_epochs": 2, "batch_size": BATCH})
            twice, _ = _work(client)
            counter = FlopCounter()
            with torch.no_grad(), counter:
                client.predict(client.examples("train").batch(torch.arange(BATCH))[0])
            kept = to_bundle(client.modules, client.tensors, ())
            state = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
            epoch = (twice - once) / EXAMPLES
            image = once / EXAMPLES - epoch
            found.append((image, epoch, counter.total / BATCH, float(state), others))
    return found


def new_client(  # noqa: PLR0913, PLR0917  (all that a round's work depends on)
    config: RunConfig,
    classes: Sequence[str],
    info: ClientInfo,
    payload: Payload,
    inputs: Inputs,
    round_: int,
) -> MethodClient[Any]:
    """Return a client of that model with blank examples, before its first training in a round."""
    own = np.array(info.seen or range(len(classes)), dtype=np.int64)
    blank, none = inputs.zeros(EXAMPLES), np.zeros(0, dtype=np.int64)
    dataset = Dataset(blank, np.resize(own, EXAMPLES), tuple(classes), (), (), inputs)
    setup = Setup(
        config=config.model_copy(update={"batch_size": BATCH}),
        data=LocalData(info.client, 0, 0, dataset, ClientSplit(np.arange(EXAMPLES), none, none)),
        classes=classes,
        model=info.model,
        device=torch.device("cpu"),
        store=FileStore(Path(), sync=False),  # generation 0 needs none
    )
    client: MethodClient[Any] = find_method(config.method).client(setup)
    client.round = round_
    client.restore(0)
    client.receive(client.download_type.from_ndarrays(payload.to_ndarrays()))
    return client


def _work(client: MethodClient[Any]) -> tuple[float, float]:
    """Return the FLOPs of a round's training on the client's own examples, and on others."""
    data, own, others = client.examples("train"), 0.0, 0.0
    for number, phase in enumerate(client.phases()):
        set_trainable(list(client.modules.values()), phase, client._fixed)
        flops = client._flops(number, phase, data)
        own, others = (own + flops, others) if phase.data is None else (own, others + flops)
    return own, others

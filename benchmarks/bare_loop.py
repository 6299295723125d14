"""The limit: the same SGD steps and evaluations in plain PyTorch, without any federation.

Clients are dealt in turn to one process per core, one torch thread each; every process holds its
clients' images as uint8 tensors and trains one model per client for E epochs.

    python -m benchmarks.bare_loop --setting n10 [--cifar10 FOLDER_OR_ZIP] [--precision bf16]
"""

import argparse
import multiprocessing as mp
import os
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import config_of, emit, median, settings
from fedhet.config.schema import RunConfig
from fedhet.models.zoo import build_model
from fedhet.site.local_data import load_partition
from fedhet.training.loop import without_denormals

Client = tuple[nn.Module, dict[str, tuple[Tensor, Tensor]]]


def batch(images: Tensor, index: Tensor) -> Tensor:
    """Index, to float, normalise; NHWC memory is channels last."""
    return images[index].permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def train(model: nn.Module, images: Tensor, labels: Tensor, config: RunConfig) -> None:
    """E epochs of SGD with momentum."""
    device = labels.device
    sgd = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)
    model.train()
    for _ in range(config.local_epochs):
        for index in torch.randperm(len(labels), device=device).split(config.batch_size):  # type: ignore[no-untyped-call]
            sgd.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                loss = F.cross_entropy(model(batch(images, index)), labels[index])
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()


@torch.inference_mode()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, config: RunConfig) -> int:
    """Return the number of right answers."""
    model.eval()
    right = 0
    for index in torch.arange(len(labels)).split(512):  # type: ignore[no-untyped-call]
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            right += int((model(batch(images, index)).argmax(1) == labels[index]).sum())
    return right


def load(config: RunConfig, chosen: list[int]) -> list[Client]:
    """Models and tensors of some clients."""
    dataset, partition = load_partition(config, config.clients)
    found: list[Client] = []
    for k in chosen:
        parts = {
            name: (
                torch.from_numpy(dataset.examples[getattr(partition.clients[k], name)].copy()),
                torch.from_numpy(dataset.labels[getattr(partition.clients[k], name)].copy()),
            )
            for name in ("train", "val", "test")
        }
        model = build_model(config.models[k % len(config.models)], classes=len(dataset.classes))
        found.append((model.to(memory_format=torch.channels_last), parts))
    return found


def worker(
    overrides: list[str], number: int, workers: int, rounds: int, gate: Barrier, times: Any
) -> None:
    """One process: its share of the clients, ``rounds`` times, all processes in step."""
    torch.set_num_threads(1)
    config = config_of(overrides)
    cohort = list(range(config.cohort(config.clients)))
    clients = load(config, cohort[number::workers])
    for _ in range(rounds):
        gate.wait()
        started = time.perf_counter()
        with without_denormals():  # as clients do
            for model, parts in clients:
                train(model, *parts["train"], config)
                evaluate(model, *parts["test"], config)
                evaluate(model, *parts["val"], config)
        gate.wait()
        if number == 0:
            times.append(time.perf_counter() - started)


def measure(overrides: list[str], rounds: int, workers: int = 0) -> list[float]:
    """Seconds of every round after one of warm-up."""
    workers = workers or os.cpu_count() or 1
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        times = manager.list()
        gate = context.Barrier(workers)
        processes = [
            context.Process(target=worker, args=(overrides, i, workers, rounds + 1, gate, times))
            for i in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return list(times)[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=["n10", "n100"], default="n10")
    parser.add_argument("--cifar10", default="", help="image folder or zip; default: synthetic")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    overrides = settings(chosen.setting, chosen.cifar10, f"precision={chosen.precision}")
    config = config_of(overrides)
    _, partition = load_partition(config, config.clients)
    cohort = partition.clients[: config.cohort(config.clients)]
    images = config.local_epochs * sum(len(split.train) for split in cohort)
    seconds = median(measure(overrides, chosen.rounds))
    emit(
        "bare_loop", setting=chosen.setting, precision=chosen.precision, rounds=chosen.rounds,
        seconds_per_round=seconds, images_per_second=round(images / seconds),
    )  # fmt: skip


if __name__ == "__main__":
    main()

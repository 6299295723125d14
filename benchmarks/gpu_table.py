"""Round time of every method on one GPU, and from it the time of the whole CIFAR-10 table.

The training engine runs in this process, without Ray and without messages: payloads go straight
from strategy to client and back. Data is synthetic, of CIFAR-10's size; E = 10, B = 64; ten clients
a round. The bare loop is plain PyTorch on the same device. The table is 11 methods x 3 settings
with 100 rounds at N = 10 and 500 at N = 50 and 100.

    python -m benchmarks.gpu_table [--methods fedssa fedmrl] [--settings n10] [--device cuda]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.bare_loop import train as bare_train
from benchmarks.common import emit, median
from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import build_config
from fedhet.config.registry import METHODS
from fedhet.config.schema import RunConfig
from fedhet.models.zoo import build_model
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.site.local_data import LocalData, assigned_model, examples_of, load_local
from fedhet.site.state import FileStore
from fedhet.strategies.base import Upload
from fedhet.training.loop import without_denormals

SETTINGS = {"n10": (10, 1.0, 100), "n50": (50, 0.2, 500), "n100": (100, 0.1, 500)}


class Engine:
    """One method in one setting: clients and strategy, in this process."""

    def __init__(self, config: RunConfig, device: torch.device, folder: Path) -> None:
        self.config, self.device, self.folder = config, device, folder
        self.roster = Roster()
        self.data: dict[str, LocalData] = {}
        for k in range(config.clients):
            node = {"partition-id": k, "num-partitions": config.clients}
            self._admit(load_local(config, node, simulated=True))
        self.strategy = METHODS[config.method].strategy(config, self.roster)
        self.strategy.initialise()

    def _admit(self, data: LocalData) -> None:
        counts = data.class_counts()
        classes = self.roster.classes = data.dataset.classes
        seen = tuple(classes.index(name) for name in counts)
        model = assigned_model(self.config, {}, data)
        self.data[data.client] = data
        self.roster.generations[data.client] = 0
        self.roster.infos[data.client] = ClientInfo(
            data.client, classes, tuple(counts), tuple(counts.values()), sum(counts.values()),
            model, str(self.device), seen,
        )  # fmt: skip

    def client(self, name: str) -> MethodClient:
        """Return a client as the ClientApp makes it."""
        setup = Setup(
            config=self.config,
            data=self.data[name],
            classes=self.roster.classes,
            model=self.roster.infos[name].model,
            device=self.device,
            store=FileStore(self.folder / name, sync=False),
        )
        return METHODS[self.config.method].client(setup)

    def round(self, number: int) -> float:
        """Seconds of one round: every sampled client, then the aggregation."""
        started = time.perf_counter()
        cohort = self.config.cohort(self.config.clients)
        uploads = []
        for name in self.roster.sample(self.config.seed, number, cohort):
            info = self.roster.infos[name]
            what = {
                "round": number, "generation": self.roster.generations[name], "evaluate": True,
            }  # fmt: skip
            payload = self.strategy.download(info, number)
            arrays, _, metrics = self.client(name).fit(payload.to_ndarrays(), dict(what))
            reply = self.strategy.upload_type.from_ndarrays(arrays)
            numbers = {key: float(value) for key, value in metrics.items()}
            uploads.append(Upload(info, reply, 1 / cohort, numbers))
        self.strategy.aggregate(uploads, number)
        for upload in uploads:
            self.roster.generations[upload.info.client] = number
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


def bare_round(config: RunConfig, device: torch.device, data: list[LocalData]) -> float:
    """Seconds of the same SGD steps in plain PyTorch, eager, without evaluation."""
    clients = []
    for k, one in enumerate(data):
        images = examples_of(one, "train", one.dataset.classes, device)
        model = build_model(config.models[k % len(config.models)], classes=len(one.dataset.classes))
        clients.append((model.to(device).to(memory_format=torch.channels_last), images))
    started = time.perf_counter()
    for network, images in clients:
        bare_train(network, images.examples, images.labels, config)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print a line per method and setting, and one for all of them together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    device, table = torch.device(chosen.device), 0.0
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest" if chosen.precision == "fp32" else "high")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    for setting in chosen.settings:
        clients, fraction, rounds = SETTINGS[setting]
        bare: list[float] = []  # the same steps, whatever the method
        for method in chosen.methods:
            with tempfile.TemporaryDirectory() as out:
                config = build_config(
                    {
                        "method": method, "dataset": f"synthetic:{chosen.images}", "out": out,
                        "clients": clients, "fraction": fraction, "local-epochs": 10,
                        "precision": chosen.precision, "name": "gpu", "rounds": rounds,
                    }
                )  # fmt: skip
                engine = Engine(config, device, Path(out) / "state")
                with without_denormals():
                    seconds = [engine.round(r) for r in range(1, chosen.repeats + 2)][1:]
                cohort = engine.roster.sample(config.seed, 1, config.cohort(clients))
                data = [engine.data[client] for client in cohort]
                if not bare:
                    with without_denormals():
                        bare = [bare_round(config, device, data) for _ in range(chosen.repeats + 1)]
                    del bare[0]
            table += median(seconds) * rounds
            emit(
                "gpu_table", device=name, setting=setting, method=method,
                precision=chosen.precision, seconds_per_round=median(seconds),
                bare_seconds_per_round=median(bare),
                ratio=round(float(np.median(seconds) / np.median(bare)), 2),
            )  # fmt: skip
    runs, whole = len(chosen.settings) * len(chosen.methods), len(SETTINGS) * len(METHODS)
    emit("gpu_table", device=name, runs=runs, of=whole, hours=round(table / 3600, 2))


if __name__ == "__main__":
    main()

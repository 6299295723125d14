"""The training loop against ``torch.optim.SGD``, bit for bit, and what it must not load."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedhet.config import build_config
from fedhet.rng import generator, torch_seeded
from fedhet.training.loop import ImageSet, Phase, normalise, train

RATES = (0.05, 0.01)


class Parts(nn.Module):
    """Two trained parts with rates of their own; ``idle`` never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.ModuleDict({"used": nn.Linear(4 * 6 * 6, 5), "idle": nn.Linear(2, 2)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head["used"](self.body(x))


def model() -> Parts:
    with torch_seeded(0, "test"):
        return Parts()


@pytest.mark.parametrize(
    ("changes", "plain"),
    [({}, False), ({"weight-decay": 0.1}, False), ({"grad-clip": 0.2}, False), ({}, True),
     ({"momentum": 0.0, "weight-decay": 0.1}, False)],
)  # fmt: skip
def test_the_steps_are_those_of_torchs_sgd(changes: dict[str, float], plain: bool) -> None:  # noqa: FBT001
    config = build_config({"method": "standalone", "dataset": "digits", "batch-size": 8, **changes})
    rng = np.random.default_rng(3)
    images = torch.from_numpy(rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    data = ImageSet(images, torch.arange(20) % 5)
    ours, theirs = model(), model()
    groups = list(zip((ours.body, ours.head), RATES, strict=True))
    phase = Phase(lambda x, y: nn.functional.cross_entropy(ours(x), y), groups, 3, plain=plain)
    train(phase, data, config, generator(0, "shuffle"))

    values = {} if plain else {"momentum": config.momentum, "weight_decay": config.weight_decay}
    wanted = [
        {"params": list(part.parameters()), "lr": lr}
        for part, lr in zip((theirs.body, theirs.head), RATES, strict=True)
    ]
    sgd, shuffle = torch.optim.SGD(wanted, lr=0.1, fused=True, **values), generator(0, "shuffle")
    for _ in range(3):
        for index in torch.from_numpy(shuffle.permutation(20)).split(8):
            sgd.zero_grad()
            inputs = normalise(images[index])
            nn.functional.cross_entropy(theirs(inputs), data.labels[index]).backward()
            for group in sgd.param_groups if config.grad_clip else ():
                nn.utils.clip_grad_norm_(group["params"], config.grad_clip)
            sgd.step()
    fresh, changed = model().state_dict(), ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(changed[name], tensor), name
        assert torch.equal(tensor, fresh[name]) == name.startswith("head.idle"), name


def test_a_client_loads_neither_torchs_compiler_nor_what_it_does_not_use(tmp_path: Path) -> None:
    """In a deployment every message is a new process: what it imports is what it costs."""
    program = (
        "import sys; from fedhet.config import build_config; from simulation import simulate\n"
        f"values = {{'method': 'fedssa', 'clients': 1, 'rounds': 1, 'out': {str(tmp_path)!r}}}\n"
        "simulate(build_config(values | {'dataset': 'synthetic:240x4', 'models': 'cnn-5'}))\n"
        "heavy = 'torch._dynamo', 'torch._inductor', 'torchvision', 'sklearn', 'ray'\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    path = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"

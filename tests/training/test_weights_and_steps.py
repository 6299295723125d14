"""``class-weights`` and ``local-steps`` do what they say, in every method."""

from pathlib import Path

import numpy as np
import torch
from helpers.tiny import tiny
from torch import nn

from fedhet.config.schema import RunConfig
from fedhet.testing import simulate
from fedhet.training.loop import Examples, Phase, StepCount, images_in, train


def steps_of(epochs, count=25, size=8):
    """Sizes of the batches that a phase trains on."""
    model, sizes = nn.Linear(2, 2), []

    def loss(inputs, labels):
        sizes.append(len(labels))
        return model(inputs).sum()

    data = Examples(torch.randn(count, 2), torch.zeros(count, dtype=torch.int64), lambda x: x)
    phase = Phase(loss, [(model, 0.1)], epochs)
    train(phase, data, RunConfig(batch_size=size), np.random.default_rng(0), 1)
    assert images_in(phase, count, size) == sum(sizes)
    return sizes


def test_steps_are_a_part_of_an_epoch_or_several():
    assert steps_of(1) == [8, 8, 9], "a last batch of one joins the batch before it"
    assert steps_of(StepCount(2)) == [8, 8]
    assert steps_of(StepCount(4)) == [8, 8, 9, 8]


def test_every_cross_entropy_of_a_client_is_the_weighted_one():
    for file in (Path(__file__).parents[2] / "clients").glob("*.py"):
        assert "F.cross_entropy" not in file.read_text() or file.name == "base.py", file


def test_balanced_weights_change_training_and_nothing_else(tmp_path):
    keys = {"method": "fedapen", "rounds": 1, "partition": "dirichlet", "alpha": 0.5}
    lines = []
    for weights in ("none", "balanced"):
        config = tiny(tmp_path, name=weights, local_steps=2, class_weights=weights, **keys)
        lines += simulate(config)[0].read_rounds()
    assert lines[0]["train_loss"] != lines[1]["train_loss"]
    assert not any(line["failures"] for line in lines)

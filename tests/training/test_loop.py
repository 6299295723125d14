"""Training against ``torch.optim``, bit for bit; metrics are scikit-learn's.

A captured ``Step`` has a stand-in for CUDA's graph, which replays it; on a GPU: test_cuda.py.
"""

import itertools
import logging
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import get_args
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from helpers.tiny import tiny
from torch import nn

from fedhet.config.load import build_config
from fedhet.config.schema import METRICS, MetricName, RunConfig
from fedhet.data.preparation import crop_flip, flip_erase_crop
from fedhet.records.summary import headline
from fedhet.rng import generator, torch_seeded
from fedhet.testing import simulate
from fedhet.training import loop as loops
from fedhet.training.loop import Examples, Phase, Step, StepCount, schedule, train
from fedhet.training.metrics import evaluate

RATES = (0.05, 0.01)


class Parts(nn.Module):
    """Two trained parts with rates of their own; ``idle`` never gets a gradient."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.ModuleDict({"used": nn.Linear(4 * 6 * 6, 5), "idle": nn.Linear(2, 2)})

    def forward(self, x):
        return self.head["used"](self.body(x))


@pytest.mark.parametrize(
    ("changes", "plain"),
    [({"weight-decay": 0.1}, False), ({"grad-clip": 0.2}, False), ({}, True),
     ({"momentum": 0.0}, False), ({"optimizer": "adam", "weight-decay": 0.1}, False)],
)  # fmt: skip
def test_the_steps_are_those_of_torchs_optimisers(changes, plain):
    config = build_config({"method": "standalone", "dataset": "digits", "batch-size": 8, **changes})
    rng = np.random.default_rng(3)
    images = torch.from_numpy(rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    data = Examples(images, torch.arange(20) % 5)
    with torch_seeded(0, "test"):
        theirs = Parts()
    ours, fresh = deepcopy(theirs), deepcopy(theirs.state_dict())
    groups = list(zip((ours.body, ours.head), RATES, strict=True))
    phase = Phase(lambda x, y: nn.functional.cross_entropy(ours(x), y), groups, 3, plain=plain)
    train(phase, data, config, generator(0, "shuffle"), 1)

    sgd = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    values = {} if plain else {"weight_decay": config.weight_decay, **sgd}
    pairs = zip((theirs.body, theirs.head), RATES, strict=True)
    wanted = [{"params": list(part.parameters()), "lr": lr} for part, lr in pairs]
    kind = torch.optim.SGD if sgd else torch.optim.Adam
    moves, shuffle = kind(wanted, lr=0.1, fused=True, **values), generator(0, "shuffle")
    for index in [i for _ in range(3) for i in torch.from_numpy(shuffle.permutation(20)).split(8)]:
        moves.zero_grad()
        loss = nn.functional.cross_entropy(
            theirs(loops.normalise(images[index])), data.labels[index]
        )
        loss.backward()
        for group in moves.param_groups if config.grad_clip else ():
            nn.utils.clip_grad_norm_(group["params"], config.grad_clip)
        moves.step()
    changed = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(changed[name], tensor), name
        assert torch.equal(tensor, fresh[name]) == name.startswith("head.idle"), name


def test_the_rate_falls_by_a_cosine_over_the_rounds_except_where_a_phase_is_plain():
    config = build_config({"lr-schedule": "cosine", "rounds": 4})
    factors = [schedule(config, round_) for round_ in (1, 2, 3, 4)]
    assert factors == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert [schedule(build_config({"rounds": 4}), r) for r in (1, 4)] == [1.0, 1.0]
    layer = nn.Linear(1, 1, bias=False)
    for plain, moved in ((False, -0.1), (True, -0.2)):
        nn.init.zeros_(layer.weight)
        phase = Phase(lambda x, _: layer(x).sum(), [(layer, 0.2)], 1, plain=plain)
        Step(phase, config, 3, 1, torch.device("cpu"))(torch.ones(1, 1), torch.zeros(1))
        assert layer.weight.item() == pytest.approx(moved)


def test_crops_and_flips_are_windows_of_the_image_with_a_black_margin():
    images = torch.randint(1, 256, (40, 16, 16, 3), dtype=torch.uint8)
    views, again = (crop_flip(images, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(views, again)
    padded = nn.functional.pad(images, (0, 0, 2, 2, 2, 2))
    found = {
        (top, left, mirrored)
        for top, left, mirrored in itertools.product(range(5), range(5), (False, True))
        for image, one in zip(padded[:, top:, left:], views, strict=True)
        if torch.equal(one.flip(1) if mirrored else one, image[:16, :16])
    }
    assert len(found) > 20
    rows, columns, sides = map(set, zip(*found, strict=True))
    assert rows == columns == {*range(5)} and sides == {False, True}


@pytest.mark.parametrize(("plain", "black"), [(False, True), (True, False)])
def test_training_sees_augmented_images_and_a_plain_phase_the_images(plain, black):
    images = torch.randint(1, 256, (16, 8, 8, 3), dtype=torch.uint8)
    data = Examples(images, torch.zeros(16, dtype=torch.int64), augment=torch.zeros_like)
    seen, weight = [], nn.Linear(1, 1)

    def loss(inputs, labels):
        seen.append(not inputs.any())
        return weight(torch.ones(1)).sum()

    train(Phase(loss, [(weight, 0.1)], 1, plain=plain), data, RunConfig(), generator(0, "a"), 1)
    assert seen == [black]


def test_flip_erase_crop_moves_flips_and_erases_prepared_images():
    images = torch.arange(1.0, 32 * 32 + 1).view(1, 1, 32, 32).repeat(3000, 3, 1, 1)
    views, again = (flip_erase_crop(images, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(views, again) and views.shape == images.shape
    assert torch.equal(views[:, 0], views[:, 2])  # the same draw for all channels
    middle = views[:, 0, 12:20, 12:20]  # further from the border than the margin of 4
    flipped = (middle[..., :1] > middle[..., 1:2])[:, 0, 0]
    whole = (middle != 0).all(dim=(1, 2))
    assert flipped[whole].float().mean() == pytest.approx(0.5, abs=0.05)
    # Half of the images lose 4 to 20 % of their area, what lies in the border included.
    lost = (views[:, 0, 4:28, 4:28] == 0).float().mean(dim=(1, 2))
    assert (lost > 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert 0.04 < lost[lost > 0].mean() < 0.2
    seen = views[whole & ~flipped, 0, 16, 16].unique()
    assert len(seen) == 81  # 9 x 9 places of the crop


@pytest.mark.parametrize(
    ("epochs", "sizes"), [(1, [8, 8, 9]), (StepCount(2), [8, 8]), (StepCount(4), [8, 8, 9, 8])]
)
def test_steps_are_a_part_of_an_epoch_or_several(epochs, sizes):
    """A last batch of one joins the batch before it."""
    model, found = nn.Linear(2, 2), []

    def loss(inputs, labels):
        found.append(len(labels))
        return model(inputs).sum()

    data = Examples(torch.randn(25, 2), torch.zeros(25, dtype=torch.int64), lambda x: x)
    phase = Phase(loss, [(model, 0.1)], epochs)
    run = phase, data, RunConfig(batch_size=8), np.random.default_rng(0), 1, ("this test",)
    flops = [train(*run)[1] for _ in range(2)]
    assert found == 2 * sizes
    assert flops == [sum(sizes) * 2 * 8] * 2, "forward and backward of 2 x 2 weights"


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


SIZES = [8] * (loops.WARM_UP + 1) + [5] + [8] * 3  # the batch of another size is eager


def losses(make):
    """Return the losses of batches of ``SIZES`` with the step that ``make`` makes of a phase."""
    drawn, draws = torch.Generator().manual_seed(1), torch.Generator().manual_seed(3)
    with torch_seeded(0, "graph step"):
        model = nn.Linear(4, 3)

    def loss(inputs, labels):
        noise = torch.randn(inputs.shape, generator=draws)
        return nn.functional.cross_entropy(model(inputs + noise), labels)

    step = make(Phase(loss, [(model, 0.1)], 1, generators=[draws]))
    found = [
        step(torch.randn(n, 4, generator=drawn), torch.randint(0, 3, (n,), generator=drawn))
        for n in SIZES
    ]
    return torch.stack(found)


def eager(phase):
    return Step(phase, RunConfig(), 1, 0, torch.device("cpu"))


@pytest.mark.parametrize(("fails", "replays"), [(False, 4), (True, 0)])
def test_losses_and_draws_are_the_eager_steps_to_the_bit(monkeypatch, caplog, fails, replays):
    """Also where a capture fails, which is said once; what is captured has no effect."""
    capturing, registered, replayed = [], [], []

    @contextmanager
    def graph(made):
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        capturing.append(made)
        yield
        capturing.clear()

    def captured(phase):
        step, made = eager(phase), SimpleNamespace(register_generator_state=registered.append)
        step.size, step.stream, body = 8, MagicMock(), step._body
        step._body = lambda *batch: torch.zeros(()) if capturing else body(*batch)

        def replay():
            replayed.extend(phase.generators)
            step.optimiser.clear()
            step.loss = body(step.inputs, step.labels)

        made.replay = replay
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made)
        return step

    for name in ("current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with caplog.at_level(logging.WARNING, logger="fedhet"):
        found = losses(captured)
    assert torch.equal(found, losses(eager))
    assert len(registered) == 1 and replayed == registered * replays
    assert caplog.text.count("training stays eager") == fails


def evaluated(logits, labels):
    """Evaluate given logits (n, C): the examples are their own answers."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    data = Examples(logits, torch.as_tensor(labels), prepare=lambda rows: rows)
    return evaluate(lambda rows: {"": rows}, data, RunConfig(), None)


@pytest.mark.parametrize(("count", "classes"), [(60, 2), (40, 30)])
def test_metrics_are_those_of_scikit_learn(count, classes):
    from sklearn import metrics as sk  # late: a second, which every worker would take to collect

    draws = np.random.default_rng(count)
    labels = draws.integers(0, classes, count)
    logits = draws.normal(size=(count, classes)).round(1)  # with equal scores
    logits[np.arange(count), labels] += draws.random(count) * 2
    logits[:20] = logits[0]
    found = evaluated(logits, labels).metrics
    p = torch.tensor(logits, dtype=torch.float32).double().softmax(1).numpy()
    answers, occur = logits.argmax(1), np.unique(labels)
    aurocs = [sk.roc_auc_score(labels == c, p[:, c]) for c in occur]
    bins = np.clip(np.ceil(p.max(1) * 15).astype(int), 1, 15)
    over = [(p.max(1) - (answers == labels))[bins == k].sum() for k in range(1, 16)]
    wanted = {
        "accuracy": 100 * sk.accuracy_score(labels, answers),
        "balanced_accuracy": 100 * np.mean([(answers[labels == c] == c).mean() for c in occur]),
        "macro_f1": 100 * sk.f1_score(labels, answers, average="macro", zero_division=0),
        "auroc": 100 * (aurocs[-1] if classes == 2 else np.mean(aurocs)),
        "log_loss": sk.log_loss(labels, p, labels=range(classes)),
        "ece": 100 * np.abs(over).sum() / count,
    }
    assert found == pytest.approx(wanted, rel=1e-9)
    assert set(found) == set(METRICS) == set(get_args(MetricName))


def test_what_is_not_defined_is_absent():
    found = evaluated([[2.0, 1.0], [0.0, 1.0]], [0, 0]).metrics
    assert not {"auroc", "balanced_accuracy"} & set(found), "one class fills the split"
    assert found["accuracy"] == 50
    broken = evaluated([[float("nan"), 1.0], [0.0, 1.0]], [0, 1]).metrics
    assert set(broken) == {"accuracy", "balanced_accuracy", "macro_f1"}


def test_the_majority_class_is_the_train_splits_and_others_have_an_accuracy_alone():
    data = Examples(torch.eye(3), torch.tensor([0, 1, 1]), prepare=lambda rows: rows)
    found = evaluate(lambda rows: {"": rows, "twin": rows}, data, RunConfig(), 1).metrics
    assert found["majority_accuracy"] == pytest.approx(200 / 3)
    assert found["accuracy_twin"] == found["accuracy"]
    assert not [name for name in found if name.endswith("twin") and name != "accuracy_twin"]


def test_the_headline_says_over_how_many_clients_a_mean_is():
    line = {"test_auroc_mean": 62.5, "test_auroc_clients": 1, "test_log_loss_clients": 2}
    assert headline("auroc", line).endswith("62.50 % (of 1 of 2 clients)")

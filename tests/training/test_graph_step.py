"""``GraphStep`` without a GPU: stand-ins for CUDA's streams and graphs record and replay."""

import logging
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedhet.rng import torch_seeded
from fedhet.training.optimisers import SGD
from fedhet.training.steps import WARM_UP, EagerStep, GraphStep


@pytest.fixture
def cuda(monkeypatch):
    """Stand-ins for CUDA's streams and graphs; gives what was made and replayed, in order."""
    log, stream = [], SimpleNamespace(wait_stream=lambda other: None)

    class Graph:
        """Replays what the body did when it was captured; registered generators go on drawing."""

        def __init__(self):
            self.generators = []
            log.append(self)

        def register_generator_state(self, generator):
            self.generators.append(generator)

        def replay(self):
            log.append("replay")
            self.step()

    @contextmanager
    def beside(_):
        log.append("warm-up")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", beside)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    return log


def capturing(monkeypatch, step, model, draws):
    """Let ``torch.cuda.graph`` record ``step``: nothing that it runs has an effect."""

    @contextmanager
    def graph(made):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        drawn = draws.get_state()
        yield
        model.load_state_dict(before)
        draws.set_state(drawn)

        def replay():
            step.clear()
            step.loss = step.body(step.inputs, step.labels)

        made.step = replay

    monkeypatch.setattr(torch.cuda, "graph", graph)


def parts(draws=()):
    with torch_seeded(0, "graph step"):
        model = nn.Linear(4, 3)
    optimiser = SGD([(list(model.parameters()), 0.1)])

    def body(inputs, labels):
        noise = torch.randn(inputs.shape, generator=draws[0]) if draws else 0.0
        loss = nn.functional.cross_entropy(model(inputs + noise), labels)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return model, body, optimiser.clear


def data(sizes):
    made = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 4, generator=made), torch.randint(0, 3, (n,), generator=made))
        for n in sizes
    ]


def test_losses_and_draws_are_those_of_the_eager_step_to_the_bit(cuda, monkeypatch):
    batches = data([8] * (WARM_UP + 1) + [5] + [8] * 3)
    _, body, clear = parts([torch.Generator().manual_seed(3)])
    eager = EagerStep(body, clear)
    wanted = [eager(*batch) for batch in batches]
    draws = torch.Generator().manual_seed(3)
    model, body, clear = parts([draws])
    step = GraphStep(body, clear, 8, [draws])
    capturing(monkeypatch, step, model, draws)
    found = [step(*batch) for batch in batches]
    (graph,) = [one for one in cuda if not isinstance(one, str)]
    assert graph.generators == [draws]
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    kinds = [one if isinstance(one, str) else "graph" for one in cuda]
    assert kinds == ["warm-up"] * WARM_UP + ["graph"] + ["replay"] * 4, "one batch is eager"


def test_a_capture_that_fails_is_said_once_and_stays_eager(cuda, monkeypatch, caplog):
    @contextmanager
    def graph(made):
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    _, body, clear = parts()
    step = GraphStep(body, clear, 8, [])
    batches = data([8] * (WARM_UP + 3))
    with caplog.at_level(logging.WARNING, logger="fedhet"):
        found = [step(*batch) for batch in batches]
    assert caplog.text.count("training stays eager") == 1
    _, body, clear = parts()
    eager = EagerStep(body, clear)
    assert torch.equal(torch.stack(found), torch.stack([eager(*batch) for batch in batches]))
    assert "replay" not in cuda

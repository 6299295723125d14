"""``GraphStep`` without a GPU: stand-ins for CUDA's graphs record and replay (see test_cuda.py)."""

import logging
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedhet.rng import torch_seeded
from fedhet.training.optimisers import SGD
from fedhet.training.steps import WARM_UP, EagerStep, GraphStep

SIZES = [8] * (WARM_UP + 1) + [5] + [8] * 3  # the batch of another size is eager


class Graph:
    """Replays what the body did when it was captured; registered generators go on drawing."""

    def __init__(self):
        self.generators, self.replays = [], 0

    def register_generator_state(self, generator):
        self.generators.append(generator)

    def replay(self):
        self.replays += 1
        self.step()


@pytest.fixture(autouse=True)
def _cuda(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)


def losses(make):
    """Return the losses of batches of ``SIZES``, the step that ``make`` makes, and its parts."""
    drawn, draws = torch.Generator().manual_seed(1), torch.Generator().manual_seed(3)
    with torch_seeded(0, "graph step"):
        model = nn.Linear(4, 3)
    optimiser = SGD([(list(model.parameters()), 0.1)])

    def body(inputs, labels):
        noise = torch.randn(inputs.shape, generator=draws)
        loss = nn.functional.cross_entropy(model(inputs + noise), labels)
        loss.backward()
        optimiser.step()
        return loss.detach()

    step = make(body, optimiser.clear, model, draws)
    found = [
        step(torch.randn(n, 4, generator=drawn), torch.randint(0, 3, (n,), generator=drawn))
        for n in SIZES
    ]
    return torch.stack(found), step, draws


def eager(body, clear, *_):
    return EagerStep(body, clear)


def test_losses_and_draws_are_those_of_the_eager_step_to_the_bit(monkeypatch):
    def captured(body, clear, model, draws):
        step = GraphStep(body, clear, 8, [draws])

        @contextmanager
        def graph(made):
            """Record ``step``: nothing that runs here has an effect."""
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
        return step

    found, step, draws = losses(captured)
    assert torch.equal(found, losses(eager)[0])
    assert step.graph.generators == [draws] and step.graph.replays == 4


def test_a_capture_that_fails_is_said_once_and_stays_eager(monkeypatch, caplog):
    @contextmanager
    def graph(made):
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    with caplog.at_level(logging.WARNING, logger="fedhet"):
        found, step, _ = losses(lambda body, clear, *_: GraphStep(body, clear, 8, []))
    assert caplog.text.count("training stays eager") == 1
    assert torch.equal(found, losses(eager)[0]) and step.graph is None

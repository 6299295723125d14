"""A captured ``Step`` without a GPU: a stand-in for CUDA's graph replays it (see test_cuda.py)."""

import logging
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedhet.rng import torch_seeded
from fedhet.training.loop import SGD, WARM_UP, Step

SIZES = [8] * (WARM_UP + 1) + [5] + [8] * 3  # the batch of another size is eager


def losses(make):
    """Return the losses of batches of ``SIZES`` with the step that ``make`` makes."""
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

    step = make(body, optimiser.clear, draws)
    found = [
        step(torch.randn(n, 4, generator=drawn), torch.randint(0, 3, (n,), generator=drawn))
        for n in SIZES
    ]
    return torch.stack(found)


@pytest.mark.parametrize(("fails", "replays"), [(False, 4), (True, 0)])
def test_losses_and_draws_are_the_eager_steps_to_the_bit(monkeypatch, caplog, fails, replays):
    """Also where a capture fails, which is said once; what is captured has no effect."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    capturing, registered, replayed = [], [], []

    @contextmanager
    def graph(made):
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        capturing.append(made)
        yield
        capturing.clear()

    def captured(body, clear, draws):
        step = Step(
            lambda *batch: torch.zeros(()) if capturing else body(*batch), clear, 8, [draws]
        )

        def replay():
            replayed.append(draws)
            step.clear()
            step.loss = body(step.inputs, step.labels)

        made = SimpleNamespace(register_generator_state=registered.append, replay=replay)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made)
        return step

    monkeypatch.setattr(torch.cuda, "graph", graph)
    with caplog.at_level(logging.WARNING, logger="fedhet"):
        found = losses(captured)
    assert torch.equal(found, losses(lambda body, clear, _: Step(body, clear)))
    assert len(registered) == 1 and replayed == registered * replays
    assert caplog.text.count("training stays eager") == fails

"""One step of SGD: eager everywhere, captured in a CUDA graph where that is possible.

A graph replays the kernels of a whole step (forward, loss, backward, clipping, update) with one
launch, which is what small networks are bound by on a GPU. The first full batches run eagerly on
a side stream, as capturing demands; they are ordinary steps of the training. Batches of another
size, and losses that cannot be captured, stay eager.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

Body = Callable[[Tensor, Tensor], Tensor]

WARM_UP = 3  # eager steps before a capture: optimiser state and workspaces exist by then
WORTH_IT = 20  # fewer steps than this do not pay for a capture
log = logging.getLogger("fedhet")


class EagerStep:
    """Runs ``body`` as it is; ``clear`` drops the gradients before."""

    def __init__(self, body: Body, clear: Callable[[], None]) -> None:
        self.body = body
        self.clear = clear

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One step on inputs (B, 3, s, s) and labels (B,); returns the loss, detached."""
        self.clear()
        return self.body(inputs, labels)


class GraphStep(EagerStep):
    """Captures ``body`` for batches of ``size`` images after a few eager steps, then replays it."""

    def __init__(
        self,
        body: Body,
        clear: Callable[[], None],
        size: int,
        generators: list[torch.Generator],
    ) -> None:
        super().__init__(body, clear)
        self.size = size
        self.generators = generators
        self.seen = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """See :class:`EagerStep`; the result of a replay is a copy."""
        if len(labels) != self.size or self.failed:
            return super().__call__(inputs, labels)
        self.seen += 1
        if self.seen <= WARM_UP:
            return self._beside(inputs, labels)
        if self.graph is None and not self._capture(inputs, labels):
            return super().__call__(inputs, labels)
        assert self.graph is not None
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss.clone()

    def _beside(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Make an eager step on a side stream, as capturing wants for warm-up."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = super().__call__(inputs, labels)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _capture(self, inputs: Tensor, labels: Tensor) -> bool:
        """Record the step; nothing is executed. False if this loss cannot be captured."""
        self.inputs, self.labels = inputs.clone(), labels.clone()
        self.clear()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph):
                self.loss = self.body(self.inputs, self.labels)
        except RuntimeError as error:
            log.warning("training stays eager, the step cannot be captured: %s", error)
            self.failed = True
            self.clear()
            return False
        self.graph = graph
        return True

"""The server half of a method: hooks in plain arrays, called in every round in this order.

``download`` (what is sent down) -> the client receives, trains, uploads -> ``expect`` and ``check``
(what may come up) -> ``aggregate``. With ``secure-sum`` no upload reaches the server: each client
makes its ``contribution``, and ``combine`` takes their sum. ``arrays`` and ``load`` are its state.
No hook sees a Flower object. The round loop is in :mod:`fedhet.strategies.rounds`, which only the
server's process imports; a client's process imports this module for the sake of the method's
parameters and its ``contribution``.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedhet.config.schema import P, RunConfig
from fedhet.data.inputs import Inputs
from fedhet.protocol.checks import Rejected, form, size
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, Empty, Payload
from fedhet.site.public_set import PublicSet, open_public
from fedhet.strategies.robust import Rule
from fedhet.sums.contribution import Own, Vector

if TYPE_CHECKING:
    from fedhet.protocol.handshake import Roster


@dataclass(frozen=True)
class Upload:
    """An accepted reply: whose it is, its payload, and its weight n_k / sum n_j in the round."""

    info: ClientInfo
    payload: Payload
    weight: float
    metrics: Mapping[str, float]


class RoundLoop(Protocol):
    """What Flower's hooks lead to: :class:`fedhet.strategies.rounds.Rounds`."""

    def summary(self) -> None:
        """Log what is about to run."""

    def run(self, grid: Grid, on_round: Callable[[Mapping[str, Any]], None] | None) -> None:
        """Run the rounds that are left."""

    def train_messages(self, round_: int) -> Iterable[Message]:
        """See :meth:`MethodStrategy.configure_train`."""

    def take_training(self, round_: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See :meth:`MethodStrategy.aggregate_train`."""

    def evaluate_messages(self, round_: int) -> Iterable[Message]:
        """See :meth:`MethodStrategy.configure_evaluate`."""

    def take_accuracies(self, replies: Iterable[Message]) -> MetricRecord | None:
        """See :meth:`MethodStrategy.aggregate_evaluate`."""


class MethodStrategy(Strategy, Generic[P]):
    """Server half of a method with parameters ``P``; the module's docstring names the hooks."""

    upload_type: type[Payload] = Empty
    plans_rounds = False  # whether a round depends on how many there will be
    aggregations: ClassVar[Sequence[str]] = ("mean",)  # values of `aggregation` that it can do
    metric_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of its own metrics: all
    public_set: ClassVar[Literal["nobody", "server", "everybody"]] = "nobody"  # who uses one
    shares_small_model = False  # one that `small-model` names
    # Why `secure-sum` is refused; empty where `contribution` and `combine` do the whole of it.
    sums_updates = False  # with noise: steps from what was sent are summed, not what came of them
    not_summed: ClassVar[str] = "its strategy has no `contribution` and `combine`"
    refuses: ClassVar[Mapping[str, str]] = {}  # kinds of input that it cannot work with, and why
    rounds: RoundLoop  # who asks, checks and writes down; set before the first round

    def __init_subclass__(cls) -> None:
        """An ``aggregate`` of its own does more than the ``combine`` that it inherits."""
        super().__init_subclass__()
        own = vars(cls)
        if "aggregate" in own and not {"combine", "not_summed"} & set(own):
            cls.not_summed = MethodStrategy.not_summed

    def __init__(self, config: RunConfig, roster: "Roster") -> None:
        self.config = config
        self.params = cast("P", config.params)
        self.roster = roster
        self.rule = Rule.of(config)
        self.classes = len(roster.classes)
        self.inputs = roster.inputs or Inputs.image(config.image_size, grey=config.grey)
        self.d = config.representation

    # --- hooks of a method: plain arrays in, plain arrays out --------------------------------

    @classmethod
    def check_config(cls, config: RunConfig, params: P) -> None:
        """Raise UserError for settings that this method cannot work with.

        ``config`` is the whole configuration, ``params`` the method's own part of it.
        """

    @classmethod
    def own_small(cls, params: P) -> str:
        """The small model that one of ``params`` names, before ``small-model``; empty: none."""
        return ""

    @classmethod
    def ignores(cls, config: RunConfig, params: P) -> Mapping[str, str]:
        """Common keys that change nothing under ``config`` and ``params``, each with the reason.

        A configuration that sets one of them to something else than its default is refused.
        """
        return {}

    def initialise(self) -> None:
        """Create the global arrays as they are before round 1; a resumed run calls ``load``."""

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """What is sent to the client ``info`` at the start of round ``round_`` (1 to T).

        Copies, never views of the strategy's own arrays.
        """
        return Empty()

    def audience(self, info: ClientInfo) -> Hashable:
        """Clients of one audience are sent the same payload: it is made and encoded once a round.

        By default every client, as ``info`` has it, is an audience of its own; with ``secure-sum``
        all are one.
        """
        return "all" if self.config.summed else info.client

    def expect(self, info: ClientInfo) -> Payload | None:
        """A payload with the shapes and dtypes of the upload of client ``info``; None: they vary.

        Its values are what the client went on from, or zeros: see :meth:`step_length`.
        """
        return Empty()

    def check(self, info: ClientInfo, payload: Payload) -> None:
        """Raise Rejected if ``payload``, of the right shapes, is not acceptable from ``info``."""

    def step_length(self, payload: Payload, length: float) -> float | None:
        """Length of the step that ``payload`` makes: by default from what ``expect`` returned.

        That is ``length``, a root mean square over its values, which ``max-update-ratio`` bounds;
        None: ``check`` bounds them by itself.
        """
        return length

    def step_start(self, info: ClientInfo) -> float:
        """Root mean square of what the step of client ``info`` starts from; 0: from nothing."""
        expected = self.expect(info)
        return 0.0 if expected is None else size(expected.flat)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Combine ``uploads``, sorted by client, in float64, at the end of round ``round_``.

        Their weights n_k / sum n_j add up to 1. Returns numbers worth recording in the round's
        line.
        """
        return {}

    @classmethod
    def contribution(cls, upload: Payload, own: Own) -> Vector:
        """What one client adds to the sum, (L,) float64; called in the client's process.

        It is linear in what ``upload`` shares, and as long for every client of a run; ``own`` is
        what the client knows of itself. Raises NotImplementedError where there is no sum.
        """
        raise NotImplementedError(cls.not_summed)

    @classmethod
    def counts_at_end(cls, own: Own) -> int:
        """How many entries at the end of a contribution are counts, which no noise covers.

        ``own`` is as in :meth:`contribution`.
        """
        return 0

    def vector_length(self) -> int:
        """L, entries of a contribution; NotImplementedError where there is no sum."""
        raise NotImplementedError(self.not_summed)

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Set the global arrays from ``total`` (L,) float64, the sum of contributions of a round.

        Returns numbers worth recording. Raises NotImplementedError where there is no sum.
        """
        raise NotImplementedError(self.not_summed)

    @classmethod
    def sums_classes(cls, config: RunConfig, params: P) -> bool:
        """Whether a contribution has rows of the client's classes, which ``sum-owners`` guards.

        ``config`` is the run's, ``params`` the method's own part of it.
        """
        return False

    def arrays(self) -> dict[str, Array]:
        """The global arrays by name, of any shape (n, ...) and dtype: checkpointed and hashed."""
        return {}

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Raise Rejected for arrays (n, ...) of a checkpoint that :meth:`load` cannot take.

        Called after :meth:`initialise`, before a run is said to be whole or goes on: names in
        their order, dtypes and shapes are those of :meth:`arrays`, but for the length of those
        that are :attr:`growing`, and all numbers are finite. Extended by a method that wants more.
        """
        own = self.arrays()
        if list(arrays) != list(own):
            raise Rejected(f"{len(arrays)} arrays, which are not the {len(own)} of this method")
        for name, array in arrays.items():
            like = own[name]
            if name in self.growing and array.ndim:
                like = np.empty((len(array), *like.shape[1:]), dtype=like.dtype)
            if form(array) != form(like):
                raise Rejected(f"array '{name}' is {form(array)}, expected {form(like)}")
            if not np.isfinite(array).all():
                raise Rejected(f"array '{name}' holds NaN or infinity")

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take ``arrays``, of shapes (n, ...) and dtypes as :meth:`arrays` gave them.

        In the same order; called instead of :meth:`initialise` in a run that goes on.
        """

    @property
    def growing(self) -> Collection[str]:
        """Names of :meth:`arrays` that have another length from round to round."""
        return ()

    @property
    def least_owners(self) -> int:
        """Owners that a class needs for its rows to become its mean: ``sum-owners`` of a sum."""
        return self.config.sum_owners if self.config.summed else 1

    @property
    def of_updates(self) -> bool:
        """Whether a total is one of steps from the global arrays, clipped and noised."""
        return self.sums_updates and self.config.summed and self.config.dp_clip > 0

    @classmethod
    def weighs_images(cls, config: RunConfig, params: P) -> bool:
        """Whether a contribution is weighed by images, in units of ``max-images``.

        ``config`` and ``params`` are as in :meth:`sums_classes`.
        """
        return config.weighting == "samples" and "weighting" not in cls.ignores(config, params)

    @property
    def public(self) -> PublicSet:
        """The run's public data set, on the CPU; opened when first asked for (``public_set``)."""
        return PublicSet(open_public(self.config), torch.device("cpu"))

    # --- Flower's hooks ----------------------------------------------------------------------

    def summary(self) -> None:
        """Log what is about to run."""
        self.rounds.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One train message per sampled client that is online, in client order."""
        return self.rounds.train_messages(server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, sort and combine the replies; (None, None) if fewer than min-replies are valid.

        The global arrays stay in the strategy: of a round that counts, only its numbers return.
        """
        return None, self.rounds.take_training(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One evaluate message per online client whose present state has no accuracy yet."""
        return self.rounds.evaluate_messages(server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Book the accuracies; returns their mean over all clients evaluated so far, percent."""
        return self.rounds.take_accuracies(replies)

    def start(  # noqa: PLR0913  (Flower's signature)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        on_round: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Result:
        """Run the rounds that are left: all, or those after a checkpoint.

        What Flower's signature has beside ``grid`` comes from the configuration instead; the result
        is empty, since the global arrays are in the run folder. Raises RunFailedError when too many
        rounds in a row had too few valid replies.
        """
        self.rounds.run(grid, on_round)
        return Result()

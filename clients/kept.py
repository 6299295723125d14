"""What a client keeps between two rounds: modules and tensors, by generation, and what they are."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn

from fedhet.config.schema import BESIDE, P, RunConfig
from fedhet.data.inputs import IMAGE, Inputs
from fedhet.data.preparation import FITTED, Preparation, preparation
from fedhet.errors import HookError, RunFailedError, brief
from fedhet.models.names import plain_names, with_weights
from fedhet.protocol.flower import NumPyClient, Scalar
from fedhet.rng import torch_seeded
from fedhet.site.limits import Limits
from fedhet.site.local_data import LocalData
from fedhet.site.modules import Modules, fill, instance, not_finite, to_bundle
from fedhet.site.state import StateError, StateStore
from fedhet.training.loop import Examples, Fixed

PREPARATION = "preparation"  # the module, beside a method's own, that was fitted to own examples


@dataclass(frozen=True)
class Setup:
    """All that a client is made from; resolved by the ClientApp."""

    config: RunConfig
    data: LocalData
    classes: Sequence[str]
    model: str
    device: torch.device
    store: StateStore
    simulated: bool = True
    limits: Limits = field(default_factory=Limits)


class KeptClient(NumPyClient, Generic[P]):
    """The modules and tensors of a client of a method with parameters ``P``, and their store."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.params = cast("P", setup.config.params)
        self.device = setup.device
        self.classes = len(setup.classes)
        self.inputs: Inputs = setup.data.dataset.inputs
        self.d = setup.config.representation
        self.modules: Modules = {}
        self.tensors: dict[str, Tensor] = {}
        self.saved = ""  # digest of the state that was stored last
        self._fixed = Fixed(())

    @abstractmethod
    def build(self) -> dict[str, nn.Module]:
        """The modules of generation 0."""

    @abstractmethod
    def initial_tensors(self) -> dict[str, Tensor]:
        """The tensors of generation 0, by name: (n, ...) each, of any dtype."""

    @abstractmethod
    def examples(self, part: str) -> Examples:
        """The client's examples; ``part`` is ``train``, ``val`` or ``test``."""

    def restore(self, generation: int, state: str = "") -> None:
        """Put the modules and tensors of ``generation`` in place; 0 is the initialisation.

        ``state`` is the digest that the server names; StateLostError if there is no such state,
        StateError if it does not fit the modules.
        """
        key = (
            type(self), self.setup.model, self.classes, self.inputs, self.d,
            self.config.params, self.config.models, self.config.small_model, str(self.device),
        )  # fmt: skip
        self.tensors = {name: t.to(self.device) for name, t in self.initial_tensors().items()}
        self.modules, self._fixed = instance(
            key, self._initialised, self.device, fresh=generation == 0
        )
        if generation == 0:
            self._fit_preparation()
        else:
            bundle = self.setup.store.load(generation, state)
            try:
                kept = fill(self.modules, bundle)
                self._check_declared(kept)
                for name, tensor in self.tensors.items():
                    self.tensors[name] = kept[name].to(tensor.device).view_as(tensor)
            except (RuntimeError, KeyError) as error:
                raise StateError(
                    f"generation {generation} does not fit the models that this round is for, of "
                    f"{self.classes} classes: {brief(error)}"
                ) from error

    def _initialised(self) -> Modules:
        with torch_seeded(self.config.seed, "init", self.setup.data.client):
            built = self.build()
        if self.inputs.kind in FITTED:
            built[PREPARATION] = preparation(self.inputs)
        return built

    def _fit_preparation(self) -> None:
        """On the own train split, once: what a model was trained behind stays with it."""
        module = self.modules.get(PREPARATION)
        if module is not None and len(self.setup.data.split.train):
            cast("Preparation", module).fit(self.examples("train").examples)

    def _check_declared(self, tensors: Iterable[str]) -> None:
        """HookError for a tensor that a later round would not find."""
        undeclared = sorted(set(tensors) - set(self.initial_tensors()))
        if undeclared:
            raise HookError(
                f"{type(self).__name__}: tensor '{undeclared[0]}' is kept and not declared: add it "
                "to `initial_tensors`"
            )

    def save(self, generation: int, source: int, metrics: Mapping[str, Scalar]) -> None:
        """Store modules, tensors and the last accuracies, of ``metrics``, as ``generation``.

        ``source`` is the generation that the round began with, which stays as well. Raises
        RunFailedError if a tensor is not finite; the state before then stays the newest.
        """
        self._check_declared(self.tensors)
        scores = (
            (name, float(value)) for name, value in metrics.items()
            if "accuracy" in name and name not in BESIDE
        )  # fmt: skip
        bundle = to_bundle(self.modules, self.tensors, scores)
        if lost := not_finite(bundle):
            raise RunFailedError(
                f"'{lost}' is not finite after round {generation}: the state before it stays; use "
                "a smaller lr, or grad-clip"
            )
        self.setup.store.describe(self.description())
        self.saved = self.setup.store.save(generation, source, bundle)

    def description(self) -> dict[str, Any]:
        """What it takes to rebuild this client without the run's configuration and its examples."""
        keys = {"method", "image_size", "models", "precision", "threads"}
        if self.inputs.kind != IMAGE:
            keys.remove("image_size")
        for key in ("small_model", "representation", "grey"):
            if getattr(self.config, key) != RunConfig.model_fields[key].default:
                keys.add(key)
        about = {} if self.inputs.kind == IMAGE else {"inputs": self.inputs.dump()}
        return {
            "client": self.setup.data.client,
            "architecture": with_weights(self.setup.model)[0],
            "classes": list(self.setup.classes),
            **self.config.model_dump(mode="json", include=keys),
            "models": list(plain_names(self.config.models)),
            **about,
            "hyper-parameters": self.config.params.model_dump(mode="json"),
        }

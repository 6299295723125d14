"""The client half of a round: restore, receive, train, upload, evaluate, save.

:class:`MethodClient` is a Flower ``NumPyClient``; methods fill in the hooks.
"""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedhet.config.schema import BESIDE_ACCURACY, METRICS, P, RunConfig
from fedhet.data.cache import texts_at
from fedhet.data.inputs import IMAGE, READ_KEYS, Inputs
from fedhet.data.preparation import AUGMENTATIONS, Preparation, preparation
from fedhet.errors import Code, Refused, RunFailed, brief, coded, refusing
from fedhet.models.names import FOLDER, parse, public_names
from fedhet.models.networks import SplitModel
from fedhet.models.pretrained import Backbone
from fedhet.models.zoo import build_model
from fedhet.protocol.checks import check_dtypes, check_shapes, finite_norm
from fedhet.protocol.flower import NumPyClient, Scalar
from fedhet.protocol.payload import Array, Empty, Payload
from fedhet.rng import generator, torch_seed, torch_seeded
from fedhet.site import state
from fedhet.site.limits import Limits, check_steps
from fedhet.site.local_data import LocalData, examples_of
from fedhet.site.privacy import Budget, UploadProtection
from fedhet.training import loop
from fedhet.training.loop import Examples, Phase
from fedhet.training.metrics import evaluate, own_metrics

PREPARATION = "preparation"  # the module, beside a method's own, that was fitted to own examples


@dataclass(frozen=True)
class Setup:
    """The inputs of a client, resolved by the ClientApp."""

    config: RunConfig
    data: LocalData
    classes: Sequence[str]
    model: str
    device: torch.device
    store: state.FileStore
    simulated: bool = True
    limits: Limits = field(default_factory=Limits)
    protection: UploadProtection = field(default_factory=UploadProtection)  # noise, or masks


@dataclass(frozen=True)
class Needs:
    """The parts of a client's state that inference needs and ``fedhet export`` writes.

    ``modules`` names entries of the client's; ``without`` names parts of those modules, such as
    ``small.head``, that are left out.
    """

    modules: Sequence[str] = ("model",)
    without: Sequence[str] = ()


class MethodClient(NumPyClient, Generic[P]):
    """Client half of a method with parameters ``P``. An instance exists for one message.

    A method overrides :meth:`build` (its modules), :meth:`receive`, :meth:`loss` or :meth:`phases`,
    :meth:`upload` and, if more than the local model answers, :meth:`infer`. ``modules`` are its
    private state: parameters and buffers are saved after a round and restored before the next.
    """

    download_type: type[Payload] = Empty
    shares_model = True  # whether it sends a whole model, however small; a site may refuse that
    caches_frozen = False  # whether inputs reach nothing but the local model, so that a frozen
    # network's answers may stand in their place

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.params = cast("P", setup.config.params)
        self.device = setup.device
        self.classes = len(setup.classes)
        self.inputs: Inputs = setup.data.dataset.inputs
        self.d = setup.config.representation
        small = setup.config.small_model  # what networks of equal shapes have in common
        self._kind = (type(self), setup.model, self.classes, self.inputs, self.d, small)
        self.modules: state.Modules = {}
        self.saved_digest = ""  # of the state that was stored last
        self._fixed = loop.Fixed(())
        self.round = 0
        self.shared_classes = setup.protection.shared  # whose rows are averaged; None: all
        self.sent_all = setup.config.summed  # by secure-sum, everybody the same
        self.evaluating = False  # whether this round's reply carries accuracies
        self.before: dict[str, float] = {}  # accuracies before training
        self._generators: list[torch.Generator] = []

    # --- hooks of a method -------------------------------------------------------------------

    def build(self) -> dict[str, nn.Module]:
        """Return the client's modules, freshly initialised (called in a seeded context)."""
        return {"model": self.local_model()}

    def expect_download(self, came: Any) -> Payload | None:
        """Return a payload with the shapes and dtypes that ``came`` must have; None: any.

        ``came`` is an unchecked instance of ``download_type``. Use it only for lengths that vary.
        Raise Refused or ValueError if no payload can match it.
        """
        return None

    def check_download(self, payload: Any) -> None:
        """Raise Refused if ``payload``, finite and of the right shapes, is not acceptable."""

    def receive(self, payload: Any) -> None:
        """Take in ``payload`` from the server, an instance of ``download_type``."""

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates of the modules that :meth:`loss` trains; by default of all."""
        return dict.fromkeys(self._trainable(), self.config.lr)

    def phases(self) -> list[Phase]:
        """Return the phases of local training; by default one, on :meth:`loss`."""
        groups = [(self.modules[name], rate) for name, rate in self.learning_rates().items()]
        return [Phase(self.loss, groups, self.local_work, generators=self._generators)]

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar to minimise for inputs (B, ...) and labels (B,) int64."""
        return self.cross_entropy(self.model(inputs), labels)

    def upload(self) -> Payload:
        """Return the payload for the server after training."""
        return Empty()

    def infer(self, inputs: Tensor) -> Tensor:
        """Return logits (B, C) of ``inputs`` (B, ...), using only :meth:`inference_needs`."""
        return cast("Tensor", self.model(inputs))

    def inference_needs(self) -> Needs:
        """Return the parts that :meth:`infer` uses; by default, where it is overridden, all."""
        own = [name for name in self.modules if name != PREPARATION]
        return Needs() if type(self).infer is MethodClient.infer else Needs(own)

    def _trainable(self) -> list[str]:
        fixed, modules = set(self._fixed.parameters), self.modules.items()
        return [name for name, m in modules if name == "model" or {*m.parameters()} - fixed]

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return logits (B, C) of ``inputs`` by name: :meth:`infer`'s, named "", then others."""
        return {"": self.infer(inputs)}

    def extra_metrics(self) -> dict[str, float]:
        """Return the method's own metrics of this round, by the names in ``metric_ranges``.

        ``rounds.jsonl`` has their means over clients, weighted by images.
        """
        return {}

    # --- what hooks may use ------------------------------------------------------------------

    @property
    def model(self) -> SplitModel:
        """The client's own heterogeneous model."""
        return cast("SplitModel", self.modules["model"])

    @property
    def local_work(self) -> int | loop.StepCount:
        """Length of a phase of local training: ``local-epochs``, or ``local-steps`` if set."""
        return loop.StepCount(self.config.local_steps) or self.config.local_epochs

    def cross_entropy(
        self, logits: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        """Return the cross-entropy of logits (B, C), a scalar; every loss uses this one.

        ``labels`` (B,) int64 are the targets, unless ``targets`` (B, C) are probabilities. With
        ``class-weights: balanced`` it is the mean weighted by the labels' classes.
        """
        wanted = labels if targets is None else targets
        if self.config.class_weights == "none":
            return F.cross_entropy(logits, wanted)
        each = F.cross_entropy(logits, wanted, reduction="none")
        weights = self._class_weights[labels]
        return (weights * each).sum() / weights.sum()

    @cached_property
    def _counts(self) -> dict[int, int]:
        """Training examples by class id, in the order of the data."""
        ids = {name: number for number, name in enumerate(self.setup.classes)}
        return {ids[name]: count for name, count in self.setup.data.class_counts().items()}

    @cached_property
    def _class_weights(self) -> Tensor:
        """Weights (C,) float32: n / (classes x examples) on the train split, 1 if it has none."""
        weights, total = torch.ones(self.classes), sum(self._counts.values())
        for label, count in self._counts.items():
            weights[label] = total / (len(self._counts) * count)
        return weights.to(self.device)

    def local_model(self) -> nn.Module:
        """Return a new model of this client's architecture."""
        return build_model(self.setup.model, classes=self.classes, d=self.d, inputs=self.inputs)

    def examples(self, part: str, *, raw: bool = False) -> Examples:
        """Return the examples of ``part``, ``train``, ``val`` or ``test``, on the device.

        Of texts the ids of a model's own tokenizer stand behind those of the run's hash. Unless
        ``raw``, the examples of a frozen network are its answers, if nothing random stands before.
        """
        model = self.modules.get("model")
        alone = self.caches_frozen and self._trainable() == ["model"] and not raw
        if alone and isinstance(model, Backbone) and model.frozen and self.config.augment == "none":
            return self._answers(model, part)
        prepare = self.modules.get(PREPARATION) or preparation(self.inputs)
        local = self.setup.data
        with coded(Code.DATA):
            data = examples_of(local, part, self.setup.classes, self.device, prepare)
            encode = getattr(model, "encode", None)
            if encode is not None:
                texts = texts_at(local.dataset, getattr(local.split, part))
                ids = torch.from_numpy(encode(texts)).to(self.device)
                data = replace(data, examples=torch.cat([data.examples, ids], dim=1))
        return data

    def _answers(self, model: Backbone, part: str) -> Examples:
        """Return the answers of a frozen network, kept beside the client's states."""
        local = self.setup.data
        about = [model.network_digest, local.dataset.digest, str(self.inputs), self.device.type]
        key = hashlib.sha256(f"{about} {self.config.precision}".encode())
        for rows in (local.split.train, getattr(local.split, part)):  # inputs are fitted to train
            key.update(rows.tobytes())
        marked = torch.tensor(list(key.digest()), dtype=torch.uint8)
        kept = self.setup.store.kept(f"answers-{part}")
        if not torch.equal(kept.get("key", marked[:0]), marked):
            data = self.examples(part, raw=True)
            model.eval()
            rows = torch.zeros(0, 1)
            if len(data):
                rows = loop.outputs_on(model.answers, data, self.config)
            kept = {"key": marked, "x": rows.cpu(), "y": data.labels.cpu()}
            self.setup.store.keep(f"answers-{part}", kept)
        return Examples(kept["x"].to(self.device), kept["y"].to(self.device), nn.Identity())

    def seen(self) -> Array:
        """Return the sorted ids (S,) int64 of the classes in the train split."""
        return np.array(sorted(self._counts), dtype=np.int64)

    def torch_generator(self, purpose: str) -> torch.Generator:
        """Return a generator on the device, seeded by (seed, ``purpose``, client, round)."""
        made = torch.Generator(self.device)
        self._generators.append(made)
        client = self.setup.data.client
        return made.manual_seed(torch_seed(self.config.seed, purpose, client, self.round))

    # --- Flower's interface ------------------------------------------------------------------

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Run one round: restore, receive, train, upload, evaluate, save as generation r.

        ``config`` is what our server tells. Under another one a round goes on from the newest
        state, and is evaluated. Return the upload's arrays, the training examples, the metrics.
        """
        started = time.perf_counter()
        source = self._take_up(config)
        self.evaluating = bool(config.get("evaluate", True))
        setup = self.setup
        budget = Budget(setup.store, self.config, setup.data.client, simulated=setup.simulated)
        budget.check(self.round, source)
        received = self._received(parameters)
        self.receive(received)
        metrics = self._trained()
        sent = setup.protection.protect(self.upload(), received, self.round, budget)
        if self.config.dp_clip:
            metrics["epsilon_spent"] = budget.epsilon
        if self.evaluating:
            metrics |= self.evaluation()
        metrics |= self.extra_metrics() | self.before
        self.save(self.round, source, metrics)
        metrics["seconds"] = time.perf_counter() - started
        return sent.flat, len(self.setup.data.split.train), metrics

    def _trained(self) -> dict[str, Scalar]:
        """Train in all phases, then set evaluation mode; return losses and FLOPs."""
        if self.config.evaluate_before:
            self.score_received()
        data = self.examples("train")
        check_steps(self.setup.limits, self.config, len(data))
        drawn = data
        if change := AUGMENTATIONS.get(self.config.augment):
            steps = data.prepare, partial(change, generator=self.torch_generator("augment"))
            first, then = steps[::-1] if self.config.augment == "crop-flip" else steps
            drawn = replace(data, augment=lambda examples: then(first(examples)))
        metrics: dict[str, Scalar] = {"train_flops": 0.0}
        flops = 0.0
        with torch_seeded(self.config.seed, "train", self.setup.data.client, self.round):
            shuffle = generator(self.config.seed, "shuffle", self.setup.data.client, self.round)
            phases = self.phases()
            for number, phase in enumerate(phases):
                loop.set_trainable(list(self.modules.values()), phase, self._fixed)
                kind = (*self._kind, number, phase.name, data.examples.shape[1:])
                mean, cost = loop.train(phase, drawn, self.config, shuffle, self.round, kind)
                loss, flops = mean.item(), flops + cost
                metrics[f"train_loss_{phase.name}".rstrip("_")] = loss
                if phase.after is not None:
                    phase.after()
        if phases:
            metrics.setdefault("train_loss", loss)
        nn.ModuleList(self.modules.values()).eval()
        return metrics | {"train_flops": flops}

    def get_parameters(self, config: dict[str, Scalar]) -> list[Array]:
        """Return the arrays that the client would send of its newest state, without training."""
        self._take_up(config)
        return self.upload().to_ndarrays()

    def evaluate(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Evaluate the state that the server names, or the newest, without training.

        ``parameters``, if there are any, are received before. Return the loss on the test split,
        its number of examples, and the metrics.
        """
        self._take_up(config)
        if parameters:
            self.receive(self._received(parameters))
        metrics = self.evaluation()
        loss = metrics.get("test_log_loss", math.nan)
        return loss, len(self.setup.data.split.test), dict(metrics)

    def confusion_matrix(self, generation: int, digest: str) -> Tensor:
        """Return the confusion matrix (C, C) int64 of the test split, after the last round.

        ``generation`` and its ``digest`` name the client's last state. The private state keeps
        what ``keep-best`` and ``keep-predictions`` ask for.
        """
        self._take_up({"generation": generation, "digest": digest})
        kept: dict[str, Tensor] = {}
        confusion = torch.zeros(self.classes, self.classes, dtype=torch.int64)
        for part in ("val", "test"):
            data = self.examples(part)
            if len(data):
                result = evaluate(self.predict, data, self.config)
                rows = torch.from_numpy(getattr(self.setup.data.split, part).astype("int64"))
                answers = {"row": rows, "y": result.labels.cpu(), "p": result.probabilities()}
                kept |= {f"{part}/{name}": tensor for name, tensor in answers.items()}
                confusion = result.confusion() if part == "test" else confusion
        if self.config.keep_predictions:
            self.setup.store.describe(self.description())
            self.setup.store.keep(state.PREDICTIONS, kept)
        return confusion

    def _take_up(self, config: Mapping[str, Scalar]) -> int:
        """Restore the state that ``config`` names, or the newest; return its generation."""
        store = self.setup.store
        stored = store.generations()
        generation = int(config.get("generation", max(stored, default=0)))
        self.round = int(config.get("round", generation + 1))
        self.restore(generation, str(config.get("digest", "")))
        if generation == 0 and len(stored) > 1:
            raise Refused("generation 0 is no longer kept: it has trained since", Code.GENERATION)
        # The server names a state, so it has accepted that round: later ones may be undone.
        score = store.read_note(state.VALIDATION) if self.config.keep_best and generation else None
        if score is not None and score["generation"] == generation:
            best = store.read_note(state.BEST)
            if best is None or score["value"] > best["value"]:
                store.keep_best(generation)
                store.write_note(state.BEST, score)
        return generation

    def score_received(self) -> None:
        """Evaluate before the models train, in a round that is evaluated."""
        if self.evaluating:
            nn.ModuleList(self.modules.values()).eval()
            scores = self.evaluation().items()
            self.before = {f"{n}_before": value for n, value in scores if n not in BESIDE_ACCURACY}

    # --- the base's own work -----------------------------------------------------------------

    def evaluation(self) -> dict[str, float]:
        """Return the metrics of the test and validation split, by ``test_`` and ``val_``.

        An empty split has no metrics. Every entry of :meth:`predict` has an accuracy; only
        :meth:`infer` has all metrics.
        """
        by_split: dict[str, float] = {}
        majority = max(self._counts, key=self._counts.__getitem__, default=None)
        for part in ("test", "val"):
            data = self.examples(part)
            if len(data):
                result = evaluate(self.predict, data, self.config, majority)
                more = own_metrics(result, self.config) if part == "test" else {}
                by_split |= {f"{part}_{name}": n for name, n in {**result.metrics, **more}.items()}
        return by_split

    def _received(self, arrays: Sequence[Array]) -> Payload:
        """Return the arrays as the payload that this client expects; else raise Refused."""
        try:
            payload = self.download_type.from_ndarrays(arrays)
        except ValueError as error:
            of = type(self).__name__
            text = f"`download_type` of {of} must be what the strategy's `download` returns"
            raise Refused(f"{error}: {text}") from error
        with refusing():
            check_dtypes(payload)
            expected = self.expect_download(payload)
            if expected is not None and isinstance(payload, type(expected)):
                check_shapes(payload.flat, expected.flat)
            self.setup.limits.check("max_download_norm", finite_norm(payload.flat))
            self.check_download(payload)
        return payload

    # --- what is kept between two rounds -----------------------------------------------------

    def restore(self, generation: int, digest: str = "") -> None:
        """Put modules of ``generation``, in evaluation mode, in place; 0: initial ones.

        ``digest`` is what the server names. Raise Refused if there is no such state, or if it does
        not fit the modules.
        """
        key = (*self._kind, self.config.params, self.config.models, str(self.device))
        fresh = generation == 0
        self.modules, self._fixed = state.instance(key, self._initialised, self.device, fresh=fresh)
        nn.ModuleList(self.modules.values()).eval()
        if fresh:
            fitted = self.modules.get(PREPARATION)  # to the train split, and saved with the model
            if fitted is not None and len(self.setup.data.split.train):
                cast("Preparation", fitted).fit(self.examples("train", raw=True).examples)
        else:
            bundle = self.setup.store.load(generation, digest)
            try:
                state.fill(self.modules, bundle)
            except RuntimeError as error:
                text = f"generation {generation} does not fit models with {self.classes} classes"
                raise Refused(f"{text}: {brief(error)}", Code.STATE) from error

    def _initialised(self, purpose: str) -> state.Modules:
        with torch_seeded(self.config.seed, purpose, self.setup.data.client):
            built = self.build()
        if self.inputs.fitted:
            built[PREPARATION] = preparation(self.inputs)
        return built

    def save(self, generation: int, source: int, metrics: Mapping[str, Scalar]) -> None:
        """Store modules and the last accuracies, of ``metrics``, as ``generation``.

        ``source`` is the generation that the round began with, which stays as well. Raises
        RunFailed if a tensor is not finite; the state before then stays the newest.
        """
        names = (name for name in metrics if "accuracy" in name and name not in BESIDE_ACCURACY)
        scores = ((name, float(metrics[name])) for name in names)
        bundle = state.to_bundle(self.modules, scores)
        if lost := state.not_finite(bundle):
            text = f"'{lost}' is not finite after round {generation}: the state before it is kept"
            raise RunFailed(f"{text}; use a smaller lr, or grad-clip")
        self.setup.store.describe(self.description())
        self.saved_digest = self.setup.store.save(generation, source, bundle)
        value = metrics.get(f"val_{self.config.metric}")
        if self.config.keep_best and value is not None:
            worth = -float(value) if METRICS[self.config.metric].less_is_better else float(value)
            note = {"generation": self.round, "value": worth}
            self.setup.store.write_note(state.VALIDATION, note)

    def description(self) -> dict[str, Any]:
        """Return values that rebuild this client without the run's configuration and examples."""
        plain = self.inputs.kind == IMAGE
        always = {"method", "models", "precision", "threads"} | ({"image_size"} if plain else set())
        varied, dump = {"small_model", "representation", "grey", *READ_KEYS}, self.config.model_dump
        # The model is named without a file of weights, unless a state lacks some of them.
        model = parse(self.setup.model)
        whole = model.partly or model.plain.startswith(FOLDER)
        about = {} if plain and not self.inputs.fitted else {"inputs": self.inputs.dump()}
        return {
            "client": self.setup.data.client,
            "architecture": self.setup.model if whole else model.structure,
            "classes": list(self.setup.classes),
            **dump(mode="json", include=always),
            **dump(mode="json", include=varied, exclude_defaults=True),
            "models": list(public_names(self.config.models)),
            **about,
            "hyper-parameters": self.config.params.model_dump(mode="json"),
        }

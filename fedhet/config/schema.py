"""The schema of a run: every key with its meaning, unit and range.

Keys are flat and kebab-case in YAML and on the command line. A method adds its own keys through
a subclass of :class:`Params`; :mod:`fedhet.config.load` reads and checks both.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from typing_extensions import TypeVar  # Python 3.11 knows no defaults of type variables

from fedhet.errors import Damaged
from fedhet.files import CLIENT_ID, parse_yaml

REPRESENTATION = 500  # d: default width of the representation that every model ends in


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation: its title, range, and whether less is better.

    Percentages have ``high`` 100; others are plain numbers.
    """

    title: str
    low: float = 0.0
    high: float = 100.0
    less_is_better: bool = False

    @property
    def percent(self) -> bool:
        """Whether values are percentages."""
        return self.high == 100  # noqa: PLR2004

    def text(self, value: float) -> str:
        """Return a value as it is shown."""
        return f"{value:.2f} %" if self.percent else f"{value:.4f}"


MetricName = Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "log_loss", "ece"]
# A new metric: a name above, a line here, its value in fedhet/training/metrics.py; docs and tests
# that list all metrics are named in docs/explanation/round.md.
METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("accuracy"),
    "balanced_accuracy": Metric("balanced accuracy"),
    "macro_f1": Metric("macro F1"),
    "auroc": Metric("AUROC"),
    "log_loss": Metric("log loss", high=math.inf, less_is_better=True),
    "ece": Metric("ECE", less_is_better=True),
}


def second_metric(metric: str, known: Collection[str]) -> str:
    """Return the one of the ``known`` metrics that tables show beside ``metric``; empty: none."""
    beside = ("balanced_accuracy", "accuracy")
    return next((name for name in beside if name in known and name != metric), "")


MAJORITY = "majority_accuracy"  # what the commonest class of the train split would get
# The metrics beside accuracy, by their names in records. The hash chain, a client's state and its
# digest cover accuracies alone, as before there were others: none of these goes into them.
BESIDE_ACCURACY: Mapping[str, Metric] = {
    f"{part}_{name}": metric
    for part in ("test", "val")
    for name, metric in {**METRICS, MAJORITY: Metric("majority accuracy")}.items()
    if name != "accuracy"
}


def is_score(name: str) -> bool:
    """Return whether a client's number is a metric of its evaluation: an accuracy, or beside it."""
    return "accuracy" in name or is_beside(name)


def is_beside(name: str) -> bool:
    """Return whether a client's number is a metric beside accuracy: ours, or of the run's own."""
    return name in BESIDE_ACCURACY or (name.startswith("test_") and "accuracy" not in name)


# What each method may need a value of its own of; anything else is what they are compared under.
TUNABLE = frozenset({
    "lr", "local-epochs", "local-steps", "batch-size", "momentum", "weight-decay", "lr-schedule",
    "optimizer", "grad-clip", "augment", "class-weights",
})  # fmt: skip
# Keys whose value is a path: the business of one machine.
PATHS = ("out", "data-path", "partition-file", "state-dir")
REGISTERED, OFF = "registered", "off"
Precision = Literal["fp32", "tf32", "bf16"]
Partitioning = (
    Literal["classes-per-client", "dirichlet", "iid", "quantity", "natural", "file"]
    | Annotated[str, Field(pattern="^flwr:[A-Z]")]
)


def kebab(name: str) -> str:
    """Python field name to the key in YAML and on the command line."""
    return name.replace("_", "-")


def _words(value: Any) -> Any:
    """Return a comma separated text (command line) as the list that YAML would give."""
    if isinstance(value, str):
        value = re.sub(r"^\[(.*)\]$", r"\1", value.strip())
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


def _size(value: Any) -> Any:
    """``48x64`` as height and width; a list of both, of which one number is a square."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,4}x\d{1,4}", value):
        value = [int(side) for side in value.split("x")]
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        return value[0]
    return value


Pairs = tuple[tuple[str, tuple[str, ...]], ...]


def _lists(value: Any) -> Any:
    """``{name: [values]}`` as pairs that can be hashed; names alone have no values.

    A text (command line) is what YAML makes of it, or names with commas between them.
    """
    if isinstance(value, str):
        try:
            parsed = parse_yaml(value)
        except Damaged:
            parsed = None
        value = parsed if isinstance(parsed, dict | list) else _words(value)
    if isinstance(value, Mapping):
        pairs = ((k, v if isinstance(v, list | tuple) else [v]) for k, v in value.items())
        return tuple(
            (str(name), tuple(str(one) for one in ones if one is not None)) for name, ones in pairs
        )
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple((one, ()) for one in value)
    return value


def _mapping(pairs: Pairs) -> Any:
    """Inverse of :func:`_lists`."""
    lists = {name: list(values) for name, values in pairs}
    return lists if any(lists.values()) else list(lists)


Side = Annotated[int, Field(ge=16, le=512)]
Lists = Annotated[Pairs, BeforeValidator(_lists), PlainSerializer(_mapping)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Window = Annotated[tuple[float, float] | tuple[()], BeforeValidator(_words)]
Size = Annotated[
    Side | tuple[Side, Side],
    BeforeValidator(_size),
    PlainSerializer(lambda side: side if isinstance(side, int) else "x".join(map(str, side))),
]
Functions = Annotated[
    Pairs,
    BeforeValidator(_lists),
    PlainSerializer(lambda pairs: {name: one for name, ones in pairs for one in ones} or []),
]
Ratio = Annotated[
    tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]],
    BeforeValidator(lambda value: value.split(":") if isinstance(value, str) else value),
    PlainSerializer(lambda ratio: ":".join(map(str, ratio))),
]


class Schema(BaseModel):
    """Frozen, unknown keys forbidden, kebab-case aliases; a text below a key is its meaning."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab,
        validate_by_name=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Join the lines of each key's meaning."""
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split()) or None

    def flat(self) -> dict[str, Any]:
        """Return all keys as plain YAML/JSON values."""
        return self.model_dump(mode="json")


class Params(Schema):
    """Hyper-parameters of one method; the base is a method without any of its own."""


P = TypeVar("P", bound=Params, default=Params)  # of the method that a strategy or client is of


# Keys that say how a file of rows is written.
FORM = ("columns", "separator", "decimal", "thousands", "quote", "encoding", "sheet", "gaps")


class Start(Schema):
    """What is run on which data: the keys that come first."""

    method: str = "fedssa"
    """one of `fedhet methods`, or module:METHOD"""

    dataset: str = "digits"
    """digits, cifar10, cifar100, fashion-mnist, image-folder, table (a CSV), signals (an NPZ),
    texts (a CSV), synthetic[:IMAGES] or module:load"""
    data_path: str = ""
    """file of `table`, `signals` or `texts`, or a folder with one for each site; folder or zip of
    `image-folder`; local copy of `hf:NAME`; download folder of torchvision's data sets"""


class DataKeys(Schema):
    """Which column of a data set's file is what, and how the file is written."""

    target: str = ""
    """column of the class; empty: guessed by name and values, and printed"""
    labels: Lists = ()
    """classes by values of the target, such as {ill: [1, 2], healthy: [0]}, or by ranges of a
    measurement: {low: ..140, high: 140..} (140 is high)"""
    site: Words = ()
    """columns that together name the client, for partition=natural"""
    group: Words = ()
    """columns that name the patient, recording or family of a row, whose rows all lie in one
    split of one client; of image-folder a pattern such as {group}_*.png"""
    split_by: str = ""
    """column of a date or a number; the latest rows of a client are its test"""
    categories: Lists = ()
    """columns of `table` that are not numbers, with their values {sex: [f, m]}; on a network
    the values are required, in a simulation those of the file are used"""
    numbers: Words = ()
    """columns of `table` that are numbers; with categories all that models see"""
    ignore: Words = ()
    """columns that no model sees"""
    image: str = ""
    """column of the images (file names or bytes) of a table of `image-folder`"""
    text: str = ""
    """column of the text, of `texts`"""
    length: int = Field(64, ge=1, le=4096)
    """words kept of a text; time steps of a window with `time`"""
    vocabulary: int = Field(5000, ge=2, le=1 << 20)
    """number of token ids to hash words to; 0 is padding"""
    scale: float = Field(1.0, gt=0)
    """divisor of the numbers of `signals`"""
    axes: Literal["", "channels-time", "time-channels"] = ""
    """order of a window's axes in an NPZ; empty: guessed by their lengths"""
    channels: Words = ()
    """columns of the channels in a CSV of `signals`; of one row per window, how they begin"""
    time: str = ""
    """column of the time, in a CSV with one row per time step"""
    columns: Words = ()
    """names of the columns of a CSV without header"""
    separator: str = ""
    """comma, semicolon, tab, pipe, space or a character; empty: guessed"""
    decimal: Literal["", ".", ","] = ""
    """decimal sign; empty: guessed"""
    thousands: str = Field("", max_length=1)
    """sign between thousands in numbers"""
    quote: Literal["", '"', "'", "none"] = ""
    """quote around texts of a CSV, or none; empty: guessed"""
    encoding: str = ""
    """such as latin-1; empty: by byte order mark, or UTF-8"""
    sheet: str = ""
    """sheet of an Excel workbook"""
    gaps: Words = ()
    """spellings of a missing value; empty: ?, NA, null, none, -, ... and no text"""


class RunConfig(DataKeys, Start):
    """Everything that decides a run, resolved; the method's own keys are in ``params``."""

    window: Window = ()
    """LOW,HIGH of images of more than 8 bits; empty: each client's own range"""
    standardise: bool = False
    """images of 8 bits by each channel's mean and deviation in the client's train split"""
    image_size: Size = 32
    """side of the square input, pixels, or HEIGHTxWIDTH such as 48x64"""
    grey: bool = False
    """images in one channel instead of three"""
    classes: Words = ()
    """class names in label order; empty: all of the data's"""

    clients: int = Field(0, ge=0, le=1_000_000)
    """N, number of clients; 0: as many as the network, the file or the data has"""
    fraction: float = Field(1.0, gt=0, le=1)
    """C, share of clients per round"""
    partition: Partitioning = "classes-per-client"
    """how examples are assigned to clients; natural: by the data's own `site`;
    `flwr:DirichletPartitioner alpha=0.3`: by a partitioner of flwr-datasets"""
    partition_file: str = ""
    """CSV `path,client,split` of partition=file, and perhaps `group`"""
    classes_per_client: int = Field(2, ge=1)
    """classes that each client owns"""
    alpha: float = Field(0.3, gt=0)
    """concentration of the Dirichlet partitions, and of quantity"""
    split: Ratio = (8, 1, 1)
    """train:val:test, integers, per client and class"""

    models: Words = Field(("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"), min_length=1)
    """architectures of `fedhet models`, a group such as @signal-5, or module:factory; `
    [frozen] weights=FILE` may follow; default: the kind's group"""
    model_assignment: Literal["modulo", "random"] = "modulo"
    """client k gets model k mod len(models), or a seeded draw"""

    small_model: str = ""
    """model that all clients share, in methods that share one; empty: the smallest of the
    kind's group; if all clients have the same model: that CNN, or CNN-1 for torchvision's"""
    representation: int = Field(REPRESENTATION, ge=1, le=8192)
    """d, width of the representation of all models"""

    rounds: int = Field(100, ge=1, le=1_000_000)
    """T, communication rounds"""
    patience: int = Field(0, ge=0)
    """evaluated rounds without a better validation metric that end the run; 0: all rounds"""
    local_epochs: int = Field(10, ge=1)
    """E, epochs of local training per round"""
    local_steps: int = Field(0, ge=0, le=1_000_000)
    """steps of local training per round, instead of epochs; 0: local-epochs"""
    batch_size: int = Field(64, ge=2)
    """B, examples per step"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """sgd, or adam with torch's betas; fresh every round"""
    lr: float = Field(0.01, gt=0)
    """learning rate of the optimizer"""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """cosine: from lr to 0 over the run's rounds, fixed within a round"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """momentum of SGD, fresh every round"""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty of the optimizer"""
    grad_clip: float = Field(0.0, ge=0)
    """largest gradient norm of one network; 0: off"""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: in cross-entropies a class counts by n / (classes x examples) of the train split"""
    augment: Literal["none", "crop-flip", "flip-erase-crop", "jitter-scale"] = "none"
    """crop-flip (images): random crop with a margin of s/8 and flip; flip-erase-crop (images): the
    same, a rectangle erased in between; jitter-scale (signals): noise, a factor for each channel"""
    precision: Precision = "fp32"
    """arithmetic of training: fp32, tf32, bf16"""
    threads: int = Field(1, ge=1, le=256)
    """torch threads per training process"""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda or cuda:N"""
    actors: int = Field(0, ge=0)
    """training processes of a simulation; 0: by `threads` and CPUs, on GPUs one for each 2 GiB"""
    seed: int = Field(0, ge=0, lt=2**31)
    """seed of every random number"""
    partition_seed: int = Field(-1, ge=-1, lt=2**31)
    """seed of who owns which images and splits; -1: the seed"""

    engine: Literal["processes", "ray", "inline"] = "processes"
    """a simulation's clients train in worker processes, Ray tasks (RAY_ADDRESS), or the command"""

    metric: MetricName = "accuracy"
    """main metric of a run; it decides the best round"""
    evaluate_every: int = Field(1, ge=1)
    """rounds between evaluations"""
    evaluate_before: bool = False
    """record accuracies after receiving and before training as well"""
    evaluate_all: bool = True
    """evaluate also clients that were never sampled, as initialised"""
    weighting: Literal["samples", "uniform"] = "samples"
    """weights in means over clients: training examples, or equal"""

    min_replies: int = Field(1, ge=1)
    """accepted replies that a round needs"""
    max_skipped_rounds: int = Field(3, ge=0)
    """rounds in a row with too few replies before the run fails"""
    round_timeout: float = Field(3600.0, gt=0)
    """longest wait for a round on a network, seconds"""
    late: Literal["drop", "next"] = "drop"
    """what becomes of a slow site's reply on a network: drop (a round waits for everybody, as long
    as round-timeout), or next (it counts in the round in which it comes)"""
    late_after: float = Field(30.0, gt=0)
    """with late=next, seconds after which a round ends once min-replies have come"""
    late_weight: float = Field(0.5, gt=0, le=1)
    """with late=next, factor in the weight of a reply for each round that it is late"""
    start_timeout: float = Field(900.0, gt=0)
    """longest wait for clients on a network, seconds"""
    max_update_norm: float = Field(1e4, gt=0)
    """largest L2 norm of one upload; above it the reply is refused"""
    max_update_ratio: float = Field(10.0, ge=0)
    """largest step of an upload, in multiples of the median; 0: no limit"""
    max_images: int = Field(1_000_000, ge=1, lt=2**53)
    """most training examples of a client; in a sum, of the largest weight (4096 if not set)"""
    max_classes: int = Field(1_000, ge=1)
    """most classes of a client, and of a run that does not name them"""
    max_weight: float = Field(1.0, gt=0, le=1)
    """largest share of one client in a weighted mean; 1: no limit"""
    aggregation: Literal["mean", "trimmed-mean", "median"] = "mean"
    """weighted mean, or unweighted ones that a few false uploads cannot move"""
    trim: float = Field(0.2, ge=0, lt=0.5)
    """share of the values left out at each end by trimmed-mean"""
    client_keys: Literal["auto", "registered", "off"] = "auto"
    """a registered name belongs to its node's key: auto; only such names: registered; or off"""

    dp_clip: float = Field(0.0, ge=0)
    """largest L2 norm of a client's update before noise; 0: no noise"""
    dp_epsilon: float = Field(0.0, ge=0)
    """privacy budget: epsilon of one client's uploads in the run, with noise"""
    dp_delta: float = Field(0.0, ge=0, lt=1)
    """delta of one client's uploads in the run, with noise"""

    secure_sum: Literal["off", "masked"] = "off"
    """masked: the server learns uploads only as sums"""
    sum_range: float = Field(64.0, gt=0)
    """largest absolute value of an entry of a summed vector"""
    sum_min: int = Field(3, ge=2)
    """fewest clients of a sum"""
    sum_threshold: int = Field(0, ge=0)
    """members that must help to unmask a sum; 0: more than half of them"""
    sum_owners: int = Field(3, ge=1)
    """fewest clients with a class for which its rows are summed"""
    sum_metrics: bool = True
    """also sum accuracies and losses; false: each client sends its own"""

    state_dir: str = ""
    """folder of simulated clients' states; empty: in the run folder"""
    keep_state: bool = True
    """keep the clients' last states after the run"""
    keep_best: bool = False
    """also keep each client's state of its best validation round"""
    keep_predictions: bool = False
    """keep each client's predictions on its validation and test examples"""
    metrics: Functions = ()
    """own test metrics, {name: module:function}, of labels (n,) and probabilities (n, C)"""
    tuned: Words = ()
    """keys that were tuned for each method; reports compare them as one setting"""
    tracker: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    """service that also gets the numbers of every round"""
    out: str = "runs"
    """folder for run folders"""
    name: str = Field("", pattern=rf"^({CLIENT_ID})?$")
    """name of the run folder, up to 64 of A-Z a-z 0-9 . _ -; empty: of the preset and the time"""

    params: Params = Field(Params(), exclude=True)

    def flat(self) -> dict[str, Any]:
        """Return all keys of the run, the method's own included, as plain YAML/JSON values."""
        return super().flat() | self.params.flat()

    @property
    def data_seed(self) -> int:
        """The seed of the partition, its splits and synthetic images."""
        return self.seed if self.partition_seed < 0 else self.partition_seed

    @property
    def summed(self) -> bool:
        """Whether the server gets sums alone (``secure-sum``)."""
        return self.secure_sum != "off"

    def evaluates(self, round_: int) -> bool:
        """Return whether all clients are evaluated in this round."""
        return round_ % self.evaluate_every == 0 or round_ == self.rounds

    def cohort(self, clients: int) -> int:
        """K = max(1, round(C x N)): clients sampled per round."""
        return max(1, round(self.fraction * clients))

"""What the JSON of a run folder must be before anything is done with it.

Every field that fedhet reads is of its kind, and none is missing or unknown where an unknown one
would be acted on. A file that does not fit is named with the field.
"""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from fedhet.data.inputs import load_inputs
from fedhet.files import is_id
from fedhet.sums.messages import SumKey


def _id(name: str) -> str:
    if not is_id(name):
        raise ValueError(f"'{name:.80}' is no id")
    return name


Count = Annotated[int, Field(ge=0, lt=2**63)]
Id = Annotated[str, AfterValidator(_id)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
Percent = float | None


class _Strict(BaseModel):
    """Nothing is converted, nothing unknown is passed over."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Open(BaseModel):
    """The same, but for figures that nobody acts on, which may be of another fedhet."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Started(_Open):
    """Of a run's configuration what commands show before they have checked all of it."""

    method: str = "fedssa"
    dataset: str = ""
    rounds: Count = 0
    state_dir: str = Field("", alias="state-dir")


class Identity(_Strict):
    """``checkpoint/run.json``."""

    experiment: Id
    config: Started


class Failure(_Open):
    """Who was left out of a round, and why."""

    client: str
    reason: str


class Lost(_Strict):
    """Whose state is gone, since when, and why."""

    round: Count
    reason: str


class LostClient(Lost):
    """The same with the client's name, as summaries have it."""

    client: str


class Summary(_Open):
    """``summary.json``, as far as commands use it; every figure is computed again in a check."""

    status: str
    reason: str
    rounds: Count
    clients: Count = 0
    method: str = ""
    test_accuracy_mean: Percent = None
    test_accuracy_p10: Percent = None
    wall_seconds: float = 0.0
    failures: list[dict[str, Any]] = Field(default_factory=list)
    clients_lost: list[LostClient] = Field(default_factory=list)


class Line(_Open):
    """A line of ``rounds.jsonl``."""

    round: Count
    test_accuracy_mean: Percent
    test_accuracy_std: Percent
    test_accuracy_p10: Percent
    test_accuracy_min: Percent
    val_accuracy_mean: Percent
    train_loss: float | None
    sampled: Count
    replied: Count
    offline: Count
    uplink_floats: Count
    downlink_floats: Count
    uplink_bytes: Count
    downlink_bytes: Count
    uplink_message_bytes: Count
    downlink_message_bytes: Count
    train_flops: float | None
    seconds: float
    failures: list[Failure]
    lost: list[LostClient]
    sha256: Digest
    epsilon_spent: dict[str, float] = Field(default_factory=dict)


class Mark(_Strict):
    """Where a file was when the checkpoint was written."""

    bytes: Count
    sha256: Digest


class Score(_Strict):
    """A client's last evaluation."""

    generation: Count
    accuracies: dict[str, float]


class Info(_Strict):
    """What a client declared."""

    client: Id
    classes: list[str]
    seen_names: list[str]
    images: list[Count]
    train_images: Count
    model: str
    device: str
    seen: list[Count]

    @model_validator(mode="after")
    def _counts_each_class(self) -> "Info":
        if not len(self.seen) == len(self.seen_names) == len(self.images):
            raise ValueError("seen, seen_names and images are not of one length")
        return self


class RosterPart(_Strict):
    """Who takes part."""

    classes: list[str]
    infos: dict[Id, Info]
    generations: dict[Id, Count]
    states: dict[Id, Digest]
    lost: dict[Id, Lost]
    keys: dict[Id, list[str]] = Field(default_factory=dict)  # for sums, with proofs
    inputs: dict[str, Any] | None = None  # what examples are; absent in books older than that

    @field_validator("keys")
    @classmethod
    def _are_keys(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for key in value.values():
            SumKey.load(key)
        return value

    @field_validator("inputs")
    @classmethod
    def _describes_examples(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            load_inputs(value)
        return value

    @model_validator(mode="after")
    def _is_of_its_clients(self) -> "RosterPart":
        strange = [
            info.client for info in self.infos.values()
            if any(label >= len(self.classes) for label in info.seen)
        ]  # fmt: skip
        if strange:
            raise ValueError(f"client '{strange[0]}' has a class beyond the run's list")
        if self.infos.keys() - self.generations.keys():
            raise ValueError("generations lacks a client of infos")
        if self.states.keys() - self.generations.keys():
            raise ValueError("generations lacks a client of states")
        return self


class Steps(_Strict):
    """How long updates were: of the round loop's check of uploads."""

    start: float | None = None
    medians: list[float] = Field(default_factory=list)


class Meta(_Strict):
    """The books in a checkpoint, all of them."""

    names: list[str]
    round: Count
    simulated: bool
    roster: RosterPart
    sha256: Digest
    steps: Steps = Steps()
    scores: dict[Id, Score]
    told: list[Count] | None = None  # of older versions: a resumed run counts owners again
    few: Count = 0  # how many have some, and too few
    means: dict[str, float] = Field(default_factory=dict)  # last ones of a run that knows no more
    rounds: Mark
    clients: Mark
    experiment: Id
    environment: Digest

    @model_validator(mode="after")
    def _has_means_of_a_round(self) -> "Meta":
        if self.means and not self.round:
            raise ValueError("means of a run that has finished no round")
        return self

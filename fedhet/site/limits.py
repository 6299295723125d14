"""What a site was asked and what it allows: its history, and a file of its administrator.

``limits="/etc/fedhet/limits.yaml"`` in a node configuration. It wins over any run: the
client alone reads it, in the handshake and again before every training, and refuses what breaks it,
with the limit's name. Each limit is one field of :class:`Limits`: its type, its meaning, what it
allows and how it is checked. Limits on questions, runs and epsilon count lines of the history.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import yaml
from flwr.app import Message
from pydantic import Field, ValidationError

from fedhet import plugins
from fedhet.config.schema import Lists, RunConfig, Schema, Words, kebab
from fedhet.data.cache import Dataset
from fedhet.data.inputs import Form, load_inputs
from fedhet.errors import Code, Damaged, Refused, UserError, one_line
from fedhet.files import parse_object, private_folder, read_json, read_jsonl, read_yaml
from fedhet.models.names import kinds_of, parse
from fedhet.protocol.messages import CONFUSION, EVALUATE, OWNERS, QUERY, TRAIN, Reply
from fedhet.site.privacy import NOTE, epsilon_of, mu_of, noise_multiplier

NAME = "history.jsonl"
SHAKE, ANSWERED = "handshake", "answered"
STAGES = {
    QUERY: SHAKE,
    TRAIN: "training",
    OWNERS: "owners of classes",
    EVALUATE: "evaluation",
    CONFUSION: "confusion matrix",
}  # messages that ask for something of the data
SUMS = ("sum-min", "sum-metrics", "sum-owners")
SUM_MIN = 3  # fewest sites of a sum, and owners of a class: of two each knows the other's part
# Keys of a run that the history shows, where they are set.
SHOWN = (
    "dataset", "target", "labels", "classes", "numbers", "categories", "text", "channels", "group",
    "gaps", "ignore", "split-by", "window",
    "rounds", "secure-sum", *SUMS, "dp-clip", "dp-epsilon", "dp-delta",
)  # fmt: skip
DAY = timedelta(hours=24)


# Honest payloads of all methods had norms from 1 to 56 in five rounds of three clients on digits; a
# model of 100 million parameters of 0.1 has 1,000.
MAX_DOWNLOAD_NORM = 1e4
MAX_DOWNLOAD_BYTES = 1 << 30
MIN_CLASS = 5  # examples, of a node with data of its own


def state_root(node: Mapping[str, Any]) -> Path:
    """Return the folder of a deployed node's states, by its configuration."""
    return Path(str(node.get("state-dir") or Path.home() / ".fedhet" / "state"))


class History:
    """The questions to one node, in ``history.jsonl``; without a folder nothing is kept.

    A question is a configuration of one run. Each of its STAGES is a line, in the first round; the
    same answer again is not.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.new = False  # whether the question at hand was not asked before
        self._lines: list[dict[str, Any]] | None = None

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines, the oldest first; raise Refused for a damaged file."""
        if self._lines is None:
            try:
                self._lines = read_jsonl(self.folder / NAME) if self.folder else []
            except (Damaged, OSError) as error:
                raise Refused(f"the history of this site: {error}", Code.STATE) from error
        return self._lines

    def missing(self) -> bool:
        """Return whether there are states of runs, but no history of them."""
        root = self.folder
        return bool(root and not (root / NAME).exists() and any(root.glob("*/*/client.json")))

    def today(self) -> int:
        """Return how many different questions were answered in the last 24 hours."""
        since = (datetime.now(UTC) - DAY).isoformat()
        return len({one["question"] for one in self._answered() if one["time"] >= since})

    def runs(self) -> set[str]:
        """Return the runs that have had more than a handshake here."""
        return {one["run"] for one in self._answered() if one["stage"] != SHAKE}

    def epsilon(self, but: str) -> float:
        """Return what the uploads of all runs ``but`` one have cost; infinite without noise."""
        budgets = {one["run"]: one for one in self._answered() if one["stage"] != SHAKE}
        return math.fsum(self._cost(run, one) for run, one in budgets.items() if run != but)

    def _cost(self, run: str, line: Mapping[str, Any]) -> float:
        if not line.get("dp-clip"):
            return math.inf
        assert self.folder is not None
        spent = []
        for path in (self.folder / run).glob(f"*/{NOTE}.json"):
            try:
                account = read_json(path)
                agreed, uploads = account["agreed"], int(account["uploads"])
                delta, rounds = float(agreed["dp_delta"]), int(agreed["rounds"])
                mu = mu_of(float(agreed["dp_epsilon"]), delta) * math.sqrt(uploads / rounds)
                spent.append(epsilon_of(mu, delta))
            except (Damaged, OSError, KeyError, TypeError, ValueError) as error:
                raise Refused(f"the account '{path}' cannot be read", Code.STATE) from error
        return max(spent, default=float(line["dp-epsilon"]))  # without account: all of it

    def _answered(self) -> list[dict[str, Any]]:
        return [one for one in self.lines() if one["answer"].startswith(ANSWERED)]

    @contextlib.contextmanager
    def asked(
        self,
        message: Message,
        run_config: Mapping[str, Any],
        say: Callable[[Callable[[], str]], None],
    ) -> Iterator[Callable[[Reply], None]]:
        """Note a question, unless it was noted before, with what becomes of it in this block.

        The block calls what it is given with its reply.
        """
        config, replies = message.content.config_records.get("config"), list[Reply]()
        stage = STAGES.get(message.metadata.message_type)
        if not (self.folder and config and stage) or config.get("refused"):
            yield replies.append
            return
        line = question(str(config.get("experiment", "")), run_config) | {"stage": stage}
        self.new = all(one["question"] != line["question"] for one in self._answered())
        try:
            yield replies.append
        except (Exception, SystemExit) as error:
            self._add(line | {"answer": f"refused: {one_line(error)}"}, say)
            raise
        told = filter(None, map(told_by, replies))
        self._add(line | {"answer": "; ".join([ANSWERED, *told])}, say)

    def _add(self, line: dict[str, Any], say: Callable[[Callable[[], str]], None]) -> None:
        if any(_same(one) == _same(line) for one in self.lines()):
            return
        assert self.folder is not None
        try:
            private_folder(self.folder)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with open(os.open(self.folder / NAME, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            text = f"'{self.folder / NAME}' cannot be written: {error}"
            raise Refused(text, Code.STATE) from error
        known = any(one["question"] == line["question"] for one in self.lines())
        about = line["run"] if known else asked(line)
        self._lines = [*self.lines(), line]
        say(lambda: f"question: {about}: {line['stage']}: {one_line(line['answer'], 2000)}")


def _same(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what lines have in common of which one is enough: every round is answered alike."""
    sent = line["stage"] != SHAKE and line["answer"].startswith(ANSWERED)
    return line["question"], line["stage"], "sent" if sent else line["answer"]


def told_by(reply: Reply) -> str:
    """Return in words what a reply tells the server."""
    info, size = reply.info, sum(array.nbytes for array in reply.arrays)
    if "inputs" not in info:
        counted = sum(info.get("confusion", ())[2::3])
        words = [f"{size:,} bytes of the method"] * (size > 0) + [*reply.metrics]
        words += [f"{counted} test examples by class and answer"] * (counted > 0)
        return ", ".join(words)
    pairs = zip(info.get("seen", ()), info.get("images", ()), strict=True)
    counts = ", ".join(f"{count} of {name!r}" for name, count in pairs)
    columns = ", ".join(load_inputs(info["inputs"]).columns)
    return f"{counts or 'no class and no count'}; columns: {columns or 'none'}"


def begin_anew(folder: Path) -> Path | None:
    """Put the states and the history of a node aside, and return where they are now."""
    old = {path.parent.parent for path in folder.glob("*/*/client.json")}
    old |= {path for path in [folder / NAME] if path.exists()}
    if not old:
        return None
    aside = folder / f"before-{datetime.now(UTC):%Y-%m-%d-%H%M%S}"
    aside.mkdir(mode=0o700)
    for path in old:
        path.rename(aside / path.name)
    return aside


def question(experiment: str, run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the history says of a run that asks, and a digest of the whole question."""
    text = str(run_config.get("config", ""))
    values: Mapping[str, Any] = run_config
    with contextlib.suppress(Damaged, KeyError):
        values = parse_object(text)["config"] if text else run_config
    whole = json.dumps([experiment, sorted(values.items())], default=str)
    hidden = SUMS if values.get("secure-sum") in {None, "off"} else ()
    shown = {key: values[key] for key in SHOWN if values.get(key) and key not in hidden}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"), "run": experiment[:64],
        "name": one_line(values.get("name") or "", 64),
        "method": one_line(values.get("method", ""), 80),
        **shown, "question": hashlib.sha256(whole.encode()).hexdigest()[:16],
    }  # fmt: skip


def asked(line: Mapping[str, Any]) -> str:
    """Return in words what a line of the history was asked."""
    keys = [f"{key}={json.dumps(line[key], ensure_ascii=False)}" for key in SHOWN if key in line]
    words = f"{line['name'] or 'a run'} ({line['run']}): {line['method']} {' '.join(keys)}"
    return one_line(words, 2000)


# --- limits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A run that asks a site: its configuration, and what the site knows of earlier ones."""

    config: RunConfig
    shares_model: bool = False
    history: History = field(default_factory=History)
    experiment: str = ""


Check = Callable[[Any, Any], object]  # of the limit's value and what it is held against


def limit(
    meaning: str, check: Check, allows: str = "{}", default: Any = None, **bounds: Any
) -> Any:
    """Declare a limit: ``check`` returns what the run has instead, or nothing if it is allowed."""
    about: Any = {"check": check, "allows": allows}
    return Field(default, description=meaning, json_schema_extra=about, **bounds)


def _over(what: str) -> Check:
    """Return the check that a number is no larger than the limit."""
    return lambda most, value: "" if value <= most else f"{what} {value:.10g}"


def _longest(most: int, asked: Asked) -> str:
    config = asked.config
    own = {k: v for k, v in config.params.model_dump().items() if k.endswith("epochs")}
    own = {k: v for k, v in own.items() if not k.startswith("server-")}
    epochs = own if config.local_steps else {"local_epochs": config.local_epochs} | own
    name = max(epochs, key=lambda key: epochs[key], default="")
    return f"{kebab(name)} is {epochs[name]}" if name and epochs[name] > most else ""


def _noise(summed: bool) -> Check:  # noqa: FBT001
    """Return the check of the noise of runs that have sums, or of those that have none."""

    def check(least: float, asked: Asked) -> str:
        noise = noise_multiplier(asked.config)
        less = asked.config.summed == summed and noise < least
        return f"the run has {noise:.4g}" if less else ""

    return check


def _masked(_: str, asked: Asked) -> str:
    config = asked.config
    wrong = {
        f"secure-sum is {config.secure_sum}": not config.summed,
        "sum-metrics is false": not config.sum_metrics,
        f"sum-min is {config.sum_min}": config.sum_min < SUM_MIN,
        f"sum-owners is {config.sum_owners}": config.sum_owners < SUM_MIN,
    }
    return next((text for text, so in wrong.items() if so), "")


def _members(least: int, asked: Asked) -> str:
    config = asked.config
    size = config.cohort(config.clients) if config.summed and config.clients else least
    return f"a round has {size} clients" if size < least else ""


def columns_of(config: RunConfig) -> set[str]:
    """Return the columns that a configuration names to be read."""
    named = {config.target, config.text, config.time, *config.site}
    named |= {*dict(config.categories), *config.channels}
    named |= {*getattr(config, "numbers", ()), *config.group}
    return {*named, config.split_by} - {""}


def _columns(allowed: Sequence[str], asked: Any) -> str:
    """Check the columns that a run names, or those that its examples were read from."""
    read = columns_of(asked.config) if isinstance(asked, Asked) else asked
    others = sorted({*read} - {*allowed})
    return f"the run reads {others[0]!r}" if others else ""


def _classes(wanted: Sequence[str], asked: Asked) -> str:
    config = asked.config
    if any(values for _, values in config.labels):
        return "the run divides the target by labels of its own"
    named = {*config.classes, *dict(config.labels)}
    return "" if named == {*wanted} else f"the run asks for {', '.join(sorted(named)) or 'others'}"


def _labels(wanted: Any, asked: Asked) -> str:
    same = dict(asked.config.labels) == dict(wanted)
    return "" if same else "the run divides the target in another way"


def form_of(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return what a run says of how a file is written, by the keys that do."""
    said = {kebab(one.name): getattr(config, one.name) for one in fields(Form)}
    return {key: (v,) if isinstance(v, str) else v for key, v in said.items() if v}


def _form(wanted: Any, asked: Asked) -> str:
    other = sorted({*form_of(asked.config).items()} ^ {*dict(wanted).items()})
    return f"the run has {other[0][0]} otherwise" if other else ""


def _runs(most: int, asked: Asked) -> str:
    other = asked.history.runs() - {asked.experiment}
    return f"{len(other)} others have trained here" if len(other) >= most else ""


def _epsilon(most: float, asked: Asked) -> str:
    if not asked.config.dp_clip:
        return "the run adds no noise (dp-clip)"
    spent = asked.history.epsilon(asked.experiment)
    if spent + asked.config.dp_epsilon <= most * (1 + 1e-9):
        return ""
    return f"earlier runs cost {spent:.4g} and this one may cost {asked.config.dp_epsilon:g}"


class Limits(Schema):
    """The keys of the file; one that is left out limits nothing, but for those with a default."""

    target: str | None = limit("the column that a run may take for the class",
        lambda wanted, asked: "" if asked.config.target == wanted
        else f"target is {asked.config.target!r}")  # fmt: skip
    classes: Words | None = limit("the classes that a run must name, exactly", _classes)
    labels: Lists | None = limit("how a run must divide the target, exactly", _labels)
    columns: Words | None = limit("the columns that a run may read", _columns)
    group: Words | None = limit("the columns whose rows a run must keep together, exactly",
        lambda wanted, asked: "" if {*wanted} == {*asked.config.group}
        else f"group is {', '.join(asked.config.group) or 'empty'}")  # fmt: skip
    form: Lists | None = limit("what a run must say of how the file is written (gaps, sheet, "
        "columns ...), exactly; default where columns has a limit: nothing", _form)  # fmt: skip
    min_class: int | None = limit(f"fewest training examples of a class that takes part; a class "
        f"with fewer is absent (default {MIN_CLASS} with --data)", lambda *_: "", ge=1)  # fmt: skip
    max_queries: int | None = limit("most questions that are answered in 24 hours",
        lambda most, asked: "" if not asked.history.new or (n := asked.history.today()) < most
        else f"{n} were answered", ge=1)  # fmt: skip
    max_runs: int | None = limit("most runs that may train on this data", _runs, ge=1)
    total_epsilon: float | None = limit(
        "most that all runs on this data may cost together, epsilon", _epsilon, gt=0)  # fmt: skip
    max_disk: int | None = limit("most bytes of this node's state folder",
        _over("it would have"), ge=1)  # fmt: skip
    max_epochs: int | None = limit("most epochs of any kind in one round", _longest, ge=1)
    max_rounds: int | None = limit("most rounds of one run",
        lambda most, asked: "" if asked.config.rounds <= most
        else f"rounds is {asked.config.rounds}", ge=1)  # fmt: skip
    methods: Words | None = limit("methods that may run here",
        lambda allowed, asked: "" if asked.config.method in allowed
        else f"method is {asked.config.method}")  # fmt: skip
    modules: Words | None = limit("packages of others that a run may name as module:NAME",
        lambda allowed, named: f"the run names {min(named - {*allowed})}"
        if named - {*allowed} else "")  # fmt: skip
    shared_models: bool = limit("whether a method may share a model",
        lambda allowed, asked: "" if allowed or not asked.shares_model
        else f"method {asked.config.method} shares a model", default=True)  # fmt: skip
    min_noise: float | None = limit(
        "least noise, sigma / dp-clip", _noise(False), "at least {:g}", gt=0
    )
    min_sum_noise: float | None = limit(
        "least noise of a sum, sigma / dp-clip, in runs that have sums", _noise(True),
        "at least {:g}", gt=0)  # fmt: skip
    secure_sum: Literal["required"] | None = limit(
        "required: only masked sums, also of metrics, of three sites and owners or more", _masked,
        "only masked sums")  # fmt: skip
    min_sum: int | None = limit("least clients of a sum", _members, "at least {}", ge=2)
    max_upload_bytes: int | None = limit("most bytes of one upload",
        _over("this upload has"), ge=0)  # fmt: skip
    max_download_bytes: int = limit("most bytes of one message that comes down",
        _over("it has"), default=MAX_DOWNLOAD_BYTES, ge=1)  # fmt: skip
    max_download_norm: float = limit("largest L2 norm of the floats that come down at once",
        _over("it is"), "{:g}", MAX_DOWNLOAD_NORM, gt=0)  # fmt: skip

    def check(self, name: str, subject: Any) -> None:
        """Raise Refused if ``subject`` breaks the limit of this field."""
        value, about = getattr(self, name), type(self).model_fields[name].json_schema_extra
        assert isinstance(about, dict)
        check: Any = about["check"]
        if value is not None and (instead := check(value, subject)):
            named = name == "columns" and isinstance(subject, Asked)  # by the run, not by the file
            word = f"columns: {instead}" if named else ""
            raise _broken(kebab(name), str(about["allows"]).format(shown(value)), instead, word)

    def said(self) -> list[str]:
        """Return in plain words what this site allows."""
        return [
            f"{kebab(name)}: {about.description}: {shown(value)}"
            for name, about in type(self).model_fields.items()
            if (value := getattr(self, name)) != about.default
        ]

    def left_open(self) -> list[str]:
        """Return in plain words what whoever submits a run may choose here."""
        divided = self.classes is not None or self.labels is not None
        open_ = {
            "the class: a run may take any column for it (target)": self.target is None,
            "how a run divides it: ranges find a column's values (labels, or classes)": not divided,
            "the columns that a run reads (columns)": self.columns is None,
            "what counts as a gap: a run may have rows left out by it (form)": self.form is None,
            "which rows stay together: counts tell them (group)": self.group is None,
            "how many questions are answered (max-queries)": self.max_queries is None,
            "how many runs train (max-runs)": self.max_runs is None,
            "what all runs reveal together (total-epsilon)": self.total_epsilon is None,
            "single uploads (secure-sum)": self.secure_sum is None,
        }
        return [text for text, so in open_.items() if so]


# What is checked elsewhere, when it is known; the rest a run's configuration breaks or not.
LATER = {
    "min_class", "max_disk", "modules", "max_upload_bytes", "max_download_bytes",
    "max_download_norm",
}  # fmt: skip


def shown(value: Any) -> Any:
    """Return a limit's value for a message; numbers stay numbers."""
    if not isinstance(value, tuple):
        return value
    if value and isinstance(value[0], tuple):
        return "; ".join(f"{name}: {', '.join(some) or name}" for name, some in value)
    return ", ".join(value) or "none"


def read_limits(node: Mapping[str, Any]) -> Limits:
    """Return the limits of this node; the defaults where its configuration names no file.

    Raises Refused if the file cannot be read or understood: then nothing is allowed. The reason
    goes to the server, so it says nothing of the file's place or content; this node's own log does.
    """
    own: dict[str, Any] = {"min-class": MIN_CLASS} if node.get("data-dir") else {}
    try:
        values = read_yaml(Path(str(node["limits"]))) if node.get("limits") else {}
        own |= {"form": {}} if "columns" in values else {}  # it could give others their names
        return Limits.model_validate(own | values)
    except (UserError, ValidationError) as error:
        raise Refused("limits: the file of this site is not valid", Code.LIMITS_FILE) from error


def draft(config: RunConfig, dataset: Dataset, *, certified: bool) -> str:
    """Return a file of limits that allows runs like this one on this data, and little else."""
    values: dict[str, Any] = {"target": config.target}
    if any(some for _, some in config.labels):
        values["labels"] = {name: list(some) for name, some in config.labels}
    else:
        values["classes"] = list(dataset.classes)
    values |= {
        "columns": sorted(columns_of(config) | {*dataset.inputs.columns}),
        "group": list(config.group), "form": {k: [*v] for k, v in form_of(config).items()},
        "min-class": MIN_CLASS, "max-queries": 20, "max-runs": 10,
        "max-rounds": config.rounds, "modules": [], "max-disk": 10 << 30,
        "secure-sum": "required" if certified else "",
    }  # fmt: skip
    empty = {"modules", "group", "form"}  # which allow nothing then
    kept = {key: value for key, value in values.items() if value or key in empty}
    lines = ["# What a run may do at this site; `fedhet node --check` says it in plain words."]
    for key, value in kept.items():
        flow = None if isinstance(value, list | dict) else False
        text = yaml.safe_dump({key: value}, default_flow_style=flow, allow_unicode=True, width=1000)
        field_ = Limits.model_fields[key.replace("-", "_")]
        lines += [f"# {field_.description}", text.rstrip()]
    return "\n".join([*lines, "# total-epsilon: 8", ""])


def check_means(limits: Limits, history: History, cannot_prove: Callable[[], str]) -> None:
    """Raise Refused for a limit that cannot hold, since a certificate or the history is missing.

    ``cannot_prove`` says why this node's key for sums cannot be proved, if it cannot: without
    proofs a server could invent the other members of a sum.
    """
    for name in ("secure_sum", "min_sum", "min_sum_noise"):
        if getattr(limits, name) is not None and (reason := cannot_prove()):
            raise _broken(kebab(name), "only sums of members who prove their keys", reason)
    for name in ("max_queries", "max_runs", "total_epsilon"):
        if getattr(limits, name) is not None and history.missing():
            reason = "history.jsonl of this node is missing (--new-data begins anew)"
            raise _broken(kebab(name), "only runs that can be counted", reason)


def check_modules(limits: Limits, run_config: Mapping[str, Any]) -> None:
    """Raise Refused if a run names a module that the site does not allow; import nothing."""
    if limits.modules is not None:
        text = str(run_config.get("config", ""))
        values = parse_object(text, "run config", "config")["config"] if text else run_config
        names = [name for name in plugins.named(values) if not kinds_of(parse(name).plain)]
        limits.check("modules", plugins.modules(names))


def check_run(limits: Limits, asked: Asked) -> None:
    """Raise Refused for the first limit that a run breaks; no round is beyond its ``rounds``."""
    for name in Limits.model_fields:
        if name not in LATER:
            limits.check(name, asked)
    if limits.min_noise is not None and limits.min_sum_noise is None and asked.config.summed:
        says = "the run adds noise to sums, for which min-sum-noise is"
        raise _broken("min-noise", f"at least {limits.min_noise:g}", says)


def check_steps(limits: Limits, config: RunConfig, examples: int) -> None:
    """Raise Refused if ``local-steps`` are more epochs of so many examples than allowed."""
    epochs = config.local_steps * min(config.batch_size, examples) / max(1, examples)
    if limits.max_epochs is not None and epochs > limits.max_epochs:
        raise _broken("max-epochs", limits.max_epochs, f"local-steps are {epochs:.1f}")


def _broken(name: str, allowed: object, found: object, word: str = "") -> Refused:
    text = f"limit {name}: this site allows {allowed}, and {found}"
    return Refused(text, Code.LIMIT, word or name)

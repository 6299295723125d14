"""What a site was asked and what it allows: its history, and a file of its administrator.

``limits="/etc/fedhet/limits.yaml"`` in a node configuration. It wins over any run: the client alone
reads it, in the handshake and again before every training, and refuses what breaks it, with the
limit's name. Each limit is a field of :class:`Limits` and a line of :func:`check_run`. Limits on
questions, runs and epsilon count lines of the history.
"""

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flwr.app import Message
from pydantic import Field

from fedhet import plugins
from fedhet.config.schema import FORM, Lists, RunConfig, Schema, Words, kebab
from fedhet.data.cache import Dataset
from fedhet.data.inputs import load_inputs
from fedhet.errors import Code, Damaged, Refused, UserError, one_line, refusing
from fedhet.files import parse_object, private_folder, read_json, read_jsonl, read_yaml
from fedhet.models.names import kinds_of, parse
from fedhet.protocol.messages import CONFUSION, EVALUATE, OWNERS, QUERY, TRAIN, Reply, from_wire
from fedhet.site.privacy import NOTE, Account, noise_multiplier

NAME = "history.jsonl"
SHAKE, ANSWERED = "handshake", "answered"
STAGES = {  # of messages that ask for something of the data
    QUERY: SHAKE, TRAIN: "training", OWNERS: "owners of classes", EVALUATE: "evaluation",
    CONFUSION: "confusion matrix",
}  # fmt: skip
SUMS = ("sum-min", "sum-metrics", "sum-owners")
SUM_MIN = 3  # fewest sites of a sum, and owners of a class: of two each knows the other's part
# Keys of a run that the history shows, where they are set.
SHOWN = (
    "dataset", "target", "labels", "classes", "numbers", "categories", "text", "channels", "group",
    "gaps", "ignore", "split-by", "window",
    "rounds", "secure-sum", *SUMS, "dp-clip", "dp-epsilon", "dp-delta",
)  # fmt: skip
MOST_LINES = 10_000  # of a history, some thousand runs

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

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """All lines, the oldest first; Refused for a damaged file."""
        with refusing(Code.STATE, kinds=(OSError, ValueError)):
            return read_jsonl(self.folder / NAME) if self.folder else []

    def missing(self) -> bool:
        """Return whether there are states of runs, but no history of them."""
        root = self.folder
        return bool(root and not (root / NAME).exists() and any(root.glob("*/*/client.json")))

    def today(self) -> int:
        """Return how many different questions were answered in the last 24 hours."""
        since = (datetime.now(UTC) - timedelta(hours=24)).isoformat()
        return len({one["question"] for one in self._answered() if one["time"] >= since})

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the runs that have had more than a handshake here, each with its last line."""
        return {one["run"]: one for one in self._answered() if one["stage"] != SHAKE}

    def epsilon(self, but: str) -> float:
        """Return what the uploads of all runs ``but`` one have cost; infinite without noise."""
        return math.fsum(self._cost(run, one) for run, one in self.runs().items() if run != but)

    def _cost(self, run: str, line: Mapping[str, Any]) -> float:
        if not line.get("dp-clip"):
            return math.inf
        assert self.folder is not None
        text = f"an account of run '{run}' cannot be read"
        with refusing(Code.STATE, text, (OSError, KeyError, TypeError, ValueError)):
            paths = (self.folder / run).glob(f"*/{NOTE}.json")
            spent = [from_wire(Account, read_json(path)).epsilon for path in paths]
        return max(spent, default=float(line["dp-epsilon"]))  # without account: all of it

    def _answered(self) -> list[dict[str, Any]]:
        return [one for one in self.lines if one["answer"].startswith(ANSWERED)]

    @contextlib.contextmanager
    def asked(self, message: Message, run_config: Mapping[str, Any]) -> Iterator[list[Reply]]:
        """Note a question, unless it was noted before, and the replies that the block appends."""
        config, replies = message.content.config_records.get("config"), list[Reply]()
        stage = STAGES.get(message.metadata.message_type)
        if not (self.folder and config and stage) or config.get("refused"):
            yield replies
            return
        line = question(str(config.get("experiment", "")), run_config) | {"stage": stage}
        self.new = all(one["question"] != line["question"] for one in self._answered())
        try:
            yield replies
        except (Exception, SystemExit) as error:
            self._add(line | {"answer": f"refused: {one_line(error)}"})
            raise
        self._add(line | {"answer": "; ".join([ANSWERED, *filter(None, map(told_by, replies))])})

    def _add(self, line: dict[str, Any]) -> None:
        if any(_same(one) == _same(line) for one in self.lines):
            return
        assert self.folder is not None
        path = self.folder / NAME
        if len(self.lines) >= MOST_LINES:
            raise Refused(f"'{path}' is full: --new-data begins anew", Code.STATE)
        with refusing(Code.STATE, kinds=(OSError,)):  # which names the file
            private_folder(self.folder)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        known = any(one["question"] == line["question"] for one in self.lines)
        about = line["run"] if known else asked(line)
        self.lines.append(line)
        say(lambda: f"question: {about}: {line['stage']}: {one_line(line['answer'], 2000)}")


NOTHING = History()  # of a simulated client


def _same(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what lines have in common of which one is enough: every round is answered alike."""
    sent = line["stage"] != SHAKE and line["answer"].startswith(ANSWERED)
    return line["question"], line["stage"], "sent" if sent else line["answer"]


def say(text: Callable[[], str]) -> None:
    """Print a line for the owner of a node, which `fedhet node` finds in what Flower prints."""
    if os.environ.get("FEDHET_NODE"):
        print(f"fedhet: {text()}", file=sys.stderr, flush=True)


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
    old = {path.parent.parent for path in folder.glob("*/*/client.json")} | {*folder.glob(NAME)}
    if not old:
        return None
    aside = folder / f"before-{datetime.now(UTC):%Y-%m-%d-%H%M%S}"
    aside.mkdir(mode=0o700)
    for path in old:
        path.rename(aside / path.name)
    return aside


def values_of(run_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a run's values by key; raise Damaged or KeyError if there are none."""
    text = str(run_config.get("config", ""))
    return parse_object(text, "run config", "config")["config"] if text else run_config


def question(experiment: str, run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the history says of a run that asks, and a digest of the whole question."""
    values = run_config
    with contextlib.suppress(Damaged, KeyError):
        values = values_of(run_config)
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


def limit(meaning: str, default: Any = None, **bounds: Any) -> Any:
    """Declare a limit with its meaning; None limits nothing."""
    return Field(default, description=meaning, **bounds)


class Limits(Schema):
    """The keys of the file; one that is left out limits nothing, but for those with a default."""

    target: str | None = limit("the column that a run may take for the class")
    classes: Words | None = limit("the classes that a run must name, exactly")
    labels: Lists | None = limit("how a run must divide the target, exactly")
    columns: Words | None = limit("the columns that a run may read")
    group: Words | None = limit("the columns whose rows a run must keep together, exactly")
    form: Lists | None = limit("what a run must say of how the file is written (gaps, sheet, "
        "columns ...), exactly; default where columns has a limit: nothing")  # fmt: skip
    min_class: int | None = limit("fewest training examples of a class that takes part; a class "
        f"with fewer is absent (default {MIN_CLASS} with --data)", ge=1)  # fmt: skip
    max_queries: int | None = limit("most questions that are answered in 24 hours", ge=1)
    max_runs: int | None = limit("most runs that may train on this data", ge=1)
    total_epsilon: float | None = limit("most epsilon of all runs on this data together", gt=0)
    max_disk: int | None = limit("most bytes of this node's state folder", ge=1)
    max_epochs: int | None = limit("most epochs of any kind in one round", ge=1)
    max_rounds: int | None = limit("most rounds of one run", ge=1)
    methods: Words | None = limit("methods that may run here")
    modules: Words | None = limit("packages of others that a run may name as module:NAME")
    shared_models: bool = limit("whether a method may share a model", default=True)
    min_noise: float | None = limit("least noise, sigma / dp-clip", gt=0)
    min_sum_noise: float | None = limit("least noise of a sum, sigma / dp-clip", gt=0)
    secure_sum: Literal["required"] | None = limit(
        "required: only masked sums, also of metrics, of three sites and owners or more"
    )
    min_sum: int | None = limit("least clients of a sum", ge=2)
    max_upload_bytes: int | None = limit("most bytes of one upload", ge=0)
    # Honest payloads of all methods had norms from 1 to 56 in five rounds of three clients on
    # digits; a model of 100 million parameters of 0.1 has 1,000.
    max_download_bytes: int = limit("most bytes of a message that comes down", 1 << 30, ge=1)
    max_download_norm: float = limit("largest L2 norm of the floats that come down", 1e4, gt=0)

    def check(self, name: str, value: float) -> None:
        """Raise Refused if ``value`` is not at most the limit of this field."""
        if (most := getattr(self, name)) is not None and not value <= most:
            raise self.broken(name, f"it is {value:.10g}")

    def check_columns(self, read: Iterable[str], *, named: bool = False) -> None:
        """Raise Refused for a column that is read; one that the run has ``named`` is told."""
        allowed = {*read} if self.columns is None else {*self.columns}
        for column in sorted({*read} - allowed):
            instead = f"the run reads {column!r}"
            raise self.broken("columns", instead, about=f"columns: {instead}" if named else "")

    def broken(self, name: str, instead: str, allowed: str = "", about: str = "") -> Refused:
        """Return the error of a run that has something else ``instead`` of what is allowed."""
        value = "only masked sums" if name == "secure_sum" else shown(getattr(self, name))
        what = allowed or f"{'at least ' * name.startswith('min_')}{value}"
        text = f"limit {kebab(name)}: this site allows {what}, and {instead}"
        return Refused(text, Code.LIMIT, about or kebab(name))

    def said(self) -> list[str]:
        """Return in plain words what this site allows."""
        return [
            f"{kebab(name)}: {about.description}: {shown(value)}"
            for name, about in type(self).model_fields.items()
            if (value := getattr(self, name)) != about.default
        ]

    def left_open(self) -> list[str]:
        """Return in plain words what whoever submits a run may choose here."""
        divided = self.labels if self.classes is None else self.classes
        limited = {
            "the class: a run may take any column for it (target)": self.target,
            "how a run divides it: ranges find a column's values (labels, or classes)": divided,
            "the columns that a run reads (columns)": self.columns,
            "what counts as a gap: a run may have rows left out by it (form)": self.form,
            "which rows stay together: counts tell them (group)": self.group,
            "how many questions are answered (max-queries)": self.max_queries,
            "how many runs train (max-runs)": self.max_runs,
            "what all runs reveal together (total-epsilon)": self.total_epsilon,
            "single uploads (secure-sum)": self.secure_sum,
        }
        return [text for text, limit in limited.items() if limit is None]


def shown(value: Any) -> str:
    """Return a limit's value for a message."""
    if not isinstance(value, tuple):
        return f"{value:.10g}" if isinstance(value, float) else str(value)
    if value and isinstance(value[0], tuple):
        return "; ".join(f"{name}: {', '.join(some) or name}" for name, some in value)
    return ", ".join(value) or "none"


def read_limits(node: Mapping[str, Any]) -> Limits:
    """Return the limits of this node; the defaults where its configuration names no file.

    Raises Refused if the file cannot be read or understood: then nothing is allowed. The reason
    goes to the server, so it says nothing of the file's place or content; this node's own log does.
    """
    defaults: dict[str, Any] = {"min-class": MIN_CLASS} if node.get("data-dir") else {}
    text = "limits: the file of this site is not valid"
    with refusing(Code.LIMITS_FILE, text, (UserError, ValueError)):
        values = read_yaml(Path(str(node["limits"]))) if node.get("limits") else {}
        defaults |= {"form": {}} if "columns" in values else {}  # it could give others their names
        return Limits.model_validate(defaults | values)


def draft(config: RunConfig, dataset: Dataset, *, certified: bool) -> str:
    """Return a file of limits that allows runs like this one on this data, and little else."""
    ranges = any(values for _, values in config.labels)
    values = {
        "target": config.target, "labels": dict(config.labels) if ranges else None,
        "classes": None if ranges else dataset.classes,
        "columns": sorted(columns_of(config) | {*dataset.inputs.columns}),
        "group": config.group, "form": form_of(config),
        "min_class": MIN_CLASS, "max_queries": 20, "max_runs": 10,
        "max_rounds": config.rounds, "modules": [], "max_disk": 10 << 30,
        "secure_sum": "required" if certified else None,
    }  # fmt: skip
    lines = ["# What a run may do at this site; `fedhet node --check` says it in plain words."]
    for key, value in values.items():
        if value or key in {"modules", "group", "form"}:  # which allow nothing then
            about = Limits.model_fields[key].description
            lines += [f"# {about}", f"{kebab(key)}: {json.dumps(value, ensure_ascii=False)}"]
    return "\n".join([*lines, "# total-epsilon: 8", ""])


def columns_of(config: RunConfig) -> set[str]:
    """Return the columns that a configuration names to be read."""
    named = {config.target, config.text, config.time, config.split_by, *config.site, *config.group}
    return named.union(config.numbers, dict(config.categories), config.channels) - {""}


def form_of(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return what a run says of how a file is written, by the keys that do."""
    values = {kebab(name): getattr(config, name) for name in FORM}
    return {key: (v,) if isinstance(v, str) else v for key, v in values.items() if v}


def check_means(limits: Limits, history: History, cannot_prove: Callable[[], str]) -> None:
    """Raise Refused for a limit that cannot hold, since a certificate or the history is missing.

    ``cannot_prove`` says why this node's key for sums cannot be proved, if it cannot: without
    proofs a server could invent the other members of a sum.
    """
    for name in ("secure_sum", "min_sum", "min_sum_noise"):
        if getattr(limits, name) is not None and (reason := cannot_prove()):
            raise limits.broken(name, reason, "only sums of members who prove their keys")
    for name in ("max_queries", "max_runs", "total_epsilon"):
        if getattr(limits, name) is not None and history.missing():
            reason = "history.jsonl of this node is missing (--new-data begins anew)"
            raise limits.broken(name, reason, "only runs that can be counted")


def check_modules(limits: Limits, run_config: Mapping[str, Any]) -> None:
    """Raise Refused if a run names a module that the site does not allow; import nothing."""
    if limits.modules is not None:
        named = [n for n in plugins.named(values_of(run_config)) if not kinds_of(parse(n).plain)]
        if others := plugins.modules(named) - {*limits.modules}:
            raise limits.broken("modules", f"the run names {min(others)}")


def check_run(
    limits: Limits, config: RunConfig, history: History, experiment: str, *, shares_model: bool
) -> None:
    """Raise Refused for the first limit that a run breaks; no round is beyond its ``rounds``."""
    if not limits.model_fields_set:  # nothing is limited but what comes down
        return
    named, others = {*config.classes, *dict(config.labels)}, {*history.runs()} - {experiment}
    form = {*form_of(config).items()} ^ {*dict(limits.form or ()).items()}
    noise, (key, epochs) = noise_multiplier(config), longest(config)
    size = config.cohort(config.clients) if config.summed and config.clients else math.inf
    today = history.today() if history.new else 0
    spent = history.epsilon(experiment) if limits.total_epsilon else 0.0
    cost, divides = spent + config.dp_epsilon, "the run divides the target"
    rules: tuple[tuple[str, Callable[[Any], object], str], ...] = (
        ("target", lambda v: config.target != v, f"target is {config.target!r}"),
        ("classes", lambda _: any(v for _, v in config.labels), f"{divides} by labels of its own"),
        ("classes", lambda v: named != {*v},
         f"the run asks for {', '.join(sorted(named)) or 'others'}"),
        ("labels", lambda v: dict(config.labels) != dict(v), f"{divides} in another way"),
        ("group", lambda v: {*config.group} != {*v},
         f"group is {', '.join(config.group) or 'empty'}"),
        ("form", lambda _: form, f"the run has {min(form)[0] if form else ''} otherwise"),
        ("max_queries", lambda v: today + history.new > v, f"{today} were answered"),
        ("max_runs", lambda v: len(others) >= v, f"{len(others)} others have trained here"),
        ("total_epsilon", lambda _: not config.dp_clip, "the run adds no noise (dp-clip)"),
        ("total_epsilon", lambda v: cost / (1 + 1e-9) > v,
         f"earlier runs cost {spent:.4g} and this one may cost {config.dp_epsilon:g}"),
        ("max_epochs", lambda v: epochs > v, f"{key} is {epochs}"),
        ("max_rounds", lambda v: config.rounds > v, f"rounds is {config.rounds}"),
        ("methods", lambda v: config.method not in v, f"method is {config.method}"),
        ("shared_models", lambda v: shares_model and not v,
         f"method {config.method} shares a model"),
        ("min_noise", lambda v: not config.summed and noise < v, f"the run has {noise:.4g}"),
        ("min_sum_noise", lambda v: config.summed and noise < v, f"the run has {noise:.4g}"),
        ("secure_sum", lambda _: not config.summed, f"secure-sum is {config.secure_sum}"),
        ("secure_sum", lambda _: not config.sum_metrics, "sum-metrics is false"),
        ("secure_sum", lambda _: config.sum_min < SUM_MIN, f"sum-min is {config.sum_min}"),
        ("secure_sum", lambda _: config.sum_owners < SUM_MIN, f"sum-owners is {config.sum_owners}"),
        ("min_sum", lambda v: size < v, f"a round has {size} clients"),
        ("min_noise", lambda _: config.summed and limits.min_sum_noise is None,
         "the run adds noise to sums, for which min-sum-noise is"),
    )  # fmt: skip
    for name, breaks, instead in rules:
        if (value := getattr(limits, name)) is not None and breaks(value):
            raise limits.broken(name, instead)
    limits.check_columns(columns_of(config), named=True)


def longest(config: RunConfig) -> tuple[str, int]:
    """Return the key of the most epochs of any kind in a client's round, and their number."""
    every = {"local-epochs": 0 if config.local_steps else config.local_epochs}
    every |= {k: v for k, v in config.params.model_dump().items() if k.endswith("epochs")}
    return max((p for p in every.items() if not p[0].startswith("server-")), key=lambda p: p[1])


def check_steps(limits: Limits, config: RunConfig, examples: int) -> None:
    """Raise Refused if ``local-steps`` are more epochs of so many examples than allowed."""
    epochs = config.local_steps * min(config.batch_size, examples) / max(1, examples)
    if limits.max_epochs is not None and epochs > limits.max_epochs:
        raise limits.broken("max_epochs", f"local-steps are {epochs:.1f}")

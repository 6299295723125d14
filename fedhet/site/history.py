"""What a site was asked and what it answered: ``history.jsonl`` in its state folder.

A question is a configuration of one run. The handshake and the first training are a line each; the
same question again is not. Limits on questions, runs and epsilon count these lines.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedhet.errors import Code, Damaged, Refused, one_line
from fedhet.files import parse_object, private_folder, read_json, read_jsonl
from fedhet.protocol.messages import QUERY

NAME = "history.jsonl"
SHAKE, TRAIN = "handshake", "training"
# Keys of a run that the history shows, where they are set.
SHOWN = (
    "dataset", "target", "labels", "classes", "numbers", "categories", "text", "channels", "group",
    "rounds", "secure-sum", "dp-clip", "dp-epsilon", "dp-delta",
)  # fmt: skip
DAY = timedelta(hours=24)


def state_root(node: Mapping[str, Any]) -> Path:
    """Return the folder of a deployed node's states, by its configuration."""
    return Path(str(node.get("state-dir") or Path.home() / ".fedhet" / "state"))


class History:
    """The questions to one node; without a folder there are none and nothing is kept."""

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
        if self.folder is None or (self.folder / NAME).exists():
            return False
        return any(self.folder.glob("*/*/client.json"))

    def today(self) -> int:
        """Return how many different questions were answered in the last 24 hours."""
        since = (datetime.now(UTC) - DAY).isoformat()
        return len({one["question"] for one in self._answered() if one["time"] >= since})

    def runs(self) -> set[str]:
        """Return the runs that have trained here."""
        return {one["run"] for one in self._answered() if one["stage"] == TRAIN}

    def epsilon(self, but: str) -> float:
        """Return what the uploads of all runs ``but`` one have cost; infinite without noise.

        A run whose account is gone counts with the whole of its budget.
        """
        budgets = {one["run"]: one for one in self._answered() if one["stage"] == TRAIN}
        return math.fsum(self._cost(run, one) for run, one in budgets.items() if run != but)

    def _cost(self, run: str, line: Mapping[str, Any]) -> float:
        if not line.get("dp-clip"):
            return math.inf
        # It brings torch, which the process of a node and --history do without.
        from fedhet.site.privacy import NOTE, epsilon_of, mu_of  # noqa: PLC0415

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
        return max(spent, default=float(line["dp-epsilon"]))

    def _answered(self) -> list[dict[str, Any]]:
        return [one for one in self.lines() if one["answer"] == "answered"]

    @contextlib.contextmanager
    def asked(
        self,
        message: Message,
        run_config: Mapping[str, Any],
        say: Callable[[Callable[[], str]], None],
    ) -> Iterator[None]:
        """Note a question, unless it was noted before, with what becomes of it in this block."""
        config = message.content.config_records.get("config")
        if self.folder is None or config is None or config.get("refused"):
            yield
            return
        line = question(str(config.get("experiment", "")), run_config)
        line["stage"] = SHAKE if message.metadata.message_type == QUERY else TRAIN
        self.new = all(one["question"] != line["question"] for one in self._answered())
        try:
            yield
        except (Exception, SystemExit) as error:
            self._add(line | {"answer": f"refused: {one_line(error)}"}, say)
            raise
        self._add(line | {"answer": "answered"}, say)

    def _add(self, line: dict[str, Any], say: Callable[[Callable[[], str]], None]) -> None:
        same = ("question", "stage", "answer")
        if any(all(one[key] == line[key] for key in same) for one in self.lines()):
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
            raise Refused(
                f"'{self.folder / NAME}' cannot be written: {error}", Code.STATE
            ) from error
        self._lines = [*self.lines(), line]
        say(lambda: f"question: {described(line)}")


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
    shown = {key: values[key] for key in SHOWN if values.get(key)}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"), "run": experiment[:64],
        "name": one_line(values.get("name") or "", 64),
        "method": one_line(values.get("method", ""), 80),
        **shown, "question": hashlib.sha256(whole.encode()).hexdigest()[:16],
    }  # fmt: skip


def described(line: Mapping[str, Any]) -> str:
    """Return one line of the history in words."""
    keys = [f"{key}={json.dumps(line[key], ensure_ascii=False)}" for key in SHOWN if key in line]
    who = f"{line['name'] or 'a run'} ({line['run']}, {line['stage']})"
    return one_line(f"{who}: {line['method']} {' '.join(keys)}: {line['answer']}", 2000)

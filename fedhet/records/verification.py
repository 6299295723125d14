"""Check a run folder for consistency: links, checkpoint, lines, summary, states.

The checkpoint comes last in every round and carries digests of what comes before it: of its own
arrays, of ``rounds.jsonl`` and ``clients.csv`` up to there, of every client's state. So damage to
any of them is seen, and named; what was written after the checkpoint is no damage, but the round
that a crash interrupted, and ``fedhet resume`` does it again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhet.config.schema import RunConfig
from fedhet.errors import Damaged, Refused, Rejected, brief
from fedhet.files import check_entries, client_order
from fedhet.protocol.handshake import Roster
from fedhet.protocol.payload import Array
from fedhet.records.formats import read_partition
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import RunFolder, digest, parts
from fedhet.site.state import FileStore

CheckArrays = Callable[[RunConfig, Roster, Mapping[str, Array]], None]
SHOWN = 3  # findings in an error's one line


@dataclass
class Verification:
    """What was looked at, and a line with the file's path for each thing that does not fit."""

    folder: Path
    rounds: int = 0
    states: int = 0
    completed: bool = False
    clients: int = 0  # that had not been lost before
    findings: list[str] = field(default_factory=list)
    lost: int = 0  # of the findings: the last ones, each about a client's state

    def raise_for(self, *, accept_lost: bool = False) -> None:
        """Damaged that names the first and counts the rest; ``accept_lost``: states aside."""
        nobody, others = self.lost == self.clients, self.findings[: -self.lost or None]
        left = others if accept_lost and not nobody else self.findings
        if not left:
            return
        words = left[:SHOWN]
        if len(left) > SHOWN:
            words.append(f"{len(left) - SHOWN} more, which `fedhet verify` lists")
        if not others:
            more = " rounds=N" if self.completed else ""
            resume = f"`fedhet resume {self.folder}{more} --accept-lost` continues without them"
            words.append("all clients are lost, so the run cannot continue" if nobody else resume)
        raise Damaged("; ".join(words))


def verify(folder: RunFolder, config: RunConfig, check_arrays: CheckArrays) -> Verification:
    """Hold everything in the run folder against everything else.

    ``check_arrays`` raises Rejected for global arrays that the run's method could not go on from.
    """
    checked = Verification(folder.path)
    try:
        check_entries(folder.path)
        summary = folder.read_summary()
        checked.completed = summary.get("status") == "completed"
        kept = load_checkpoint(folder.checkpoint)
        if kept is None:
            folder.check_unbegun()
            if checked.completed:
                raise Damaged(f"'{folder.checkpoint}' is missing")
            return checked
        meta, roster = kept.meta, Roster()
        checked.rounds = int(meta["round"])
        roster.load(meta["roster"])
        records = _lines(folder, meta, completed=checked.completed)
        checked.findings += _misfits(folder, meta, roster, summary, records)
        try:
            check_arrays(config, roster, kept.arrays)
        except (Rejected, RuntimeError, ValueError, MemoryError) as error:  # as large as it says
            why = str(error) if isinstance(error, Rejected) else brief(error)
            text = f"'{folder.checkpoint}': the method cannot begin with these arrays: {why}"
            checked.findings.append(text)
        if meta["simulated"] and (config.keep_state or not checked.completed):
            _states(folder.states(config), meta["roster"], checked)
    except Damaged as error:
        checked.findings.append(str(error))
    return checked


def _lines(folder: RunFolder, meta: Mapping[str, Any], *, completed: bool) -> list[dict[str, Any]]:
    """Return the final lines, and the one that a crash may have left after them."""
    last, path = int(meta["round"]), folder.rounds
    records = folder.read_rounds()
    if len(records) > last + (not completed):
        raise Damaged(
            f"'{folder.checkpoint}' is of round {last}, but '{path.name}' goes to round "
            f"{len(records)}: the checkpoint is an older one"
        )
    parts(path, meta["rounds"])
    _, later = parts(folder.clients, meta["clients"])
    rounds = {line.split(b",", 1)[0] for line in later.split(b"\n")[:-1]}
    head = {b"round"} if last == 0 else set()
    if rounds - head - {b"%d" % (last + 1)} or (completed and later):
        raise Damaged(f"'{folder.clients}' has lines that no round of this run wrote")
    if last and records[last - 1].get("sha256") != meta["sha256"]:
        raise Damaged(f"'{folder.checkpoint}' is not the end of the chain in '{path.name}'")
    return records


def _misfits(
    folder: RunFolder, meta: Mapping[str, Any], roster: Roster, summary: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
) -> Iterator[str]:  # fmt: skip
    """Compare the other files with the checkpoint, ``summary.json`` with its last line."""
    if folder.experiment != meta["experiment"]:
        yield f"'{folder.identity}': of run '{folder.experiment}', not '{meta['experiment']}'"
    if digest(folder.environment) != meta["environment"]:
        yield f"'{folder.environment}' is missing, or not what was written"
    try:
        classes, dealt = read_partition(folder.partition)
    except OSError:
        yield f"'{folder.partition}' is missing"
    else:  # clients that joined later are not in it
        known = dict(roster.counts())
        if classes != list(roster.classes) or any(known.get(c) != row for c, row in dealt.items()):
            yield f"'{folder.partition}' is not what the clients declared"
    rounds = int(summary.get("rounds", meta["round"]))
    if not int(meta["round"]) <= rounds <= len(records):
        yield f"'{folder.summary}': it is of round {rounds} of {meta['round']}"
    elif summary:  # none where the run was killed, or goes on
        last = records[rounds - 1] if rounds else {}
        means = [line["test_accuracy_mean"] for line in records[:rounds]]
        expected = {
            "run_sha256": last.get("sha256"), "clients_lost": last.get("lost", []),
            "test_accuracy_mean": next((m for m in reversed(means) if m is not None), None),
        }  # fmt: skip
        for key in (key for key, value in expected.items() if summary.get(key) != value):
            yield f"'{folder.summary}': {key} is not what '{folder.rounds.name}' says"


def _states(root: Path, roster: Mapping[str, Any], found: Verification) -> None:
    """Compare every client's state with its digest, where it is on this machine's disks."""
    found.clients = len(roster["infos"].keys() - roster["lost"].keys())
    for client in sorted(roster["states"].keys() - roster["lost"].keys(), key=client_order):
        generation, state = int(roster["generations"][client]), roster["states"][client]
        try:
            FileStore(root / client, sync=False).load(generation, state)
            found.states += 1
        except Refused as error:
            found.findings.append(f"client '{client}': {error}")
            found.lost += 1

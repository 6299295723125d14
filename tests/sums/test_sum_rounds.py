"""Runs in which the server learns sums: bytes, dropouts, crashes, what both sides keep."""

import json
import re
import stat

import numpy as np
import pytest
from flwr.app import Error, Message
from helpers.products import short
from sums.summed_runs import N, asked, config, sha

from fedhet.config.registry import METHODS
from fedhet.deploy.certs import make
from fedhet.engines import session
from fedhet.engines.grid import FIRST_NODE
from fedhet.errors import Damaged, RunFailed, UserError
from fedhet.files import client_order
from fedhet.protocol.messages import (
    AGREE,
    OWNERS,
    TRAIN,
    UNIT,
    UNMASK,
    arrays_of,
    to_record,
)
from fedhet.records.run_folder import RunFolder
from fedhet.sums.client import SumNotes
from fedhet.testing import simulate

# Three clients with all four classes each, and no other key of the sums: two methods by default.
PLAIN = {"clients": 3, "sum_threshold": 0, "classes_per_client": 4, "rounds": 1}
SUMMED = [
    pytest.param(
        PLAIN | short(name) | {"method": name},
        marks=() if name in ("fedmrl", "fd") else pytest.mark.matrix,
    )
    for name, method in METHODS.items()
    if not method.strategy.not_summed
]
COUNTED = {"method": "fedssa", "sum_owners": 2, "fraction": 0.8}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs, made once for all the tests that compare with them."""
    made: dict[tuple, RunFolder] = {}

    def run(mode: str = "masked", **changes) -> RunFolder:
        key = (mode, *sorted(changes.items()))
        if key not in made:
            made[key] = simulate(config(tmp_path_factory.mktemp("whole"), mode, **changes))[0]
        return made[key]

    return run


def gone(message: Message) -> Message:
    return Message(Error(code=5, reason="node gone"), reply_to=message)


def failures(folder, round_: int) -> list[dict]:
    return folder.read_rounds()[round_ - 1]["failures"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        COUNTED,
        {"method": "fedproto", "sum_owners": 1, "sum_metrics": False, "evaluate_every": 2},
        *SUMMED,
    ],
    ids=str,
)
def test_masked_and_unmasked_runs_have_the_same_bytes(whole, changes):
    runs = [whole("unmasked", **changes), whole(**changes)]
    assert sha(runs[0]) == sha(runs[1])
    first, second = (folder.read_rounds()[-1] for folder in runs)
    assert first["test_accuracy_mean"] == second["test_accuracy_mean"] is not None
    assert first["replied"] == second["replied"] >= 3 and not second["failures"]
    for folder in runs:
        assert not session.verify(folder.path)[1].findings


def test_a_masked_run_differs_from_a_plain_one_by_rounding_alone(whole):
    a, b = (whole(mode).read_rounds() for mode in ("off", "masked"))
    assert sha(whole("off")) != sha(whole())
    for one, other in zip(a, b, strict=True):
        for key in ("test_accuracy_mean", "train_loss"):
            assert one[key] == pytest.approx(other[key], rel=1e-3)
        assert one["train_flops"] > 0 and other["train_flops"] is None


def test_whoever_drops_out_costs_its_part_or_the_round_and_nothing_later(tmp_path, whole):
    """Round by round: one before its upload, one after it, both, three before theirs, nobody."""
    absent = {(1, 2), (3, 0), (4, 0), (4, 1), (4, 2)}  # round and node, in training
    mute = {(2, 1), (3, 3)}  # where boxes are to be opened

    def leave(node, message, reply):
        kind, round_, _ = asked(message)
        out = absent if kind == TRAIN else mute if kind == UNMASK else ()
        return gone(message) if (round_, node) in out else reply

    folder, grid = simulate(config(tmp_path, rounds=5), tamper=leave)
    rounds = folder.read_rounds()
    assert [record["replied"] for record in rounds] == [4, 5, 0, 0, 5]
    assert [f["client"] for f in failures(folder, 1)] == ["2"]
    twin, _ = simulate(config(tmp_path, "unmasked", name="twin"), tamper=leave)
    assert [r["sha256"] for r in twin.read_rounds()] == [r["sha256"] for r in rounds[:2]]
    third, fourth = (
        {f["client"]: f["reason"] for f in failures(folder, round_)} for round_ in (3, 4)
    )
    # Of who left before its upload nobody knows all seeds without an answer of everybody left.
    assert third["the round"] == "the sum failed: no answer from 3"
    assert fourth["the round"] == "the sum failed: 2 of 5 uploads came, 4 are needed"
    assert not [m for m in grid.sent if asked(m)[:2] == (UNMASK, 4)]
    assert rounds[1]["test_accuracy_mean"] == rounds[3]["test_accuracy_mean"]
    assert {asked(m)[2] for m in grid.sent if asked(m)[0] == TRAIN} == {1, 2, 3, 4, 5}
    # Everybody starts round 5 from round 2: the states of rounds 3 and 4 were nobody's.
    begun = {m.content["config"]["generation"] for m in grid.sent if asked(m)[:2] == (TRAIN, 5)}
    assert begun == {2}


def test_too_few_who_are_there_are_not_even_asked(tmp_path):
    def away(grid):
        original = grid.push_messages

        def push(messages):
            given = list(messages)
            grid.online = set(sorted(grid.contexts)[: N if not grid.sent else 2])
            return original(given)

        grid.push_messages = push

    with pytest.raises(RunFailed, match="the sum failed: 0 of 2 uploads came, 4 are needed"):
        simulate(config(tmp_path, max_skipped_rounds=0), before=away)


def test_a_run_that_died_ends_with_the_same_bytes_and_repeats_no_mask(tmp_path, whole):
    """The server dies three times, when it gets one of the replies in the middle of round 2."""
    died, folder = config(tmp_path, name="died", **COUNTED), None
    sent: list[tuple[int, Message]] = []

    def crashing(kind: str, after: int):
        seen = []

        def crash(node, message, reply):
            sent.append((node, reply))
            if asked(message)[:2] == (kind, 2):
                seen.append(node)
                if len(seen) > after:
                    raise KeyboardInterrupt
            return reply

        return crash

    for kind, after in ((OWNERS, 0), (TRAIN, 3), (UNMASK, 3)):
        with pytest.raises(KeyboardInterrupt):
            simulate(died, folder=folder, tamper=crashing(kind, after))
        folder = RunFolder(tmp_path / "runs" / "died")
    _, grid = simulate(died, folder=folder, tamper=crashing("", 0))
    assert sha(folder) == sha(whole(**COUNTED)) and not folder.read_summary()["failures"]
    words = [a[0] for _, r in sent if r.has_content() and len(a := arrays_of(r)) == 2]
    assert len({w.tobytes() for w in words}) == len(words) > 8
    numbers = [asked(m)[2] for m in grid.sent if asked(m)[0] in {OWNERS, TRAIN}]
    assert min(numbers) > 6  # those of the lives before are not used again


def test_who_sends_nonsense_is_left_out_of_the_unit_of_weights(tmp_path):
    """Its words are random for every power; the others find the unit that they have without it."""
    values = {"max_images": 1_000_000, "sum_threshold": 0, "rounds": 1}
    _, fair = simulate(config(tmp_path, name="fair", **values))

    def lie(node, message, reply):
        if node == 3 and message.metadata.message_type == UNIT:
            words, *boxes = arrays_of(reply)
            random = np.random.default_rng(0).integers(1, 2**32, len(words), dtype=np.uint32)
            reply.content["arrays"] = to_record([words + random, *boxes])
        return reply

    folder, grid = simulate(config(tmp_path, name="liar", **values), tamper=lie)
    assert [(f["client"], f["reason"]) for f in failures(folder, 1)] == [
        ("3", "with its reply the unit of weights cannot be found")
    ]
    assert folder.read_rounds()[0]["replied"] == 4
    units = [
        {m.content["sum"]["unit"] for m in made.sent if asked(m)[0] == TRAIN}
        for made in (fair, grid)
    ]
    assert units[0] == units[1]


def test_a_message_that_comes_twice_is_answered_with_the_same_bytes(tmp_path, monkeypatch):
    """A node that died after its reply had left its notes, or a reply that got lost."""
    trained, replies = [], []
    original = SumNotes.mask

    def mask(self, *words):
        trained.append(self.client)
        return original(self, *words)

    monkeypatch.setattr(SumNotes, "mask", mask)

    def again(grid):
        answer = grid.answer

        def twice(message):
            first = answer(message)
            if asked(message)[0] in {TRAIN, OWNERS, UNMASK}:
                second = answer(message)
                a, b = ([r.content["info"], *map(bytes, arrays_of(r))] for r in (first, second))
                replies.append(a == b)
            return first

        grid.answer = twice

    folder, _ = simulate(config(tmp_path, method="fedssa", sum_owners=2), before=again)
    assert all(replies) and len(replies) == N * 7  # the last: the confusion matrix
    assert sorted(trained) == sorted(
        [str(k) for k in range(N)] * 4
    )  # owners, two rounds, confusion
    assert not folder.read_summary()["failures"]


def test_a_damaged_counter_is_named_and_a_client_that_lost_its_notes_refused(tmp_path):
    values = {"rounds": 2, "max_skipped_rounds": 0, "start_timeout": 2.0}
    first = config(tmp_path, **values | {"rounds": 1})
    folder, _ = simulate(first)
    number = folder.attempts.read_text()
    folder.attempts.write_text("many")
    with pytest.raises(Damaged, match=r"attempts' is damaged: it holds no number"):
        simulate(config(tmp_path, **values), folder=folder)
    folder.attempts.write_text(number)
    for note in folder.path.glob("state/*/3/sum-*"):
        note.unlink()
    simulate(config(tmp_path, **values), folder=folder)
    reasons = {f["reason"] for f in failures(folder, 2)}
    assert any("has lost its key for the sums of this run" in reason for reason in reasons)
    assert folder.read_rounds()[-1]["replied"] == 4


def test_keys_are_private_gone_with_the_state_and_shared_by_no_two_runs(tmp_path):
    private: list[bytes] = []
    wire, words = [], []

    def look(node, message, reply):
        wire.append(b"".join(r.deflate() for r in (message.content, reply.content)))
        if asked(message)[0] == TRAIN:
            words.append(arrays_of(reply)[0])
        for path in (tmp_path / "runs").glob("*/state/*/*/sum-*.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            if path.name == "sum-key.json" and message.metadata.message_type == "query":
                key = bytes.fromhex(json.loads(path.read_text())["private"])
                private.append(key) if key not in private else None
        return reply

    for name in ("a", "b"):
        folder, _ = simulate(config(tmp_path, name=name, rounds=1, keep_state=False), tamper=look)
        assert not list(folder.path.glob("state/**/sum-*"))
    assert len(private) == 2 * N
    for key in private:
        assert not any(key in said or key.hex().encode() in said for said in wire)
    for one, other in zip(words[:N], words[N:], strict=True):
        assert (one == other).mean() < 0.01
    assert abs(np.mean(np.concatenate(words) / 2.0**32) - 0.5) < 0.01


def test_the_records_have_means_and_say_what_is_missing(whole):
    folder = whole()
    summary = folder.read_summary()
    assert summary["test_accuracy_mean"] > 0 and summary["test_accuracy_p10"] is None
    assert "clients.csv" in summary["secure_sum"]["absent"]
    assert len(folder.clients.read_text().splitlines()) <= 1  # what its columns are called
    line = folder.read_rounds()[-1]
    assert line["evaluated_clients"] == N and line["test_accuracy_std"] is None
    assert "unsummed_classes" not in line  # no rows of classes are sent: nobody counts owners
    _, *rows = folder.partition.read_text().split()
    assert all(re.fullmatch(r"\d,0,0,0,0", row) for row in rows)


def test_the_means_are_those_of_the_clients(whole):
    """With sum-metrics: false each client tells its own, and nothing else changes."""
    told, summed = whole(sum_metrics=False), whole()
    for own, mean in zip(told.read_rounds(), summed.read_rounds(), strict=True):
        for key in ("test_accuracy_mean", "val_accuracy_mean", "train_loss"):
            assert own[key] == pytest.approx(mean[key], abs=1e-4)
    assert told.read_summary()["test_accuracy_p10"] is not None
    rows = told.clients.read_text().splitlines()[1:]
    assert sorted({row.split(",")[1] for row in rows}, key=client_order) == list("01234")


def test_of_five_nodes_with_certificates_two_may_be_missing_if_the_others_sign(tmp_path, whole):
    """In round 3 two of the three that are left do not sign who is left."""
    make(tmp_path / "tls", ["localhost"], [str(k) for k in range(N)])

    def certify(grid) -> None:
        for node, context in grid.contexts.items():
            own = tmp_path / "tls" / "clients" / str(node - FIRST_NODE)
            context.node_config |= {
                "key": str(own), "certificate": f"{own}.crt", "ca": str(tmp_path / "tls/ca.crt"),
            }  # fmt: skip

    def leave(node, message, reply):
        kind, round_, _ = asked(message)
        missing = kind == TRAIN and round_ > 1 and node in {2, 4}
        return gone(message) if missing or (kind == AGREE and round_ == 3 and node < 2) else reply

    values = {"sum_threshold": 0, "rounds": 3}
    folder, grid = simulate(config(tmp_path, **values), tamper=leave, before=certify)
    rounds = folder.read_rounds()
    assert [record["replied"] for record in rounds] == [5, 3, 0]
    assert {asked(m)[1] for m in grid.sent if asked(m)[0] == AGREE} == {2, 3}
    assert whole("unmasked").read_rounds()[0]["sha256"] == rounds[0]["sha256"]
    assert "1 of 3 survivors signed the list" in rounds[2]["failures"][-1]["reason"]
    attempt = max(asked(m)[2] for m in grid.sent if asked(m)[:2] == (TRAIN, 3))
    assert not [m for m in grid.sent if asked(m) == (UNMASK, 3, attempt)]


MISTAKES = (
    ({"aggregation": "median"}, "aggregation: 'median' is not allowed with secure-sum=masked"),
    ({"max_weight": 0.5}, "max-weight: '0.5' is not allowed with secure-sum=masked"),
    ({"max_update_norm": 10.0}, "max-update-norm: '10.0' is not allowed with secure-sum"),
    ({"max_update_ratio": 0}, "max-update-ratio: '0.0' is not allowed with secure-sum"),
    ({"clients": 2}, "sum-min: 3 is more than the 2 clients of a round"),
    ({"fraction": 0.4}, "sum-min: 3 is more than the 2 clients of a round"),
    ({"sum_threshold": 2}, "sum-threshold: 2 is not allowed with 5 clients a round: 0, or 3"),
    ({"sum_threshold": 6}, "sum-threshold: 6 is not allowed with 5 clients a round: 0, or 3"),
    ({"sum_range": 1e9}, "sum-range: 1e\\+09 is too large: 5 clients with entries up to 1e"),
    ({"hide_classes": True}, "hide-classes: unknown key"),
)


def test_what_does_not_go_with_sums_is_one_line(tmp_path):
    for changes, line in MISTAKES:
        with pytest.raises(UserError, match=f"^{line}"):
            config(tmp_path, **changes)
    # Switched off is what older runs say.
    assert "hide-classes" not in config(tmp_path, hide_classes=False).flat()

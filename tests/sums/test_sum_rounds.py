"""Runs in which the server learns sums: bytes, dropouts, crashes, what both sides keep."""

import contextlib
import re

import pytest
from flwr.app import Error, Message
from helpers.patched import without_masks

from fedhet import load_sweep
from fedhet.deploy.certs import make
from fedhet.engines import session
from fedhet.engines.launch import FIRST_NODE
from fedhet.errors import Damaged, UserError
from fedhet.protocol.messages import AGREE, OWNERS, TRAIN, UNMASK, Reply, answer, arrays_of
from fedhet.records.run_folder import RunFolder
from fedhet.sums.server import SumAggregator
from fedhet.testing import simulate, small

N = 5


def config(tmp_path, mode="masked", **changes):
    """Five clients that share headers; four of them are a sum."""
    values = {"method": "lg_fedavg", "clients": N, "max_images": 100, "secure_sum": mode,
              "image_size": 16, "sum_threshold": 0 if "fraction" in changes else 4}  # fmt: skip
    return small(tmp_path, **(values | changes))


def sha(folder) -> str:
    return folder.read_summary()["run_sha256"]


def asked(message: Message) -> tuple[str, int, int]:
    """Kind, round and attempt of a request; attempt 0 where it is of no sum."""
    records = message.content.config_records
    attempt = records.get("sum", {}).get("attempt", 0)
    return message.metadata.message_type, records["config"]["round"], attempt


COUNTED = {"method": "fedssa", "sum_owners": 2, "fraction": 0.8}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs, made once for all the tests that compare with them."""
    made: dict[tuple, RunFolder] = {}

    def run(mode: str = "masked", **changes) -> RunFolder:
        key = (mode, *sorted(changes.items()))
        with without_masks() if mode == "unmasked" else contextlib.nullcontext():
            if key not in made:
                asked_for = tmp_path_factory.mktemp("whole"), mode.replace("unm", "m")
                made[key] = simulate(config(*asked_for, **changes))[0]
        return made[key]

    return run


@pytest.mark.parametrize("changes", [{}, COUNTED], ids=str)
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
    assert load_sweep(whole().path).frame()["gflops"].isna().all()  # and yet it can be reported


def test_whoever_drops_out_costs_its_part_or_the_round_and_nothing_later(tmp_path, whole):
    """Round by round: one before its upload, one after it, both, three before theirs, nobody."""
    absent = {(1, 2), (3, 0), (4, 0), (4, 1), (4, 2)}  # round and node, in training
    mute = {(2, 1), (3, 3)}  # where boxes are to be opened

    def leave(node, message, reply):
        kind, round_, _ = asked(message)
        out = absent if kind == TRAIN else mute if kind == UNMASK else ()
        gone = Message(Error(code=5, reason="node gone"), reply_to=message)
        return gone if (round_, node) in out else reply

    folder, grid = simulate(config(tmp_path, rounds=5), tamper=leave)
    rounds = folder.read_rounds()
    assert [record["replied"] for record in rounds] == [4, 5, 0, 0, 5]
    assert [f["client"] for f in rounds[0]["failures"]] == ["2"]
    with without_masks():
        twin, _ = simulate(config(tmp_path, name="twin"), tamper=leave)
    assert [r["sha256"] for r in twin.read_rounds()] == [r["sha256"] for r in rounds[:2]]
    third, fourth = ({f["client"]: f["reason"] for f in one["failures"]} for one in rounds[2:4])
    # Of who left before its upload nobody knows all seeds without an answer of everybody left.
    assert third["the round"] == "the sum failed: no answer from 3"
    assert fourth["the round"] == "the sum failed: 2 of 5 uploads came, 4 are needed"
    assert not [m for m in grid.sent if asked(m)[:2] == (UNMASK, 4)]
    assert rounds[1]["test_accuracy_mean"] == rounds[3]["test_accuracy_mean"]
    assert {asked(m)[2] for m in grid.sent if asked(m)[0] == TRAIN} == {1, 2, 3, 4, 5}
    # Everybody starts round 5 from round 2: the states of rounds 3 and 4 were nobody's.
    begun = {m.content["config"]["generation"] for m in grid.sent if asked(m)[:2] == (TRAIN, 5)}
    assert begun == {2}


def test_a_run_that_died_ends_with_the_same_bytes_and_repeats_no_mask(tmp_path, whole):
    """The server dies three times, when it gets one of the replies in the middle of round 2."""
    died, folder = config(tmp_path, name="died", **COUNTED), None
    sent: list[tuple[int, Message]] = []

    def crashing(kind: str, after: int):
        seen = []

        def crash(node, message, reply):
            sent.append((node, reply))
            seen.extend([node] * (asked(message)[:2] == (kind, 2)))
            if len(seen) > after:
                raise KeyboardInterrupt
            return reply

        return crash

    for kind, after in ((OWNERS, 0), (TRAIN, 3), (UNMASK, 3)):
        with pytest.raises(KeyboardInterrupt):
            simulate(died, folder=folder, tamper=crashing(kind, after))
        folder = RunFolder(tmp_path / "runs" / "died")
    number = folder.attempts.read_text()
    folder.attempts.write_text("many")
    with pytest.raises(Damaged, match=r"attempts' is damaged: it holds no number"):
        simulate(died, folder=folder)
    folder.attempts.write_text(number)
    _, grid = simulate(died, folder=folder, tamper=crashing("", 0))
    assert sha(folder) == sha(whole(**COUNTED)) and not folder.read_summary()["failures"]
    words = [a[0] for _, r in sent if r.has_content() and len(a := arrays_of(r)) == 2]
    assert len({w.tobytes() for w in words}) == len(words) > 8
    numbers = [asked(m)[2] for m in grid.sent if asked(m)[0] in {OWNERS, TRAIN}]
    assert min(numbers) > 6  # those of the lives before are not used again


def test_the_records_have_the_clients_means_and_say_what_is_missing(whole):
    """With sum-metrics: false each client tells its own, and nothing else changes."""
    told, folder = whole(sum_metrics=False), whole()
    for own, mean in zip(told.read_rounds(), folder.read_rounds(), strict=True):
        for key in ("test_accuracy_mean", "val_accuracy_mean", "train_loss"):
            assert own[key] == pytest.approx(mean[key], abs=1e-4)
    assert told.read_summary()["test_accuracy_p10"] is not None
    summary, line = folder.read_summary(), folder.read_rounds()[-1]
    assert summary["test_accuracy_p10"] is None is line["test_accuracy_std"]
    assert "clients.csv" in summary["secure_sum"]["absent"]
    hidden, shown = (run.clients.read_text().splitlines()[1:] for run in (folder, told))
    assert not hidden and {row.split(",")[1] for row in shown} == set("01234")
    assert line["evaluated_clients"] == N
    assert "unsummed_classes" not in line  # no rows of classes are sent: nobody counts owners
    _, *rows = folder.partition.read_text().split()
    assert all(re.fullmatch(r"\d,,,,", row) for row in rows)


def test_of_five_nodes_with_certificates_two_may_be_missing_if_the_others_sign(tmp_path, whole):
    """In round 3 two of the three that are left do not sign who is left."""
    make(tmp_path / "tls", ["localhost"], [str(k) for k in range(N)])

    def certify(grid) -> None:
        for node, context in grid.contexts.items():
            own, ca = f"{tmp_path}/tls/clients/{node - FIRST_NODE}", f"{tmp_path}/tls/ca.crt"
            context.node_config |= {"key": own, "certificate": f"{own}.crt", "ca": ca}

    def leave(node, message, reply):
        kind, round_, _ = asked(message)
        gone = Message(Error(code=5, reason="node gone"), reply_to=message)
        missing = kind == TRAIN and round_ > 1 and node in {2, 4}
        return gone if missing or (kind == AGREE and round_ == 3 and node < 2) else reply

    values = {"sum_threshold": 0, "rounds": 3}
    folder, grid = simulate(config(tmp_path, **values), tamper=leave, before=certify)
    rounds = folder.read_rounds()
    assert [record["replied"] for record in rounds] == [5, 3, 0]
    assert {asked(m)[1] for m in grid.sent if asked(m)[0] == AGREE} == {2, 3}
    assert whole("unmasked").read_rounds()[0]["sha256"] == rounds[0]["sha256"]
    assert "1 of 3 survivors signed the list" in rounds[2]["failures"][-1]["reason"]
    attempt = max(asked(m)[2] for m in grid.sent if asked(m)[:2] == (TRAIN, 3))
    assert not [m for m in grid.sent if asked(m) == (UNMASK, 3, attempt)]


# Five clients with two of three classes each, three or four owners: whoever leaves, two are left.
OWNED = {"method": "fedssa", "dataset": "synthetic:90x3", "classes_per_client": 2}


def test_a_run_says_how_many_classes_have_too_few_owners(tmp_path, caplog):
    first = config(tmp_path, rounds=1, sum_owners=5, **OWNED)
    folder, _ = simulate(first)
    simulate(config(tmp_path, rounds=2, sum_owners=5, **OWNED), folder=folder)
    assert [line.get("unsummed_classes") for line in folder.read_rounds()] == [3, 3]
    assert folder.read_summary()["secure_sum"].get("unsummed_classes") == 3
    heard, _ = (r.getMessage() for r in caplog.records if "sum-owners" in r.getMessage())
    assert "3 of 3 classes have fewer than sum-owners=5 owners" in heard
    assert "each client trains alone" in heard


def told_in(grid, round_: int) -> set[tuple[int, ...]]:
    """Whose rows the members of a round were told to add."""
    sent = [m for m in grid.sent if asked(m)[:2] == (TRAIN, round_)]
    return {tuple(m.content["sum"]["shared"]) for m in sent}


def counts_in(grid, round_: int) -> int:
    return len({asked(m)[2] for m in grid.sent if asked(m)[:2] == (OWNERS, round_)})


def test_owners_are_counted_again_when_others_take_part(tmp_path):
    """In round 1 two do not tell theirs; one owner of three is away in round 4."""
    grids = []

    def leave_and_return(node, message, reply):
        kind, round_, _ = asked(message)
        if (kind, round_) == (OWNERS, 1) and node < 2:
            return answer(message, Reply({"error": "away"}))
        if (kind, round_) == (UNMASK, 3):
            grids[0].online.discard(FIRST_NODE + 4)
        if (kind, round_) == (TRAIN, 4):
            grids[0].online.add(FIRST_NODE + 4)
        return reply

    values = OWNED | {"sum_owners": 3, "rounds": 5}
    run = config(tmp_path, **values)
    folder, grid = simulate(run, tamper=leave_and_return, before=grids.append)
    first, *lines = folder.read_rounds()
    reasons = {failure["client"]: failure["reason"] for failure in first["failures"]}
    assert reasons["the round"] == "owners cannot be counted: 3 of 5 uploads came, 4 are needed"
    assert [line["replied"] for line in lines] == [5, 5, 4, 5]
    assert [bool(line["unsummed_classes"]) for line in lines] == [False, False, True, False]
    assert [counts_in(grid, round_) for round_ in (2, 3, 4, 5)] == [1, 0, 1, 1]
    everything, [less] = {(0, 1, 2)}, told_in(grid, 4)
    assert told_in(grid, 2) == told_in(grid, 3) == told_in(grid, 5) == everything
    assert len(less) == 3 - lines[2]["unsummed_classes"] < 3


def test_who_goes_offline_after_the_count_is_left_out_and_others_counted(tmp_path, monkeypatch):
    """On a network the server looks who is there while it waits for the sum of owners."""
    total, totals = SumAggregator._sum, []

    def leave(self, attempt, deadline):
        totals.append(total(self, attempt, deadline))
        if len(totals) == 1:
            del self.roster.nodes["4"]
        return totals[-1]

    monkeypatch.setattr(SumAggregator, "_sum", leave)
    folder, grid = simulate(config(tmp_path, **OWNED, sum_owners=3, rounds=2))
    first, second = folder.read_rounds()
    assert [(f["client"], f["reason"]) for f in first["failures"]] == [("4", "offline")]
    assert (first["sampled"], first["replied"], second["replied"]) == (5, 4, 5)
    assert counts_in(grid, 1) == 2 and first["unsummed_classes"] > second["unsummed_classes"] == 0
    [less] = told_in(grid, 1)
    assert len(less) == 3 - first["unsummed_classes"] < 3


@pytest.mark.parametrize(("changes", "line"), [
    ({"aggregation": "median"}, "aggregation: 'median' has no effect: secure-sum=masked"),
    ({"max_update_ratio": 0}, "max-update-ratio: '0' has no effect: secure-sum"),
    ({"clients": 2}, "sum-min: 3 is more than the 2 clients of a round"),
    ({"sum_threshold": 6}, "sum-threshold: 6 is not allowed with 5 clients a round: 0, or 3"),
    ({"sum_range": 1e9}, "sum-range: 1e\\+09 is too large: 5 clients with entries up to 1e"),
])  # fmt: skip
def test_what_does_not_go_with_sums_is_one_line(tmp_path, changes, line):
    with pytest.raises(UserError, match=f"^{line}"):
        config(tmp_path, **changes)

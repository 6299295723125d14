"""Which classes have owners enough for a sum, and who was counted."""

from dataclasses import replace

import pytest
from sums.summed_runs import N, asked, config, sha

from fedhet.engines.grid import FIRST_NODE
from fedhet.engines.session import few_owners
from fedhet.protocol.messages import OWNERS, TRAIN, UNMASK
from fedhet.records.ledger import load_checkpoint, save_checkpoint
from fedhet.site.local_data import load_partition
from fedhet.sums.attempt import Attempt
from fedhet.testing import simulate


@pytest.mark.parametrize(
    ("changes", "few", "said"),
    [
        ({"sum_owners": 5}, 3, "3 of 3 classes have fewer than sum-owners=5 owners"),
        ({"sum_owners": 4}, 2, "2 of 3 classes have fewer than sum-owners=4 owners"),
    ],
)
def test_a_run_says_how_many_classes_have_too_few_owners(tmp_path, caplog, changes, few, said):
    """Five clients with two of three classes each: three or four owners."""
    values = {"method": "fedssa", "dataset": "synthetic:90x3", "classes_per_client": 2} | changes
    first = config(tmp_path, "unmasked", rounds=1, **values)
    folder, _ = simulate(first)
    rounds = 1
    if few == 3:  # once is enough for the resumed run
        rounds = 2
        simulate(config(tmp_path, "unmasked", rounds=2, **values), folder=folder)
    lines = folder.read_rounds()
    assert [line.get("unsummed_classes") for line in lines] == [few] * rounds
    assert folder.read_summary()["secure_sum"].get("unsummed_classes") == few
    heard = [r.getMessage() for r in caplog.records if "sum-owners" in r.getMessage()]
    assert len(heard) == 1 and said in heard[0]
    all_of_them = few == 3
    assert all(("each client trains alone" in line) == all_of_them for line in heard)
    before = few_owners(first, *load_partition(first, N))
    assert len(before) == all_of_them and all("sum-owners=4 would share" in line for line in before)


# Five clients with two of three classes each, as above: whoever leaves, a class has two owners.
OWNED = {"method": "fedssa", "dataset": "synthetic:90x3", "classes_per_client": 2, "sum_owners": 3}


def told_in(grid, round_: int) -> set[tuple[int, ...]]:
    """Whose rows the members of a round were told to add."""
    sent = [m for m in grid.sent if asked(m)[:2] == (TRAIN, round_)]
    return {tuple(m.content["sum"]["shared"]) for m in sent}


def counts_in(grid, round_: int) -> int:
    return len({asked(m)[2] for m in grid.sent if asked(m)[:2] == (OWNERS, round_)})


def test_owners_are_counted_again_when_others_take_part(tmp_path):
    """One owner of three is away in round 3: of its classes no row is in that sum."""
    grids = []

    def leave_and_return(node, message, reply):
        if asked(message)[0] == UNMASK and asked(message)[1] == 2:
            grids[0].online.discard(FIRST_NODE + 4)
        if asked(message)[:2] == (TRAIN, 3):
            grids[0].online.add(FIRST_NODE + 4)
        return reply

    values = OWNED | {"rounds": 4}
    folder, grid = simulate(
        config(tmp_path, **values), tamper=leave_and_return, before=grids.append
    )
    lines = folder.read_rounds()
    assert [line["replied"] for line in lines] == [5, 5, 4, 5]
    assert [bool(line["unsummed_classes"]) for line in lines] == [False, False, True, False]
    assert [counts_in(grid, round_) for round_ in (1, 2, 3, 4)] == [1, 0, 1, 1]
    everything, [less] = {(0, 1, 2)}, told_in(grid, 3)
    assert told_in(grid, 1) == told_in(grid, 2) == told_in(grid, 4) == everything
    assert len(less) == 3 - lines[2]["unsummed_classes"] < 3


def test_who_goes_offline_after_the_count_is_left_out_and_the_others_are_counted(
    tmp_path, monkeypatch
):
    """On a network the server looks who is there while it waits for the sum of owners."""
    total, totals = Attempt.total, []

    def leave(self, deadline):
        totals.append(total(self, deadline))
        if len(totals) == 1:
            del self.handshake.roster.nodes["4"]
        return totals[-1]

    monkeypatch.setattr(Attempt, "total", leave)
    folder, grid = simulate(config(tmp_path, **OWNED, rounds=2))
    first, second = folder.read_rounds()
    assert [(f["client"], f["reason"]) for f in first["failures"]] == [("4", "offline")]
    assert (first["sampled"], first["replied"], second["replied"]) == (5, 4, 5)
    assert counts_in(grid, 1) == 2 and first["unsummed_classes"] > second["unsummed_classes"] == 0
    [less] = told_in(grid, 1)
    assert len(less) == 3 - first["unsummed_classes"] < 3


def test_a_resumed_run_counts_again_and_has_the_same_bytes(tmp_path):
    whole, _ = simulate(config(tmp_path, **OWNED, rounds=2))
    folder, _ = simulate(config(tmp_path, **OWNED, rounds=1, name="died"))
    kept = load_checkpoint(folder.checkpoint)
    assert kept is not None  # an older fedhet wrote down who may be summed, and not of whom
    save_checkpoint(folder.checkpoint, replace(kept, meta={**kept.meta, "told": [0]}))
    _, grid = simulate(config(tmp_path, **OWNED, rounds=2, name="died"), folder=folder)
    assert counts_in(grid, 2) == 1 and told_in(grid, 2) == {(0, 1, 2)}
    assert sha(folder) == sha(whole)

"""One attempt from masks to sum: who may drop out, what members refuse, what liars reach."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sums.members import Cohort, refused

from fedhet.errors import Refused, Rejected
from fedhet.sums.masks import SumTerms, from_words


@settings(max_examples=25, deadline=None)
@given(data=st.data(), size=st.integers(3, 20))
def test_any_permitted_dropout_gives_exactly_the_sum(data: st.DataObject, size: int) -> None:
    cohort = Cohort(size)
    least = cohort.terms.survivors(size)
    alive = data.draw(st.sets(st.sampled_from(cohort.names), min_size=least))
    collector = cohort.upload(sorted(alive))
    survivors = collector.close()
    everybody = len(alive) == size
    speaking = data.draw(st.sets(st.sampled_from(survivors), min_size=size // 2 + 1))
    cohort.answers(collector, sorted(speaking) if everybody else survivors)
    assert collector.total().tolist() == cohort.sum(survivors)
    whole = from_words(collector.total(), 20)
    assert np.allclose(whole, sum(cohort.vectors[n] for n in survivors), atol=size * 2.0**-20)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), size=st.integers(3, 20))
def test_any_other_dropout_gives_no_sum_and_says_why(data: st.DataObject, size: int) -> None:
    cohort = Cohort(size)
    few = SumTerms().survivors(size) - 1
    alive = data.draw(st.sets(st.sampled_from(cohort.names), max_size=few))
    with pytest.raises(Rejected, match=f"{len(alive)} of {size} uploads came"):
        cohort.upload(sorted(alive)).close()
    again = Cohort(size)
    collector = again.upload(again.names)
    collector.close()
    again.answers(collector, again.names[: size // 2])
    with pytest.raises(Rejected, match="no answer from"):
        collector.total()


def test_somebody_gone_needs_an_answer_of_everybody_left() -> None:
    cohort = Cohort(5, SumTerms(3, 4))
    collector = cohort.upload(cohort.names[:4])
    collector.close()
    cohort.answers(collector, ["a", "b", "c"])
    assert collector.missing() == ["d"]
    with pytest.raises(Rejected, match="no answer from d"):
        collector.total()
    cohort.answers(collector, ["d"])
    assert collector.total().tolist() == cohort.sum(cohort.names[:4])


@pytest.mark.parametrize(
    ("cohort", "word"),
    [
        (["a", "b"], "cohort-too-small"),
        (["b", "c", "d"], "not-in-cohort"),
        (["a", "b", "x"], "stranger-in-cohort"),
        (["a", "b", "b", "c"], "member-named-twice"),
    ],
)
def test_a_member_joins_no_cohort_that_would_give_it_away(cohort, word) -> None:
    member = Cohort(4).members["a"]
    refused(word, member.join, 1, cohort)


def test_a_member_joins_no_cohort_in_which_one_key_has_two_names() -> None:
    cohort = Cohort(4)
    member = cohort.members["a"]
    member.keys = {**member.keys, "b": member.keys["c"]}
    refused("member-named-twice", member.join, 1, cohort.names)


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_a_threshold_that_allows_two_answers_is_refused(threshold) -> None:
    cohort = Cohort(4, SumTerms(3, threshold))
    refused("threshold-too-low", cohort.members["a"].join, 1, cohort.names)


@pytest.mark.parametrize(
    ("survivors", "word"),
    [
        (["a", "b", "c"], "too-few-survivors"),
        (["b", "c", "d", "e"], "not-a-survivor"),
        (["a", "b", "c", "x"], "survivors-not-the-cohort"),
        (["a", "b", "b", "c"], "member-named-twice"),
    ],
)
def test_a_member_opens_no_share_for_survivors_that_would_give_somebody_away(
    survivors, word
) -> None:
    cohort = Cohort(6)
    collector = cohort.upload(cohort.names)
    collector.close()
    boxes = collector.boxes_for("a")[: len(survivors)]
    refused(word, cohort.members["a"].open_shares, 1, 1, survivors, boxes)


def test_a_member_opens_nothing_it_did_not_upload_for() -> None:
    cohort = Cohort(4)
    collector = cohort.upload(cohort.names)
    survivors, boxes = collector.close(), collector.boxes_for("a")
    ask = cohort.members["a"].open_shares
    for round_, attempt in ((2, 1), (1, 2)):
        refused("unmask-without-upload", ask, round_, attempt, survivors, boxes)
    refused("boxes-malformed", ask, 1, 1, survivors, boxes[:3])


def test_boxes_of_another_attempt_or_with_one_bit_flipped_do_not_open() -> None:
    cohort = Cohort(4)
    old = cohort.upload(cohort.names)
    old.close()
    collector = cohort.upload(cohort.names, attempt=2)
    survivors = collector.close()
    boxes = collector.boxes_for("a").copy()
    boxes[1] = old.boxes_for("a")[1]
    boxes[2, 5] ^= 1
    opened = cohort.members["a"].open_shares(1, 2, survivors, boxes)
    shares = np.frombuffer(opened.shares, np.uint8).reshape(-1, 66)
    assert opened.closed == ("b", "c") and not shares[1:3].any() and shares[0].any()


def test_masked_words_look_uniform_and_no_two_attempts_share_any() -> None:
    cohort = Cohort(3)
    cohort.words = {name: np.zeros(20_000, np.uint32) for name in cohort.names}
    first, second = (cohort.mask("a", attempt)[0] for attempt in (1, 2))
    counts = np.bincount(first.view(np.uint8), minlength=256)
    expected = first.nbytes / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < 400  # 255 degrees of freedom: by chance one run in ten million
    assert (first == second).sum() < 3


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 9, 10, 20])
@pytest.mark.parametrize("least", [2, 3])
def test_survivors_told_differently_to_each_member_isolate_nobody(size, least) -> None:
    """The server tells everybody other survivors, so that between them they give few away.

    Those few open their pair seeds with some members, the other members theirs with them, and just
    enough members their shares of the few's self masks. Where nobody refused, the server had the
    sum of those few.
    """
    cohort = Cohort(size, SumTerms(least))
    collector = cohort.upload(cohort.names)
    collector.close()
    needed = cohort.terms.needed(size)
    for few in range(1, least):
        inside, outside = cohort.names[:few], cohort.names[few:]
        helpers = outside[: needed - few]  # who open shares of those inside
        told = {name: cohort.names if name in helpers else outside for name in outside}
        told |= {name: [c for c in cohort.names if c not in helpers] for name in inside}
        refused_by = []
        for name, survivors in told.items():
            boxes = collector.boxes_for(name)[[cohort.names.index(c) for c in survivors]]
            try:
                cohort.members[name].open_shares(1, 1, survivors, boxes)
            except Refused as error:
                refused_by += [(name, error.code)]
        assert {word for _, word in refused_by} == {"too-few-survivors"}
        for member in cohort.members.values():  # as before the question
            member.kept = replace(member.kept, answered=())


@pytest.mark.parametrize(
    ("size", "terms", "survivors", "fewest"),
    [
        (3, SumTerms(), 3, 3), (5, SumTerms(), 5, 5), (5, SumTerms(3, 4), 4, 3),
        (10, SumTerms(), 7, 3),
        (10, SumTerms(3, 9), 9, 8), (100, SumTerms(), 52, 3), (100, SumTerms(3, 90), 90, 80),
        (100, SumTerms(20), 69, 20), (2, SumTerms(), 3, 3),
    ],
)  # fmt: skip
def test_how_few_may_be_summed(size, terms, survivors, fewest) -> None:
    assert terms.survivors(size) == survivors
    if size >= terms.min_members:
        assert terms.fewest(size) == fewest


# --- survivors that sign who is left, so that a small cohort can lose members ---------------------


def agreeing(threshold: int = 0, left: str = "abc", attempt: int = 1) -> tuple[Cohort, list[str]]:
    """Return five members whose keys sign, of which some are left."""
    cohort = Cohort(5, SumTerms(3, threshold, agreed=True), certified=True)
    return cohort, cohort.upload(left, attempt).close()


def test_a_list_with_fewer_signatures_than_the_threshold_opens_nothing() -> None:
    cohort, _ = agreeing()
    few = cohort.sign("ab", "abc")
    for name in "ac":  # c has not signed it itself
        refused("survivors-not-signed", cohort.open, name, "abc", few)


def test_of_two_lists_only_one_is_opened() -> None:
    cohort, _ = agreeing()
    first, second = cohort.sign("abc", "abc"), cohort.sign("de", "ade")
    refused("other-survivors-than-answered", cohort.sign, "a", "ade")
    refused("other-survivors-than-answered", cohort.open, "a", "ade", second)
    for signatures in (second, first | second):
        refused("survivors-not-signed", cohort.open, "d", "ade", signatures)


def test_who_answered_or_signed_says_nothing_else() -> None:
    cohort, _ = agreeing()
    cohort.open("d", cohort.names, {})  # nobody is gone: no signature is needed
    refused("other-survivors-than-answered", cohort.sign, "d", "bcd")
    signatures = cohort.sign("abc", "abc")
    refused("other-survivors-than-answered", cohort.open, "b", cohort.names, {})
    cohort.open("a", "abc", signatures)
    refused("other-survivors-than-answered", cohort.open, "a", cohort.names, {})


FORGED = {
    "random": lambda cohort, good: os.urandom(103),
    "empty": lambda cohort, good: b"",
    "another member's": lambda cohort, good: good["b"],
    "of another list": lambda cohort, good: replayed(cohort, 1, "bcd"),
    "of another attempt": lambda cohort, good: replayed(cohort, 2, "abc"),
    "of another key": lambda cohort, good: agreeing()[0].sign("c", "abc")["c"],
}


def replayed(cohort: Cohort, attempt: int, survivors: str) -> bytes:
    """Return what the same client signed for another list, or in another attempt."""
    member = cohort.members["c"]
    kept = member.kept
    if attempt > 1:
        cohort.mask("c", attempt)
    found = cohort.sign("c", survivors, attempt)["c"]
    member.kept = kept
    return found


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_or_replayed_signature_does_not_count(forgery: str) -> None:
    cohort, _ = agreeing()
    good = cohort.sign("ab", "abc")
    signatures = good | {"c": FORGED[forgery](cohort, good)}
    refused("survivors-not-signed", cohort.open, "a", "abc", signatures)
    cohort.open("a", "abc", good | cohort.sign("c", "abc"))


@pytest.mark.parametrize(
    ("threshold", "lists", "both"), [(3, ("abe", "cde"), True), (4, ("abce", "bcde"), False)]
)
def test_a_member_in_league_needs_a_threshold_of_half_of_all_with_it(threshold, lists, both):
    """One of five signs everything: with t <= (n + k) / 2 = 3 there are two lists, with 4 not."""
    (cohort, _), found = agreeing(threshold, "abcde"), []
    for survivors in lists:
        free = [n for n in survivors if n == "e" or not cohort.members[n].kept.signed]
        cohort.members["e"].kept = replace(cohort.members["e"].kept, signed=())
        found.append(len(cohort.sign(free, survivors)) >= threshold)
    assert found == [True, both]


def test_a_server_that_withholds_proofs_gets_the_stricter_rule() -> None:
    cohort, _ = agreeing()
    member = cohort.members["a"]
    member.certified = {name: key for name, key in member.certified.items() if name != "e"}
    refused("too-few-survivors", cohort.sign, "a", "abc")

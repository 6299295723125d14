"""One attempt from masks to sum: who may drop out, what members refuse, what liars reach."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet.errors import Refused, Rejected
from fedhet.sums.attempt import Collector
from fedhet.sums.client import Commitment, Member
from fedhet.sums.masks import SumTerms, from_words, grid, public_bytes, to_words

LENGTH = 5
PAYLOAD = b"\x07" * 32


class Cohort:
    """Members with vectors of their own, and what they upload."""

    def __init__(self, size: int, terms: SumTerms | None = None, seed: int = 0) -> None:
        self.names = [f"c{k}" for k in range(size)]
        self.terms = terms or SumTerms()
        private = {name: X25519PrivateKey.generate() for name in self.names}
        keys = {name: public_bytes(key) for name, key in private.items()}
        self.members = {n: Member(n, "run", private[n], keys, self.terms) for n in self.names}
        rng = np.random.default_rng(seed)
        self.vectors = {name: rng.normal(size=LENGTH) for name in self.names}
        self.words = {n: to_words(grid(v, 20, 64.0)) for n, v in self.vectors.items()}

    def upload(self, names: Sequence[str], attempt: int = 1, round_: int = 1) -> Collector:
        collector = Collector(self.names, LENGTH, self.terms)
        for name in names:
            member = self.members[name]
            upload = member.mask(round_, attempt, self.names, PAYLOAD, self.words[name])
            collector.take(name, upload)
        return collector

    def answers(self, collector: Collector, names: Sequence[str], attempt: int = 1) -> None:
        for name in names:
            boxes = collector.boxes_for(name)
            found = self.members[name].unmask(1, attempt, collector.survivors, boxes)
            collector.answer(name, found)

    def sum(self, names: Sequence[str]) -> list[int]:
        return np.sum([self.words[n] for n in names], axis=0, dtype=np.uint32).tolist()


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=40, deadline=None)
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
    with pytest.raises(Rejected, match="no answer of"):
        collector.total()


def test_somebody_gone_needs_an_answer_of_everybody_left() -> None:
    cohort = Cohort(5, SumTerms(3, 4))
    collector = cohort.upload(cohort.names[:4])
    collector.close()
    cohort.answers(collector, ["c0", "c1", "c2"])
    assert collector.missing() == ["c3"]
    with pytest.raises(Rejected, match="no answer of c3"):
        collector.total()
    cohort.answers(collector, ["c3"])
    assert collector.total().tolist() == cohort.sum(cohort.names[:4])


def refused(word: str, ask, *given) -> None:
    with pytest.raises(Refused) as caught:
        ask(*given)
    assert caught.value.code == word


@pytest.mark.parametrize(
    ("cohort", "word"),
    [
        (["c0", "c1"], "cohort-too-small"),
        (["c1", "c2", "c3"], "not-in-cohort"),
        (["c0", "c1", "x"], "stranger-in-cohort"),
        (["c0", "c1", "c1", "c2"], "member-named-twice"),
    ],
)
def test_a_member_joins_no_cohort_that_would_give_it_away(cohort, word) -> None:
    member = Cohort(4).members["c0"]
    refused(word, member.join, 1, cohort)


def test_a_member_joins_no_cohort_in_which_one_key_has_two_names() -> None:
    cohort = Cohort(4)
    member = cohort.members["c0"]
    member.keys = {**member.keys, "c1": member.keys["c2"]}
    refused("member-named-twice", member.join, 1, cohort.names)


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_a_threshold_that_allows_two_answers_is_refused(threshold) -> None:
    cohort = Cohort(4, SumTerms(3, threshold))
    refused("threshold-too-low", cohort.members["c0"].join, 1, cohort.names)


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_an_old_attempt_meets_no_second_vector(attempt) -> None:
    cohort = Cohort(4)
    cohort.upload(cohort.names, attempt=2)
    refused("attempt-not-new", cohort.members["c0"].join, attempt, cohort.names)


def test_a_member_answers_for_one_set_of_survivors_only_and_repeats_it() -> None:
    cohort = Cohort(6)
    collector = cohort.upload(cohort.names)
    survivors = collector.close()
    member = cohort.members["c0"]
    first = member.unmask(1, 1, survivors, collector.boxes_for("c0"))
    again = member.unmask(1, 1, survivors, collector.boxes_for("c0"))
    assert first == again
    boxes = collector.boxes_for("c0")[:5]
    refused("other-survivors-than-answered", member.unmask, 1, 1, survivors[:5], boxes)
    member.kept = Commitment.of(
        json.loads(json.dumps(asdict(member.kept)))
    )  # also after its process was killed
    refused("other-survivors-than-answered", member.unmask, 1, 1, survivors[:5], boxes)


@pytest.mark.parametrize(
    ("survivors", "word"),
    [
        (["c0", "c1", "c2"], "too-few-survivors"),
        (["c1", "c2", "c3", "c4"], "not-a-survivor"),
        (["c0", "c1", "c2", "x"], "survivors-not-the-cohort"),
        (["c0", "c1", "c1", "c2"], "member-named-twice"),
    ],
)
def test_a_member_opens_no_share_for_survivors_that_would_give_somebody_away(
    survivors, word
) -> None:
    cohort = Cohort(6)
    collector = cohort.upload(cohort.names)
    collector.close()
    boxes = collector.boxes_for("c0")[: len(survivors)]
    refused(word, cohort.members["c0"].unmask, 1, 1, survivors, boxes)


def test_a_member_opens_nothing_it_did_not_upload_for() -> None:
    cohort = Cohort(4)
    collector = cohort.upload(cohort.names)
    survivors, boxes = collector.close(), collector.boxes_for("c0")
    for round_, attempt in ((2, 1), (1, 2)):
        refused("unmask-without-upload", cohort.members["c0"].unmask, round_, attempt, survivors,
                boxes)  # fmt: skip
    refused("boxes-malformed", cohort.members["c0"].unmask, 1, 1, survivors, boxes[:3])


def test_boxes_of_another_attempt_or_with_one_bit_flipped_do_not_open() -> None:
    cohort = Cohort(4)
    old = cohort.upload(cohort.names)
    old.close()
    collector = cohort.upload(cohort.names, attempt=2)
    survivors = collector.close()
    boxes = collector.boxes_for("c0").copy()
    boxes[1] = old.boxes_for("c0")[1]
    boxes[2, 5] ^= 1
    opened = cohort.members["c0"].unmask(1, 2, survivors, boxes)
    shares = np.frombuffer(opened.shares, np.uint8).reshape(-1, 66)
    assert opened.closed == ("c1", "c2") and not shares[1:3].any() and shares[0].any()


def test_members_that_were_sent_different_payloads_give_noise() -> None:
    cohort = Cohort(4)
    collector = Collector(cohort.names, LENGTH, cohort.terms)
    for name in cohort.names:
        payload = b"\x08" * 32 if name == "c2" else PAYLOAD
        masked = cohort.members[name].mask(1, 1, cohort.names, payload, cohort.words[name])
        collector.take(name, masked)
    collector.close()
    with pytest.raises(Rejected, match="did not open"):  # boxes are bound to the payload, too
        cohort.answers(collector, cohort.names)
        collector.total()


def test_who_sends_garbage_boxes_is_named() -> None:
    cohort = Cohort(5)
    collector = Collector(cohort.names, LENGTH, cohort.terms)
    for name in cohort.names:
        words, boxes = cohort.members[name].mask(1, 1, cohort.names, PAYLOAD, cohort.words[name])
        collector.take(name, [words, np.zeros_like(boxes) if name == "c3" else boxes])
    collector.close()
    cohort.answers(collector, cohort.names)
    with pytest.raises(Rejected, match="boxes of 'c3' did not open for 5 members"):
        collector.total()


def test_masked_words_look_uniform_and_no_two_attempts_share_any() -> None:
    cohort = Cohort(3)
    cohort.words = {name: np.zeros(20_000, np.uint32) for name in cohort.names}
    first, second = (
        cohort.members["c0"].mask(1, attempt, cohort.names, PAYLOAD, cohort.words["c0"])[0]
        for attempt in (1, 2)
    )
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
                cohort.members[name].unmask(1, 1, survivors, boxes)
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
    if size >= terms.least:
        assert terms.fewest(size) == fewest

"""Survivors that sign who is left, so that a small cohort can lose members."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Error, Message
from summed_runs import N, asked, config, sha

from fedhet.deploy.certs import make
from fedhet.engines.grid import FIRST_NODE
from fedhet.errors import Refused
from fedhet.protocol.messages import AGREE, TRAIN, UNMASK
from fedhet.sums.attempt import Collector
from fedhet.sums.client import Member
from fedhet.sums.masks import SumTerms, public_bytes
from fedhet.testing import simulate

NAMES = list("abcde")
WORDS = {name: np.arange(4, dtype=np.uint32) * (k + 1) for k, name in enumerate(NAMES)}


class Cohort:
    """Members whose keys are certified, and the uploads of some of them."""

    def __init__(self, threshold: int = 0, attempt: int = 1, left: str = "abc") -> None:
        self.attempt, self.left = attempt, list(left)
        self.signing = {name: generate_private_key(SECP384R1()) for name in NAMES}
        certified = {name: key.public_key() for name, key in self.signing.items()}
        private = {name: X25519PrivateKey.generate() for name in NAMES}
        keys = {name: public_bytes(key) for name, key in private.items()}
        terms = SumTerms(3, threshold)
        self.members = {
            n: Member(n, "run", private[n], keys, terms, certified=certified) for n in NAMES
        }
        self.collector = Collector(NAMES, 4, SumTerms(3, threshold, agreed=True))
        for name in NAMES:
            upload = self.members[name].mask(1, attempt, NAMES, b"sent", WORDS[name])
            if name in left:
                self.collector.take(name, upload)

    def sign(self, names: Sequence[str], survivors: Sequence[str]) -> dict[str, bytes]:
        sign = {n: self.members[n].sign for n in names}
        return {n: sign[n](1, self.attempt, survivors, self.signing[n]) for n in names}

    def open(self, name: str, survivors: Sequence[str], signatures: Mapping[str, bytes]) -> None:
        boxes = np.zeros((len(survivors), 82), np.uint8)
        self.members[name].unmask(1, self.attempt, survivors, boxes, signatures)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return str(caught.value.code)


def test_two_of_five_may_be_gone() -> None:
    cohort = Cohort()
    alive = cohort.collector.close()
    signatures = cohort.sign(alive, alive)
    for name in alive:
        boxes = cohort.collector.boxes_for(name)
        found = cohort.members[name].unmask(1, 1, alive, boxes, signatures)
        cohort.collector.answer(name, found)
    assert cohort.collector.total().tolist() == sum(WORDS[n] for n in alive).tolist()


def test_a_list_with_fewer_signatures_than_the_threshold_opens_nothing() -> None:
    cohort = Cohort()
    few = cohort.sign("ab", "abc")
    assert refusal(lambda: cohort.open("a", "abc", few)) == "survivors-not-signed"
    assert refusal(lambda: cohort.open("c", "abc", few)) == "survivors-not-signed"  # its own, too


def test_of_two_lists_only_one_is_opened() -> None:
    cohort = Cohort()
    first, second = cohort.sign("abc", "abc"), cohort.sign("de", "ade")
    assert refusal(lambda: cohort.sign("a", "ade")) == "other-survivors-than-answered"
    assert refusal(lambda: cohort.open("a", "ade", second)) == "other-survivors-than-answered"
    assert refusal(lambda: cohort.open("d", "ade", second)) == "survivors-not-signed"
    assert refusal(lambda: cohort.open("d", "ade", first | second)) == "survivors-not-signed"


def test_who_answered_for_everybody_signs_nothing_else() -> None:
    cohort = Cohort()
    cohort.open("a", NAMES, {})  # nobody is gone: no signature is needed
    assert refusal(lambda: cohort.sign("a", "abc")) == "other-survivors-than-answered"


def test_who_signed_opens_nothing_for_everybody() -> None:
    cohort = Cohort()
    signatures = cohort.sign("abc", "abc")
    cohort.open("a", "abc", signatures)
    assert refusal(lambda: cohort.open("a", NAMES, {})) == "other-survivors-than-answered"
    other = Cohort()
    other.sign("a", "abc")
    assert refusal(lambda: other.open("a", NAMES, {})) == "other-survivors-than-answered"


FORGED = {
    "random": lambda c, good: os.urandom(103),
    "empty": lambda c, good: b"",
    "another member's": lambda c, good: good["b"],
    "of another list": lambda c, good: replayed(c, 1, "bcd"),
    "of another attempt": lambda c, good: replayed(c, 2, "abc"),
    "of another key": lambda c, good: Cohort().sign("c", "abc")["c"],
}


def replayed(cohort: Cohort, attempt: int, survivors: str) -> bytes:
    """What the same client signed for another list, or in another attempt."""
    member = cohort.members["c"]
    kept = member.kept
    if attempt > 1:
        member.mask(1, attempt, NAMES, b"sent", WORDS["c"])
    found = member.sign(1, attempt, survivors, cohort.signing["c"])
    member.kept = kept
    return found


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_or_replayed_signature_does_not_count(forgery: str) -> None:
    cohort = Cohort()
    good = cohort.sign("ab", "abc")
    signatures = good | {"c": FORGED[forgery](cohort, good)}
    assert refusal(lambda: cohort.open("a", "abc", signatures)) == "survivors-not-signed"
    cohort.open("a", "abc", good | cohort.sign("c", "abc"))


@pytest.mark.parametrize(
    ("threshold", "lists", "both"), [(3, ("abe", "cde"), True), (4, ("abce", "bcde"), False)]
)
def test_a_member_in_league_needs_a_threshold_of_half_of_all_with_it(threshold, lists, both):
    """One of five signs everything: with t <= (n + k) / 2 = 3 there are two lists, with 4 not."""
    cohort, found = Cohort(threshold), []
    for survivors in lists:
        free = [n for n in survivors if n == "e" or not cohort.members[n].kept.signed]
        cohort.members["e"].kept = replace(cohort.members["e"].kept, signed=())
        found.append(len(cohort.sign(free, survivors)) >= threshold)
    assert found == [True, both]


def test_a_server_that_withholds_proofs_gets_the_stricter_rule() -> None:
    cohort = Cohort()
    member = cohort.members["a"]
    member.certified = {name: key for name, key in member.certified.items() if name != "e"}
    assert refusal(lambda: cohort.sign("a", "abc")) == "too-few-survivors"


# --- runs ---------------------------------------------------------------------------------------


def certified(folder) -> Callable[[object], None]:
    make(folder, ["localhost"], [str(k) for k in range(N)])

    def before(grid) -> None:
        for node, context in grid.contexts.items():
            own = folder / "clients" / str(node - FIRST_NODE)
            context.node_config |= {
                "key": str(own), "certificate": f"{own}.crt", "ca": str(folder / "ca.crt"),
            }  # fmt: skip

    return before


def leave(node, message, reply):
    gone = node in {2, 4} and asked(message)[:2] == (TRAIN, 2)
    return Message(Error(code=5, reason="gone"), reply_to=message) if gone else reply


def test_of_five_nodes_with_certificates_two_may_be_missing(tmp_path) -> None:
    values = {"sum_threshold": 0, "rounds": 3}
    before = certified(tmp_path / "tls")
    masked, grid = simulate(config(tmp_path, **values), tamper=leave, before=before)
    assert [line["replied"] for line in masked.read_rounds()] == [5, 3, 5]
    assert {asked(m)[1] for m in grid.sent if asked(m)[0] == AGREE} == {2}
    plain, _ = simulate(config(tmp_path, "unmasked", sum_min=2, **values), tamper=leave)
    assert plain.read_rounds()[0]["sha256"] == masked.read_rounds()[0]["sha256"]
    without, _ = simulate(config(tmp_path, **values), tamper=leave)
    assert [line["replied"] for line in without.read_rounds()] == [5, 0, 5]


def test_survivors_that_do_not_sign_skip_the_round(tmp_path) -> None:
    def silent(node, message, reply):
        if asked(message)[0] == AGREE and node in {0, 1}:
            return Message(Error(code=5, reason="gone"), reply_to=message)
        return leave(node, message, reply)

    before = certified(tmp_path / "tls")
    folder, grid = simulate(config(tmp_path, sum_threshold=0), tamper=silent, before=before)
    lines = folder.read_rounds()
    assert [line["replied"] for line in lines] == [5, 0]
    assert "1 of 3 survivors signed who is left" in lines[1]["failures"][-1]["reason"]
    attempt = max(asked(m)[2] for m in grid.sent if asked(m)[:2] == (TRAIN, 2))
    assert not [m for m in grid.sent if asked(m) == (UNMASK, 2, attempt)]
    assert sha(folder)

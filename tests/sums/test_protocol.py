"""One attempt from masks to sum: who may drop out, what members refuse, what liars reach."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet.errors import Refused, Rejected
from fedhet.protocol.messages import Reply
from fedhet.site.state import FileStore
from fedhet.sums import masks
from fedhet.sums.client import KEYS, LAST, Member
from fedhet.sums.masks import SumTerms, Survivors
from fedhet.sums.server import Attempt

LENGTH = 5
CA_KEY = generate_private_key(SECP384R1())
PAYLOAD = b"\x07" * 32


def certificate(subject, key, issuer, signer, days=(-1, 1)):
    names = ([x509.NameAttribute(NameOID.COMMON_NAME, text)] for text in (subject, issuer))
    own, issuers = map(x509.Name, names)
    since, until = (datetime.now(UTC) + timedelta(days=day) for day in days)
    return (
        x509.CertificateBuilder().subject_name(own).issuer_name(issuers)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(since).not_valid_after(until).sign(signer, SHA384())
    )  # fmt: skip


CA = certificate("ca", CA_KEY, "ca", CA_KEY)


class Group:
    """Members "a", "b" and so on, with vectors of their own; ``certified``: their keys sign."""

    def __init__(self, size: int, terms: SumTerms | None = None, *, certified: bool = False):
        self.names = [chr(ord("a") + k) for k in range(size)]
        self.terms = terms or SumTerms(agreed=certified)
        self.folder = TemporaryDirectory()
        self.keys = {name: self.member(name).key(None) for name in self.names}
        self.signing = {n: generate_private_key(SECP384R1()) for n in self.names if certified}
        for name, key in self.signing.items():
            proof = certificate(name, key, "ca", CA_KEY)
            self.keys[name] = masks.prove(key, proof, "run", name, self.keys[name].public)
        for name in self.names:
            assert self.member(name).introduce(self.keys, CA if certified else None) == []
        rng = np.random.default_rng(0)
        self.vectors = {name: rng.normal(size=LENGTH) for name in self.names}
        self.words = {n: masks.grid(v, 20, 64.0).astype(np.uint32) for n, v in self.vectors.items()}

    def member(self, name: str, terms: SumTerms | None = None) -> Member:
        """As in a fresh process: all that is known lies on the disk."""
        store = FileStore(Path(self.folder.name) / name, sync=False)
        return Member(store, "run", name, terms or self.terms)

    def mask(self, name: str, attempt: int = 1):
        cohort, reply = self.cohort(attempt), Reply({}, {}, [self.words[name]])
        return self.member(name).mask(1, cohort, PAYLOAD, reply).arrays

    def cohort(self, attempt: int) -> masks.Cohort:
        return masks.Cohort(tuple(self.names), attempt, len(self.names))

    def change(self, name: str, note: str, edit) -> None:
        store = self.member(name).store
        store.write_note(note, edit(store.read_note(note)))

    def upload(self, names: Sequence[str], attempt: int = 1) -> Attempt:
        """Return the uploads of some members, where all have masked theirs."""
        collector = Attempt(self.cohort(attempt), LENGTH, self.terms, 1)
        masked = {name: self.mask(name, attempt) for name in self.names}
        for name in names:
            collector.take(name, masked[name])
        return collector

    def sign(self, names: Sequence[str], survivors: Sequence[str], attempt=1):
        told = Survivors(tuple(survivors), attempt)
        return {n: self.member(n).sign(1, told, self.signing[n]) for n in names}

    def open(self, name: str, survivors: Sequence[str], signatures: Mapping[str, bytes]) -> None:
        signed = tuple(signatures.get(n, b"") for n in survivors)
        told = Survivors(tuple(survivors), 1, bytes(82 * len(survivors)), signed)
        self.member(name).open_shares(1, told)


def told_to(name: str, collector: Attempt) -> Survivors:
    return Survivors(collector.survivors, 1, collector.boxes_for(name).tobytes())


def refused(code: str, ask, *given) -> None:
    """AssertionError unless ``ask(*given)`` is refused with this code."""
    with pytest.raises(Refused) as caught:
        ask(*given)
    assert caught.value.about == code


@settings(max_examples=20, deadline=None)
@given(data=st.data(), size=st.integers(3, 12))
def test_any_permitted_dropout_gives_exactly_the_sum_and_no_other(data, size: int) -> None:
    cohort = Group(size)
    gone = data.draw(st.integers(0, size // 2))
    alive = sorted(data.draw(st.permutations(cohort.names))[gone:])
    collector = cohort.upload(alive)
    if len(alive) < cohort.terms.survivors(size):
        with pytest.raises(Rejected, match=f"{len(alive)} of {size} uploads came"):
            collector.close()
        return
    survivors = collector.close()
    speaking = survivors[data.draw(st.integers(0, size // 2)) :]
    for name in speaking:
        told = told_to(name, collector)
        collector.answer(name, cohort.member(name).open_shares(1, told))
    if len(speaking) < (size // 2 + 1 if len(alive) == size else len(alive)):
        with pytest.raises(Rejected, match="no answer from"):
            collector.total()
        return
    words = np.sum([cohort.words[n] for n in survivors], axis=0, dtype=np.uint32)
    assert collector.total().tolist() == words.tolist()
    whole = masks.from_words(words, 20)
    assert np.allclose(whole, sum(cohort.vectors[n] for n in survivors), atol=size * 2.0**-20)


@pytest.mark.parametrize(("cohort", "threshold", "word"), [
    ("ab", 0, "cohort-too-small"), ("bcd", 0, "not-in-cohort"),
    ("abx", 0, "stranger-in-cohort"), ("abbc", 0, "member-named-twice"),
    ("abce", 0, "member-named-twice"),  # one key under two names
    *(("abcd", threshold, "threshold-too-low") for threshold in (1, 2, 5)),  # two answers
])  # fmt: skip
def test_a_member_joins_no_cohort_that_would_give_it_away(cohort, threshold, word) -> None:
    whole = Group(4, SumTerms(3, threshold))
    whole.change("a", KEYS, lambda keys: keys | {"e": keys["c"]})
    asked = masks.Cohort(tuple(cohort), 1, len(cohort))
    refused(word, whole.member("a").repeated, 1, asked, PAYLOAD)


@pytest.mark.parametrize(("survivors", "round_", "attempt", "word"), [
    ("abc", 1, 1, "too-few-survivors"), ("bcd", 1, 1, "not-a-survivor"),
    ("abcx", 1, 1, "survivors-not-the-cohort"), ("abbc", 1, 1, "member-named-twice"),
    ("abcd", 2, 1, "unmask-without-upload"), ("abcd", 1, 2, "unmask-without-upload"),
    ("abcd", 1, 1, "boxes-malformed"),
])  # fmt: skip
def test_a_member_opens_no_share_for_survivors_that_would_give_somebody_away(
    survivors, round_, attempt, word
):
    cohort = Group(4)
    cohort.upload(cohort.names).close()
    told = Survivors(tuple(survivors), attempt, bytes(82 * 3))
    refused(word, cohort.member("a").open_shares, round_, told)


def test_boxes_of_another_attempt_or_with_one_bit_flipped_do_not_open() -> None:
    cohort = Group(4)
    old = cohort.upload(cohort.names)
    old.close()
    collector = cohort.upload(cohort.names, attempt=2)
    survivors = collector.close()
    boxes = collector.boxes_for("a").copy()
    boxes[1] = old.boxes_for("a")[1]
    boxes[2, 5] ^= 1
    opened = cohort.member("a").open_shares(1, Survivors(survivors, 2, boxes.tobytes()))
    shares = np.frombuffer(opened.shares, np.uint8).reshape(-1, 66)
    assert opened.closed == ("b", "c") and not shares[1:3].any() and shares[0].any()


@pytest.mark.parametrize(("size", "terms", "survivors", "fewest"), [
    (3, SumTerms(), 3, 3), (5, SumTerms(), 5, 5), (5, SumTerms(3, 4), 4, 3),
    (10, SumTerms(), 7, 3), (5, SumTerms(agreed=True), 3, 3), (10, SumTerms(3, 9), 9, 8),
    (100, SumTerms(), 52, 3), (100, SumTerms(3, 90), 90, 80), (100, SumTerms(20), 69, 20),
    (2, SumTerms(), 3, 3),
])  # fmt: skip
def test_how_few_may_be_summed(size, terms, survivors, fewest) -> None:
    assert terms.survivors(size) == survivors
    if size >= terms.min_members:
        assert terms.fewest(size) == fewest


def agreeing() -> Group:
    """Return five members whose keys sign, of which "a", "b" and "c" are left."""
    cohort = Group(5, SumTerms(agreed=True), certified=True)
    cohort.upload("abc").close()
    return cohort


def test_of_two_lists_only_one_is_opened() -> None:
    cohort = agreeing()
    first, second = cohort.sign("abc", "abc"), cohort.sign("de", "ade")
    refused("other-survivors-than-answered", cohort.sign, "a", "ade")
    for survivors, signatures in (("ade", second), ("abcde", {})):
        refused("other-survivors-than-answered", cohort.open, "a", survivors, signatures)
    for signatures in (second, first | second):
        refused("survivors-not-signed", cohort.open, "d", "ade", signatures)
    cohort = agreeing()  # who has not signed a list does not open for it
    refused("survivors-not-signed", cohort.open, "d", "abcd", cohort.sign("abc", "abcd"))
    cohort = agreeing()
    cohort.open("d", "abcde", {})  # nobody is gone: no signature is needed
    refused("other-survivors-than-answered", cohort.sign, "d", "bcd")


def test_a_list_without_enough_valid_signatures_opens_nothing() -> None:
    cohort = agreeing()
    good, store = cohort.sign("ab", "abc"), cohort.member("c").store
    kept = store.read_note(LAST)
    forged = {"none": b"", "another's": good["b"], "another list's": cohort.sign("c", "bcd")["c"]}
    cohort.mask("c", 2)
    forged["another attempt's"] = cohort.sign("c", "abc", 2)["c"]
    store.write_note(LAST, kept)
    for signature in forged.values():
        refused("survivors-not-signed", cohort.open, "a", "abc", good | {"c": signature})
    cohort.open("a", "abc", good | cohort.sign("c", "abc"))


def test_a_server_that_withholds_proofs_gets_the_stricter_rule() -> None:
    cohort = agreeing()
    cohort.change("a", KEYS, lambda keys: keys | {"e": [keys["e"][0], "", ""]})
    refused("too-few-survivors", cohort.sign, "a", "abc")


# Known answers, which an independent implementation gave.
A = X25519PrivateKey.from_private_bytes(bytes(range(32)))
B = X25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
PUBLIC = {"a": A.public_key().public_bytes_raw(), "b": B.public_key().public_bytes_raw()}


def test_keys_digest_seed_stream_box_words_shares_and_encoding() -> None:
    assert PUBLIC["a"].hex() == "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
    assert PUBLIC["b"].hex() == "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254"
    digest = masks.cohort_digest(PUBLIC)
    assert digest.hex() == "63dd3af76dffa77dd835647d97e62dfaac4fcd1489973bf47dbc796f17781666"
    attempt = ["run-1", 3, 1, digest]
    first, second = masks.Secrets("a", A, PUBLIC, attempt), masks.Secrets("b", B, PUBLIC, attempt)
    seed = "dece3df8390f43b644a754afeb40969d68fd5d9009d455446f2febedb0ec8384"
    assert first.pair_seed("b").hex() == second.pair_seed("a").hex() == seed
    words = masks.stream(bytes.fromhex(seed), 4).tolist()
    assert words == [856035559, 881942420, 4021002767, 3922535167]
    key = first.key("b", "share", "a", "b")
    assert key.hex() == "66da8ae16bb0065cc54c214eff30528f26cc91b52fc1a63b43d8c7278cb650d7"
    assert second.open("a", first.seal("b", b"a share")) == b"a share"
    assert (masks.fraction_bits(10, 64.0), masks.fraction_bits(100, 64.0)) == (20, 17)
    words = masks.grid(np.array([1.5, -0.25, 1e-7]), 20, 64.0).astype(np.uint32)
    assert words.tolist() == [1572864, 4294705152, 0]
    assert masks.from_words(words, 20).tolist() == [1.5, -0.25, 0.0]
    shares = masks.split((7).to_bytes(32, "big"), 3, 2, lambda _: 5)
    assert [int.from_bytes(share, "big") for share in shares] == [12, 17, 22]
    assert masks.encode(["ä", 3, b"\0"]).hex() == "00000002c3a400000004000000030000000100"

"""A client and its notes against a server that lies: each test falls if one check is taken out."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Context, RecordDict
from sums.test_protocol import CA, CA_KEY, Group, certificate, refused, told_to

from fedhet.client_app import Request
from fedhet.config.load import envelope
from fedhet.deploy.certs import make
from fedhet.errors import Refused, UserError
from fedhet.protocol.flower import be_task
from fedhet.protocol.messages import Instruction, Reply, request
from fedhet.site.state import FileStore
from fedhet.sums.client import Member, NodeCertificate
from fedhet.sums.masks import Cohort, SumKey, SumTerms, check_proof, prove
from fedhet.testing import small

NAMES = ("a", "b", "c", "d")
SENT = bytes(32)
REPLY, OTHER = (Reply({"client": "?"}, {}, [np.full(6, k, np.uint32)]) for k in (1, 2))


@pytest.fixture
def group() -> Group:
    return Group(4)


def test_the_same_question_gets_the_same_answer_and_another_none() -> None:
    """Also from another process, which knows what is written down and no more."""
    group = Group(4, SumTerms(2))
    (collector := group.upload(NAMES)).close()
    told = told_to("a", collector)
    assert group.member("a").open_shares(1, told) == group.member("a").open_shares(1, told)
    fewer = replace(told, members=NAMES[:3], boxes=told.boxes[: 3 * 82])
    refused("other-survivors-than-answered", group.member("a").open_shares, 1, fewer)


def test_no_mask_meets_two_vectors(group) -> None:
    """Whatever of the request is another: payload, cohort, round; and no older attempt."""
    cohort = Cohort(NAMES, 5, 4)
    first = group.member("a").mask(1, cohort, SENT, REPLY)
    other = group.member("a").mask(1, cohort, SENT, OTHER)  # the very same request
    assert other.arrays[0].tobytes() == first.arrays[0].tobytes()
    for round_, again, sent in (
        (1, cohort, b"\1" * 32),
        (1, replace(cohort, members=NAMES[:3]), SENT),
        (2, cohort, SENT),
        (1, replace(cohort, attempt=4), SENT),
    ):
        refused("attempt-not-new", group.member("a").mask, round_, again, sent, OTHER)


def test_a_client_that_was_killed_before_it_wrote_all_down_has_sent_nothing(group, monkeypatch):
    cohort = Cohort(NAMES, 1, 4)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FileStore, "write_note", Mock(side_effect=KeyboardInterrupt))
        group.member("a").mask(1, cohort, SENT, REPLY)
    assert group.member("a").repeated(1, cohort, SENT) is None  # so it trains again
    group.member("a").mask(1, cohort, SENT, REPLY)
    assert group.member("a").repeated(1, cohort, SENT) is not None


@pytest.mark.parametrize("later", [SumTerms(2), SumTerms(3, 6)])
def test_terms_that_come_after_the_upload_loosen_nothing(later) -> None:
    """The same run under another configuration: how few may be left hangs on the old threshold."""
    group = Group(9)
    (collector := group.upload(group.names)).close()
    assert (SumTerms().survivors(9), later.survivors(9)) == (7, 6)
    told = told_to("a", collector)
    six = replace(told, members=told.members[:6], boxes=told.boxes[: 6 * 82])
    refused("too-few-survivors", group.member("a", later).open_shares, 1, six)


def test_a_kept_key_stays_and_one_that_gives_no_secret_is_not_accepted(group) -> None:
    keys = (X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in "ab")
    other, more = map(SumKey, keys)
    a, b = group.member("a"), group.member("b")
    assert a.introduce({"b": other, "e": more}, None) == ["b"]
    assert b.introduce({"b": other}, None) == ["b"]  # not its own either
    assert a.introduce({"b": group.keys["b"], "f": SumKey(bytes(32))}, None) == ["f"]


@pytest.mark.parametrize("note", ["sum-key", "sum-keys", "sum-last"])
def test_damaged_notes_are_named(group, note) -> None:
    group.upload(NAMES)
    folder = Path(group.folder.name) / "a"
    path = folder / f"{note}.json"
    path.write_text('{"private": "zz", "a": "zz"}')
    with pytest.raises(Refused, match="for sums are damaged"):
        group.member("a").repeated(1, Cohort(NAMES, 2, 4), SENT)
    (folder / "sum-key.json").unlink()
    with pytest.raises(Refused, match="has lost its key"):
        group.member("a").repeated(1, Cohort(NAMES, 2, 4), SENT)


def test_a_run_that_began_with_masked_sums_keeps_them(tmp_path) -> None:
    """The configuration is the server's word, in every message to a deployed node."""
    be_task()
    node = {"partition-id": 0, "num-partitions": 3, "state-dir": str(tmp_path)}

    def asked(mode: str) -> Request:
        given = {"config": envelope(small(tmp_path, secure_sum=mode), {})}
        message = request("query", 1, Instruction("run"), 1.0)
        return Request(message, Context(1, 1, node, RecordDict(), given, 0), given)

    asked("off").store("0")  # a run of its own
    asked("masked").member().key(None)
    with pytest.raises(Refused, match="began with secure-sum=masked"):
        asked("off").store("0")


KEY, STRANGER = (generate_private_key(SECP384R1()) for _ in range(2))
OWN = certificate("a", KEY, "ca", CA_KEY)
PUBLIC = bytes(32)


@pytest.mark.parametrize(("proof", "text"), [
    (prove(STRANGER, certificate("a", STRANGER, "ca", STRANGER), "run", "a", PUBLIC), "our CA"),
    (prove(STRANGER, OWN, "run", "a", PUBLIC), "not signed"),
    (prove(KEY, certificate("b", KEY, "ca", CA_KEY), "run", "a", PUBLIC), "another name"),
    (prove(KEY, OWN, "old run", "a", PUBLIC), "not signed"),
    (prove(KEY, certificate("a", KEY, "ca", CA_KEY, (-2, -1)), "run", "a", PUBLIC), "clock"),
    (SumKey(PUBLIC, b"rubbish"), "our CA"),
    (SumKey(PUBLIC), "without a proof"),
    (replace(prove(KEY, OWN, "run", "a", PUBLIC), public=b"\x01" * 32), "not signed"),
])  # fmt: skip
def test_nobody_elses_is(proof, text) -> None:
    with pytest.raises(Refused, match=text):
        check_proof(proof, CA, "run", "a")


def test_no_bit_of_a_certificate_raises_anything_else() -> None:
    """One that did would end the introduction of everybody."""
    whole = prove(KEY, OWN, "run", "a", PUBLIC)
    for place in range(len(whole.certificate)):
        der = bytearray(whole.certificate)
        der[place] ^= 1
        with suppress(Refused):
            check_proof(replace(whole, certificate=bytes(der)), CA, "run", "a")


def test_with_a_ca_every_key_needs_a_proof_and_ones_own_is_checked_first(tmp_path) -> None:
    def notes(client: str) -> Member:
        return Member(FileStore(tmp_path / client, sync=False), "run", client, SumTerms())

    own = NodeCertificate(KEY, OWN, CA)
    good = notes("a").key(own)
    assert notes("a").key(own) == good  # once made, always the same
    notes("b").key(None)
    for strange in (SumKey(good.public), replace(good, public=b"\x01" * 32)):
        assert notes("b").introduce({"a": strange}, CA) == ["a"]
    assert notes("b").introduce({"a": good}, CA) == []
    with pytest.raises(UserError, match="the certificate for 'f' has another name"):
        notes("f").key(own)


def test_files_that_are_no_credentials_are_named(tmp_path) -> None:
    make(tmp_path, ["localhost"], ["a"])
    good = {"key": str(tmp_path / "clients" / "a"), "ca": str(tmp_path / "ca.crt"),
            "certificate": str(tmp_path / "clients" / "a.crt")}  # fmt: skip
    assert NodeCertificate.of(good) is not None and NodeCertificate.of({}) is None
    for name in ("key", "certificate", "ca"):
        with pytest.raises(UserError, match="^node-config certificate: cannot be used"):
            NodeCertificate.of(good | {name: str(tmp_path / "clients" / "a.pub")})

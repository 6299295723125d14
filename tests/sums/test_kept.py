"""A client and its notes against a server that lies: each test falls if one check is taken out."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Context, RecordDict

from fedhet.client_app import Request
from fedhet.config.load import envelope
from fedhet.deploy.certs import make
from fedhet.errors import Refused, UserError
from fedhet.protocol.flower import be_one_process
from fedhet.protocol.messages import Instruction, Reply, request
from fedhet.site.state import FileStore
from fedhet.sums.attempt import Collector
from fedhet.sums.client import NodeCertificate, SumNotes
from fedhet.sums.masks import SumTerms, public_bytes
from fedhet.sums.messages import Cohort, SumKey, Survivors
from fedhet.testing import small

NAMES = ("a", "b", "c", "d")
WORDS = np.arange(6, dtype=np.uint32)
SENT = bytes(32)
REPLY = Reply({"client": "?"}, {}, [WORDS])


class Site:
    """Four clients with notes on disk, introduced to each other."""

    def __init__(self, folder: Path, credentials=None, names=NAMES) -> None:
        self.folder, self.credentials = folder, credentials or {}
        self.keys = {name: self.notes(name).key(self.credentials.get(name)) for name in names}
        for name in names:
            assert self.introduce(name, self.keys) == []

    def notes(self, name: str, terms: SumTerms | None = None) -> SumNotes:
        """As in a fresh process: all that is known lies on the disk."""
        store = FileStore(self.folder / "run" / name, sync=False)
        return SumNotes(store, "run", name, terms or SumTerms())

    def introduce(self, name: str, keys) -> list[str]:
        own = self.credentials.get(name)
        return self.notes(name).introduce(keys, None if own is None else own.ca)

    def upload(self, attempt: int = 1, members=NAMES, terms: SumTerms | None = None) -> Collector:
        """Everybody uploads for round 1; returns the server's side, closed."""
        collector = Collector(members, len(WORDS), terms or SumTerms())
        for name in members:
            cohort = Cohort(tuple(members), attempt, len(members))
            arrays = self.notes(name, terms).mask(1, cohort, SENT, WORDS, REPLY).arrays
            collector.take(name, arrays)
        collector.close()
        return collector

    def open_shares(self, name: str, collector: Collector, members=None, attempt: int = 1):
        members = tuple(members or collector.survivors)
        boxes = collector.boxes_for(name)[[collector.survivors.index(m) for m in members]]
        return self.notes(name).open_shares(1, Survivors(members, attempt, boxes.tobytes()))


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def refused(word: str, ask, *given) -> None:
    with pytest.raises(Refused) as caught:
        ask(*given)
    assert caught.value.code == word


def test_the_same_question_gets_the_same_answer_and_another_none(site) -> None:
    """Also from another process, which knows what is written down and no more."""
    collector = site.upload(terms=SumTerms(2))
    first = site.open_shares("a", collector)
    again = site.open_shares("a", collector)
    assert first == again
    fewer = Survivors(("a", "b", "c"), 1, collector.boxes_for("a")[:3].tobytes())
    refused("other-survivors-than-answered", site.notes("a", SumTerms(2)).open_shares, 1, fewer)
    refused("too-few-survivors", site.notes("a").open_shares, 1, fewer)


def test_no_mask_meets_two_vectors(site) -> None:
    """Whatever of the request is another: payload, cohort, round; and no older attempt."""
    cohort = Cohort(NAMES, 5, 4)
    first = site.notes("a").mask(1, cohort, SENT, WORDS, REPLY)
    other = site.notes("a").mask(1, cohort, SENT, WORDS + 1, REPLY)  # the very same request
    assert other.arrays[0].tobytes() == first.arrays[0].tobytes()
    for round_, again, sent in (
        (1, cohort, b"\1" * 32),
        (1, replace(cohort, members=NAMES[:3]), SENT),
        (2, cohort, SENT),
        (1, replace(cohort, attempt=4), SENT),
    ):
        refused("attempt-not-new", site.notes("a").mask, round_, again, sent, WORDS + 1, REPLY)


def test_a_client_that_was_killed_before_it_wrote_all_down_has_sent_nothing(
    site, monkeypatch
) -> None:
    written = []
    original = FileStore.write_note

    def die(self, name, note):
        if name == "sum-last":
            raise KeyboardInterrupt
        written.append(name)
        original(self, name, note)

    cohort = Cohort(NAMES, 1, 4)
    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "write_note", die)
        with pytest.raises(KeyboardInterrupt):
            site.notes("a").mask(1, cohort, SENT, WORDS, REPLY)
    assert not written
    assert site.notes("a").repeated(1, cohort, SENT) is None  # so it trains again
    site.notes("a").mask(1, cohort, SENT, WORDS, REPLY)
    assert site.notes("a").repeated(1, cohort, SENT) is not None


@pytest.mark.parametrize("later", [SumTerms(2), SumTerms(3, 6)])
def test_terms_that_come_after_the_upload_loosen_nothing(tmp_path, later) -> None:
    """The same run under another configuration: how few may be left hangs on the old threshold."""
    names = tuple("abcdefghi")
    whole = Site(tmp_path, names=names)
    collector = whole.upload(members=names)
    assert (SumTerms().survivors(9), later.survivors(9)) == (7, 6)
    six = Survivors(names[:6], 1, collector.boxes_for("a")[:6].tobytes())
    refused("too-few-survivors", whole.notes("a", later).open_shares, 1, six)


# --- keys and proofs -------------------------------------------------------------------------


def public() -> SumKey:
    return SumKey(public_bytes(X25519PrivateKey.generate()))


def test_a_key_that_was_kept_is_not_exchanged_for_another(site) -> None:
    assert site.introduce("a", {"b": public(), "e": public()}) == ["b"]
    assert site.introduce("b", {"b": public()}) == ["b"]  # not its own either
    assert site.introduce("a", {"b": site.keys["b"]}) == []


def test_a_key_that_gives_no_secret_is_not_accepted(site) -> None:
    assert site.introduce("a", {"e": SumKey(bytes(32))}) == ["e"]


@pytest.fixture
def certified(tmp_path) -> tuple[Site, dict[str, NodeCertificate]]:
    """Clients with certificates of one CA, and an impostor's of another."""
    make(tmp_path / "tls", ["localhost"], [*NAMES, "e"])
    make(tmp_path / "other", ["localhost"], ["e"])

    def of(folder: str, name: str) -> NodeCertificate:
        clients = tmp_path / folder / "clients"
        found = NodeCertificate.of({
            "key": str(clients / name), "certificate": str(clients / f"{name}.crt"),
            "ca": str(tmp_path / folder / "ca.crt"),
        })  # fmt: skip
        assert found is not None
        return found

    known = {name: of("tls", name) for name in (*NAMES, "e")}
    return Site(tmp_path, known), known | {"impostor": of("other", "e")}


def test_with_a_ca_every_key_needs_a_proof(certified, tmp_path) -> None:
    """Which proofs are none: test_proofs.py."""
    site, known = certified

    def notes(folder: str, client: str = "e") -> SumNotes:
        store = FileStore(tmp_path / folder / client, sync=False)
        return SumNotes(store, "run", client, SumTerms())

    own = notes("elsewhere")
    good = own.key(known["e"])
    assert good.certificate and site.introduce("a", {"e": good}) == []
    assert own.key(known["e"]) == good  # once made, always the same
    for strange in (public(), replace(good, public=public().public)):
        assert site.introduce("b", {"e": strange}) == ["e"]
    assert site.introduce("b", {"e": notes("x").key(known["impostor"])}) == ["e"]
    assert site.introduce("b", {"e": good}) == []
    with pytest.raises(UserError):  # seen before it leaves: another CA than the one beside it
        notes("y").key(replace(known["impostor"], ca=known["e"].ca))
    with pytest.raises(UserError, match="the certificate for 'f' has another name"):
        notes("y", "f").key(known["e"])


def test_files_that_are_no_credentials_are_named(tmp_path) -> None:
    make(tmp_path, ["localhost"], ["a"])
    good = {"key": str(tmp_path / "clients" / "a"), "ca": str(tmp_path / "ca.crt"),
            "certificate": str(tmp_path / "clients" / "a.crt")}  # fmt: skip
    assert NodeCertificate.of(good) is not None and NodeCertificate.of({}) is None
    for name in ("key", "certificate", "ca"):
        with pytest.raises(UserError, match="^node-config certificate: cannot be used"):
            NodeCertificate.of(good | {name: str(tmp_path / "clients" / "a.pub")})


@pytest.mark.parametrize("note", ["sum-key", "sum-keys", "sum-last"])
def test_damaged_notes_are_named(site, note) -> None:
    site.upload()
    path = site.folder / "run" / "a" / f"{note}.json"
    path.write_text('{"private": "zz", "a": "zz"}')
    with pytest.raises(Refused, match="for sums are damaged"):
        site.notes("a").repeated(1, Cohort(NAMES, 2, 4), SENT)
    os.unlink(site.folder / "run" / "a" / "sum-key.json")
    with pytest.raises(Refused, match="has lost its key"):
        site.notes("a").repeated(1, Cohort(NAMES, 2, 4), SENT)


def asked_of_a_node(tmp_path, **changes) -> Request:
    """A message of a run at a deployed node."""
    be_one_process()
    given = {"config": envelope(small(tmp_path, **changes), {})}
    node = {"partition-id": 0, "num-partitions": 3, "state-dir": str(tmp_path)}
    asked = Request(
        request("query", 1, Instruction("run"), 1.0),
        Context(1, 1, node, RecordDict(), given, 0),
    )
    assert not asked.simulated
    return asked


@pytest.mark.parametrize("mode", ["off", "unmasked"])
def test_a_run_that_began_with_masked_sums_keeps_them(tmp_path, mode) -> None:
    """The configuration is the server's word, in every message."""
    later = asked_of_a_node(tmp_path, secure_sum=mode)
    later.store("a")  # a run of its own
    asked_of_a_node(tmp_path, secure_sum="masked").sum_notes("a").key(None)
    with pytest.raises(Refused, match="began with secure-sum=masked"):
        later.store("a")

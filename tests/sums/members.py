"""Members of a sum without messages: keys, vectors, uploads and answers."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedhet.errors import Refused
from fedhet.sums.attempt import Collector
from fedhet.sums.client import Member
from fedhet.sums.masks import SumTerms, grid, public_bytes, to_words

LENGTH = 5
PAYLOAD = b"\x07" * 32


class Cohort:
    """Members "a", "b" and so on, with vectors of their own; ``certified``: their keys sign."""

    def __init__(
        self, size: int, terms: SumTerms | None = None, *, certified: bool = False, seed: int = 0
    ) -> None:
        self.names = [chr(ord("a") + k) for k in range(size)]
        self.terms = terms or SumTerms(agreed=certified)
        self.signing = {n: generate_private_key(SECP384R1()) for n in self.names if certified}
        private = {name: X25519PrivateKey.generate() for name in self.names}
        keys = {name: public_bytes(key) for name, key in private.items()}
        public = {name: key.public_key() for name, key in self.signing.items()}
        self.members = {
            n: Member(n, "run", private[n], keys, self.terms, certified=public) for n in self.names
        }
        rng = np.random.default_rng(seed)
        self.vectors = {name: rng.normal(size=LENGTH) for name in self.names}
        self.words = {n: to_words(grid(v, 20, 64.0)) for n, v in self.vectors.items()}

    def mask(self, name: str, attempt: int = 1, payload: bytes = PAYLOAD):
        """Return what a member uploads: words and boxes."""
        return self.members[name].mask(1, attempt, self.names, payload, self.words[name])

    def upload(self, names: Sequence[str], attempt: int = 1) -> Collector:
        """Return the uploads of some members, where all have masked theirs."""
        collector = Collector(self.names, len(self.words["a"]), self.terms)
        for name in self.names:
            masked = self.mask(name, attempt)
            if name in names:
                collector.take(name, masked)
        return collector

    def sign(self, names: Sequence[str], survivors: Sequence[str], attempt: int = 1):
        """Return these members' signatures of a list of survivors."""
        return {n: self.members[n].sign(1, attempt, survivors, self.signing[n]) for n in names}

    def open(
        self, name: str, survivors: Sequence[str], signatures: Mapping[str, bytes], attempt: int = 1
    ) -> None:
        """Ask a member for its shares, with boxes that do not open."""
        boxes = np.zeros((len(survivors), 82), np.uint8)
        self.members[name].open_shares(1, attempt, survivors, boxes, signatures)

    def answers(
        self, collector: Collector, names: Sequence[str], signatures: Mapping[str, bytes] = {}
    ) -> None:
        """Let members open their boxes for the survivors of a collector."""
        for name in names:
            ask = self.members[name].open_shares
            found = ask(1, 1, collector.survivors, collector.boxes_for(name), signatures)
            collector.answer(name, found)

    def sum(self, names: Sequence[str]) -> list[int]:
        """Return the sum of these members' words."""
        return np.sum([self.words[n] for n in names], axis=0, dtype=np.uint32).tolist()


def refused(code: str, ask, *given) -> None:
    """AssertionError unless ``ask(*given)`` is refused with this code."""
    with pytest.raises(Refused) as caught:
        ask(*given)
    assert caught.value.code == code

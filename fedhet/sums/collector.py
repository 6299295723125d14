"""The server's side of one attempt: masked vectors and boxes in, the sum out, nothing in between.

It checks shapes, never contents: those look random. What it held of one client is gone with it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedhet.sums.fixed_point import Words
from fedhet.sums.masks import stream
from fedhet.sums.member import BOX_BYTES, SEED_BYTES, Bytes, Terms
from fedhet.sums.shares import SHARE_BYTES, combine, weights


class NoSumError(Exception):
    """The attempt gave no sum; one line that says why and, where it is known, through whom."""


class Collector:
    """One attempt of a cohort at a sum of ``length`` words."""

    def __init__(self, cohort: Sequence[str], length: int, terms: Terms) -> None:
        self.cohort = sorted(cohort)
        self.length = length
        self.needed = terms.needed(len(self.cohort))
        self.least = terms.survivors(len(self.cohort))
        self.survivors: list[str] = []
        self._total = np.zeros(length, np.uint32)
        self._boxes: dict[str, Bytes] = {}
        self._shares: dict[str, dict[int, bytes]] = {}  # by owner, then position of the holder
        self._seeds: dict[str, Bytes] = {}
        self._closed: dict[str, set[str]] = {}  # whose boxes did not open, for whom

    def take(self, client: str, words: Words, boxes: Bytes) -> None:
        """Add one upload; ValueError if it is not of the agreed shapes, or of no member."""
        if client not in self.cohort or client in self._boxes:
            raise ValueError(f"'{client}' is no member, or has uploaded")
        if words.dtype != np.uint32 or words.shape != (self.length,):
            raise ValueError(f"{words.dtype} words of shape {words.shape}, not ({self.length},)")
        if boxes.dtype != np.uint8 or boxes.shape != (len(self.cohort), BOX_BYTES):
            raise ValueError(f"boxes of shape {boxes.shape}, not {(len(self.cohort), BOX_BYTES)}")
        self._total += words
        self._boxes[client] = boxes

    def close(self) -> list[str]:
        """End the uploads: V, those who are summed, in order; NoSumError if they are too few."""
        self.survivors = [client for client in self.cohort if client in self._boxes]
        if len(self.survivors) < self.least:
            raise NoSumError(
                f"{len(self.survivors)} of {len(self.cohort)} uploads came, {self.least} are needed"
            )
        self._shares = {client: {} for client in self.survivors}
        return self.survivors

    @property
    def gone(self) -> list[str]:
        """D: members whose upload never came."""
        return [client for client in self.cohort if client not in self._boxes]

    def boxes_for(self, client: str) -> Bytes:
        """What the survivors, in order, sealed for one of them: (|V|, 82) uint8."""
        place = self.cohort.index(client)
        return np.stack([self._boxes[owner][place] for owner in self.survivors])

    def answer(self, client: str, shares: Bytes, seeds: Bytes, closed: Sequence[str]) -> None:
        """Take one survivor's answer; ValueError if it is not of the agreed shapes."""
        count, gone = len(self.survivors), len(self.gone)
        if client not in self.survivors or client in self._seeds:
            raise ValueError(f"'{client}' is no survivor, or has answered")
        if shares.dtype != np.uint8 or shares.shape != (count, SHARE_BYTES):
            raise ValueError(f"shares of shape {shares.shape}, not {(count, SHARE_BYTES)}")
        if seeds.dtype != np.uint8 or seeds.shape != (gone, SEED_BYTES):
            raise ValueError(f"seeds of shape {seeds.shape}, not {(gone, SEED_BYTES)}")
        if not set(closed) <= set(self.survivors):
            raise ValueError("boxes of clients that are no survivors")
        self._seeds[client] = seeds
        self._closed[client] = set(closed)
        place = self.cohort.index(client)
        for owner, share in zip(self.survivors, shares, strict=True):
            if owner not in self._closed[client]:
                self._shares[owner][place] = share.tobytes()

    def missing(self) -> list[str]:
        """Survivors without whose answer there is no sum; empty: :meth:`total` can be had."""
        silent = [client for client in self.survivors if client not in self._seeds]
        short = any(len(found) < self.needed for found in self._shares.values())
        return silent if self.gone or short else []

    def total(self) -> Words:
        """The sum (L,) of the survivors' words, modulo 2^32.

        Raises NoSumError if somebody whose answer is needed kept silent, or a self mask cannot be
        put together.
        """
        silent = self.missing()
        if silent:
            raise NoSumError(f"no answer of {', '.join(silent)}")
        found = self._total.copy()
        known: dict[tuple[int, ...], Mapping[int, int]] = {}
        for owner, shares in self._shares.items():
            found -= stream(self._self_seed(owner, shares, known), self.length)
        for client, seeds in self._seeds.items():
            for other, seed in zip(self.gone, seeds, strict=True):
                pair = stream(seed.tobytes(), self.length)
                found = found - pair if other > client else found + pair
        return found

    def _self_seed(
        self,
        owner: str,
        shares: Mapping[int, bytes],
        known: dict[tuple[int, ...], Mapping[int, int]],
    ) -> bytes:
        if len(shares) < self.needed:
            held = sum(owner in closed for closed in self._closed.values())
            raise NoSumError(f"the boxes of '{owner}' did not open for {held} members")
        chosen = tuple(sorted(shares)[: self.needed])
        if chosen not in known:
            points = weights([place + 1 for place in chosen])
            known[chosen] = dict(zip(chosen, points, strict=True))
        try:
            return combine({place: shares[place] for place in chosen}, known[chosen])
        except ValueError as error:
            raise NoSumError(f"the self mask of '{owner}' cannot be put together") from error


class PlainCollector(Collector):
    """The same rules for words without masks: nobody's help is needed."""

    def missing(self) -> list[str]:
        """See :class:`Collector`."""
        return []

    def total(self) -> Words:
        """See :class:`Collector`."""
        return self._total.copy()

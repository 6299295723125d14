"""A client's own account of what its noised uploads have cost: the server is not believed.

It is kept beside the private states, and not in them: the server names the generation that a round
starts from, and going back to an old one must not give back what was spent. An upload is booked
before it leaves. One that is asked for again, after a crash or a lost reply, is the same bytes if
the client came to the same update from the same payload, and then costs nothing; its noise is
drawn from a secret of this client and the update, so that equal noise never meets two updates.
Messages may be at work side by side, so what was read before training is not what is booked on.
"""

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import RunConfig
from fedhet.protocol.payload import Array
from fedhet.rng import generator
from fedhet.site.privacy import epsilon_spent, has_floats, privatise
from fedhet.site.state import StateError, StateStore
from fedhet.sums.contribution import Vector
from fedhet.sums.noise import Source, discrete_gaussian

NOTE = "privacy"  # the note's name in the store
_AGREED = ("dp_clip", "dp_epsilon", "dp_delta", "rounds")
_OF_SUMS = ("secure_sum", "sum_min", "sum_threshold")


class BudgetError(Exception):
    """An upload that the budget of the run does not allow; one line."""


class Budget:
    """What one client may still upload in one run; without ``dp-clip`` it allows everything."""

    def __init__(self, store: StateStore, config: RunConfig, client: str) -> None:
        self.store = store
        self.config = config
        self.client = client
        self.note = self._read()

    def check(self, round_: int, source: int) -> None:
        """Refuse a round in which this client could not upload, before it trains.

        Raises BudgetError if the budget is spent or is not the one that the run began with, and
        StateError if the account is gone or damaged while there is a state of this run.
        """
        if not self.config.dp_clip:
            if self.note:
                raise BudgetError("this run began with noise (dp-clip) and has none now")
            return
        if not self.note:
            if source > 0:
                raise StateError(
                    f"state of generation {source} is without its account of the privacy budget"
                )
            return
        self._check_agreed()
        if self.note["uploads"] >= self.config.rounds and self.note["round"] != round_:
            raise self._spent()

    def noised(
        self, upload: Sequence[Array], received: Sequence[Array], round_: int, *, simulated: bool
    ) -> list[Array]:
        """The upload as it may leave, booked before; BudgetError if the budget is spent.

        In a simulation the noise repeats like every other random number. In a deployment the
        server knows the run's seed and could subtract noise drawn from it: a secret of this
        client takes its place, which no other machine ever sees.
        """
        if not self.config.dp_clip:
            return list(upload)
        if not has_floats(upload):
            self.open()
            return list(upload)
        digest = self._booked(round_, [*upload, *received])
        rng = (
            generator(self.config.seed, "dp", self.client, round_)
            if simulated
            else np.random.default_rng(int(digest, 16))
        )
        return privatise(upload, received, self.config, rng)

    def share(
        self, update: Vector, steps: int, round_: int, *, attempt: int, simulated: bool
    ) -> NDArray[np.int64]:
        """This client's share of a sum's noise on ``update`` (L,), booked before.

        Steps (L,) int64 of a discrete Gaussian with a standard deviation of ``steps``, drawn as in
        :meth:`noised`. BudgetError if the budget is spent.

        On a network every attempt has noise of its own, and is an upload of its own: with the same
        noise in two sums of the same vectors, of which one lacks a client, their difference would
        be that client's vector under its own share of the noise alone.
        """
        own = [np.array([steps])] if simulated else [np.array([steps, attempt])]
        digest = self._booked(round_, [update, *own])
        seed = (
            generator(self.config.seed, "dp", self.client, round_).bytes(32)
            if simulated
            else bytes.fromhex(digest)
        )
        return discrete_gaussian(steps, update.size, Source(seed))

    def _booked(self, round_: int, arrays: Sequence[Array]) -> str:
        """Book an upload that depends on these arrays, unless it is the last one again.

        Returns its keyed digest.
        """
        with self._changing():
            digest = _digest(bytes.fromhex(self.note["secret"]), round_, arrays)
            if self.note["digest"] != digest:
                if self.note["uploads"] >= self.config.rounds:
                    raise self._spent()
                count = self.note["uploads"] + 1
                self.note |= {"uploads": count, "round": round_, "digest": digest}
        return digest

    def open(self) -> None:
        """An account of nothing, for who sends nothing: the next round must find one."""
        with self._changing():
            pass

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Take up the account as it is now, checked again, and write down what becomes of it."""
        with self.store.alone():
            before, self.note = self.note, self._read()
            if before and not self.note:
                raise StateError("the account of the privacy budget has gone meanwhile")
            if self.note:
                self._check_agreed()
            else:
                self.note = self._new()
            yield
            self.store.write_note(NOTE, self.note)

    def _read(self) -> dict[str, Any]:
        return dict(self.store.read_note(NOTE) or {})

    def _check_agreed(self) -> None:
        """StateError for a damaged account, BudgetError if the run began with another budget."""
        if not _sound(self.note):
            raise StateError("the account of the privacy budget is damaged")
        agreed, wanted = self.note["agreed"], _agreed(self.config)
        for key in {**agreed, **wanted}:
            now, before = wanted.get(key, "off"), agreed.get(key, "off")  # off: no sum
            if now != before:
                raise BudgetError(
                    f"{key.replace('_', '-')} is {now} now, but this run began with {before}"
                )

    def _new(self) -> dict[str, Any]:
        return {
            "agreed": _agreed(self.config),
            "secret": secrets.token_hex(32),
            "uploads": 0,
            "round": 0,
            "digest": "",
        }

    @property
    def epsilon(self) -> float:
        """What this client's uploads have cost until now, at ``dp-delta``."""
        uploads = int(self.note.get("uploads", 0))
        return epsilon_spent(self.config, uploads) if self.config.dp_clip else 0.0

    def _spent(self) -> BudgetError:
        return BudgetError(
            f"privacy budget spent: {self.note['uploads']} uploads of this client have cost "
            f"epsilon {self.epsilon:.6g} of dp-epsilon={self.config.dp_epsilon:g}"
        )


def _agreed(config: RunConfig) -> dict[str, Any]:
    """What an account holds for: all that decides what an upload costs."""
    found = {key: getattr(config, key) for key in _AGREED}
    return found | {key: getattr(config, key) for key in (_OF_SUMS if config.summed else ())}


def _digest(secret: bytes, round_: int, arrays: Sequence[Array]) -> str:
    """Keyed hash of all that the noised upload depends on."""
    found = hashlib.blake2b(key=secret, digest_size=32)
    for array in (np.array([round_, len(arrays)]), *arrays):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _sound(note: Mapping[str, Any]) -> bool:
    """Whether a stored account has everything, of its type."""
    agreed = note.get("agreed")
    return (
        isinstance(agreed, Mapping)
        and set(agreed) in ({*_AGREED}, {*_AGREED, *_OF_SUMS})
        and isinstance(note.get("secret"), str)
        and isinstance(note.get("digest"), str)
        and type(note.get("uploads")) is int
        and type(note.get("round")) is int
        and note["uploads"] >= 0
    )

"""Noise on what a client uploads, what it costs, and the client's own account of it.

Per upload the update is clipped to the L2 norm S (``dp-clip``) and N(0, sigma^2) is added to every
float, on the client itself. ``dp-epsilon`` and ``dp-delta`` are the budget of all that one client
uploads in a run. T uploads with noise sigma each are together as private as one with mu = sqrt(T) S
/ sigma (Gaussian differential privacy; Dong, Roth, Su 2019, arXiv 1905.02383, corollary 3.3), also
where an upload depends on earlier ones. A mechanism of that mu is (epsilon, delta)-private exactly
for the delta of Balle and Wang 2018, arXiv 1805.06530, theorem 8. A client can be asked in every
round, so T is ``rounds``; amplification by sampling is not counted. Protected is the update against
being replaced by none (sensitivity S); between two updates that are there mu is twice as large.

With ``secure-sum`` the noise is on the sum: each of at least m clients adds a share of
sigma / sqrt(m), whole steps of the words' grid, drawn from a discrete Gaussian (Kairouz, Liu,
Steinke 2021, arXiv 2102.06387). At a width of thousands of steps sums of them differ from a
discrete Gaussian by e^-1000 and less. Rounding a vector of L entries adds sqrt(L) / 2 steps to the
sensitivity.

The account lies beside the private states, so an old generation gives nothing back. An upload is
entered before it leaves; the same update again is the same bytes and costs nothing, since its noise
is drawn from a secret of this client and the update: equal noise never meets two updates.
"""

import contextlib
import hashlib
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, StrictStr
from pydantic.dataclasses import dataclass as wired

from fedhet.config.schema import RunConfig
from fedhet.errors import Code, Refused, UserError, refusing
from fedhet.lazy import torch
from fedhet.protocol.messages import from_wire
from fedhet.protocol.payload import Array, Payload
from fedhet.rng import generator
from fedhet.sums.contribution import Vector
from fedhet.sums.noise import RandomBits, discrete_gaussian

if TYPE_CHECKING:
    from fedhet.site.state import FileStore  # imports torch


def log_delta(epsilon: float, mu: float) -> float:
    """Return log delta of a Gaussian mechanism with sensitivity / sigma = ``mu`` at ``epsilon``.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), by logarithms: both terms
    overflow or vanish where epsilon is in the hundreds.
    """
    first = _log_phi(mu / 2 - epsilon / mu)
    second = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def _log_phi(x: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon of a Gaussian mechanism of ``mu`` at ``delta``."""
    if mu == 0 or log_delta(0.0, mu) <= math.log(delta):
        return 0.0
    return _edge(lambda epsilon: log_delta(epsilon, mu) > math.log(delta))[1]


@lru_cache(maxsize=16)
def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu of a Gaussian mechanism that is (epsilon, delta)-private."""
    return _edge(lambda mu: log_delta(epsilon, mu) <= math.log(delta))[0]


def _edge(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return the neighbouring floats, above 0, between which ``holds`` ceases to be true."""
    low, high = 0.0, 1.0
    while holds(high):
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def noise_multiplier(config: RunConfig) -> float:
    """Return sigma / S that ``rounds`` uploads need; 0 without noise."""
    if not config.dp_clip:
        return 0.0
    return math.sqrt(config.rounds) / mu_of(config.dp_epsilon, config.dp_delta)


@lru_cache(maxsize=1024)
def spent(uploads: int, rounds: int, epsilon: float, delta: float) -> float:
    """Return what ``uploads`` of a client cost, where ``rounds`` cost ``epsilon`` at ``delta``."""
    return epsilon_of(math.sqrt(uploads) / (math.sqrt(rounds) / mu_of(epsilon, delta)), delta)


def sigma(config: RunConfig) -> float:
    """Return the standard deviation of the noise on every float; 0 without noise."""
    return config.dp_clip * noise_multiplier(config)


def share_steps(config: RunConfig, entries: int, bits: int, clients: int) -> int:
    """Return the width of one client's share, steps of 2^-bits, in sums of ``clients`` clients.

    A whole number, rounded up. Sensitivity is dp-clip and the rounding of vectors of so many
    ``entries``. UserError if the noise does not fit into words.
    """
    sensitivity = config.dp_clip + math.sqrt(entries) / 2 * 2.0**-bits
    share = sensitivity * noise_multiplier(config) / math.sqrt(clients)
    needed = config.dp_clip + 8.0 * share  # an entry has room for eight deviations of the noise
    if needed > config.sum_range:
        noise = f"dp-epsilon={config.dp_epsilon:g} (standard deviation of a share: {share:.4g})"
        text = f"sum-range: {config.sum_range:g} is too small for the noise of {noise}"
        raise UserError(f"{text}: at least {needed:.4g} is needed")
    return math.ceil(math.ldexp(share, bits))


def privatise(
    upload: Sequence[Array], received: Sequence[Array], config: RunConfig, rng: np.random.Generator
) -> list[Array]:
    """Return the upload with its update clipped and noised; integer arrays stay as they are.

    The update is the upload minus what was received if both hold the same arrays for the same
    classes, else the upload itself. Raises ValueError for NaN or infinity, which no clip bounds.
    """
    base = received if _comparable(upload, received) else [np.zeros_like(a) for a in upload]
    floats = [i for i, array in enumerate(upload) if np.issubdtype(array.dtype, np.floating)]
    updates = {i: upload[i].astype(np.float64) - base[i] for i in floats}
    scale = _scale([float(np.square(update).sum()) for update in updates.values()], config.dp_clip)
    noised = list(upload)
    for i, update in updates.items():
        noise = rng.normal(0.0, sigma(config), update.shape)
        noised[i] = (base[i] + scale * update + noise).astype(upload[i].dtype)
    return noised


def clipped(vector: Vector, length: float) -> Vector:
    """Return a vector (L,) float64 scaled to an L2 norm of at most ``length``.

    ValueError for NaN or infinity, which no clip bounds.
    """
    return vector * _scale([float(vector @ vector)], length)


def _scale(squares: Sequence[float], length: float) -> float:
    """Return what shortens an update with these sums of squares to ``length``, if it is longer."""
    norm = math.sqrt(sum(squares))
    if not math.isfinite(norm):
        raise ValueError("the update holds NaN or infinity and is not uploaded")
    return min(1.0, length / norm) if norm > 0 else 1.0


def _comparable(upload: Sequence[Array], received: Sequence[Array]) -> bool:
    """Return whether shapes, dtypes and integers are equal: rows belong to the same classes."""
    return len(upload) == len(received) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) and (a.dtype.kind == "f" or np.array_equal(a, b))
        for a, b in zip(upload, received, strict=True)
    )


# --- the account ------------------------------------------------------------------------------

NOTE = "privacy"  # the note's name in the store


@wired
class Account:
    """What a client has spent in a run, and what was agreed when the run began."""

    agreed: dict[str, Any]
    secret: StrictStr  # hexadecimal
    uploads: Annotated[StrictInt, Field(ge=0)] = 0
    round: StrictInt = 0  # of the last upload
    digest: StrictStr = ""  # of the last upload

    @property
    def epsilon(self) -> float:
        """What the uploads have cost until now, at ``dp-delta``."""
        return spent(self.uploads, *(self.agreed[k] for k in ("rounds", "dp_epsilon", "dp_delta")))


class Budget:
    """What one client may still upload in one run; without ``dp-clip`` it allows everything."""

    def __init__(
        self, store: "FileStore", config: RunConfig, client: str, *, simulated: bool = False
    ) -> None:
        self.store, self.config, self.client, self.simulated = store, config, client, simulated
        self.account = self._read()

    def check(self, round_: int, source: int) -> None:
        """Refuse a round in which this client could not upload, before it trains.

        In a client's first round (``source`` 0) open the account. Raises Refused if the budget is
        spent, if it is not the one that the run began with, or if the account is gone or damaged.
        """
        if self.config.dp_clip:
            with self._changing(first=source == 0) as account:
                if account.uploads >= self.config.rounds and account.round != round_:
                    raise self._spent(account)
        elif self.account is not None:
            raise Refused("this run began with noise (dp-clip), which is now off", Code.BUDGET)

    def noised(
        self, upload: Sequence[Array], received: Sequence[Array], round_: int
    ) -> list[Array]:
        """Return the upload as it may leave, booked before; Refused if the budget is spent.

        In a simulation the noise repeats like every other random number. In a deployment the
        server knows the run's seed and could subtract noise drawn from it: a secret of this
        client takes its place, which no other machine ever sees.
        """
        if not any(array.size for array in upload if array.dtype.kind == "f"):
            return list(upload)
        digest, drawn = self._booked(round_, [*upload, *received])
        rng = drawn if self.simulated else np.random.default_rng(int(digest, 16))
        return privatise(upload, received, self.config, rng)

    def share(self, update: Vector, steps: int, round_: int, *, attempt: int) -> NDArray[np.int64]:
        """Return this client's share of a sum's noise on ``update`` (L,), booked before.

        Steps (L,) int64 of a discrete Gaussian with a standard deviation of ``steps``, drawn as in
        :meth:`noised`. Refused if the budget is spent.

        On a network every attempt has noise of its own, and is an upload of its own: with the same
        noise in two sums of the same vectors, of which one lacks a client, their difference would
        be that client's vector under its own share of the noise alone.
        """
        stamp = [np.array([steps])] if self.simulated else [np.array([steps, attempt])]
        digest, drawn = self._booked(round_, [update, *stamp])
        seed = drawn.bytes(32) if self.simulated else bytes.fromhex(digest)
        return discrete_gaussian(steps, update.size, RandomBits(seed))

    def _booked(self, round_: int, arrays: Sequence[Array]) -> tuple[str, np.random.Generator]:
        """Book an upload, unless it is the last one again: its digest, a simulation's generator."""
        with self._changing() as account:
            keyed = hashlib.blake2b(key=bytes.fromhex(account.secret), digest_size=32)
            for array in (np.array([round_, len(arrays)]), *arrays):
                keyed.update(f"{array.dtype.str}{array.shape}".encode())
                keyed.update(np.ascontiguousarray(array).tobytes())
            if account.digest != (digest := keyed.hexdigest()):
                if account.uploads >= self.config.rounds:
                    raise self._spent(account)
                account.uploads, account.round, account.digest = account.uploads + 1, round_, digest
        return digest, generator(self.config.seed, "dp", self.client, round_)

    @contextlib.contextmanager
    def _changing(self, *, first: bool = False) -> Iterator[Account]:
        """Take up the account as it is now, checked again, and write down what becomes of it."""
        with self.store.alone():
            account = self._read()
            if account is None and not first:
                raise Refused("the account of the privacy budget is missing", Code.STATE)
            account = account or Account(_agreed(self.config), secrets.token_hex(32))
            self._check_agreed(account)
            yield account
            self.account = account
            self.store.write_note(NOTE, asdict(account))

    def _read(self) -> Account | None:
        note = self.store.read_note(NOTE)
        with refusing(Code.STATE, "the account of the privacy budget is damaged"):
            return None if note is None else from_wire(Account, note)

    def _check_agreed(self, account: Account) -> None:
        agreed, wanted = account.agreed, _agreed(self.config)
        for key in {**agreed, **wanted}:
            now, before = wanted.get(key, "off"), agreed.get(key, "off")  # off: no sum
            if now != before:
                text = f"{key.replace('_', '-')} is {now} now, but this run began with {before}"
                raise Refused(text, Code.BUDGET)

    @property
    def epsilon(self) -> float:
        """What this client's uploads have cost until now, at ``dp-delta``."""
        return self.account.epsilon if self.account is not None else 0.0

    def _spent(self, account: Account) -> Refused:
        cost = f"{account.uploads} uploads of this client have cost epsilon {account.epsilon:.6g}"
        text = f"privacy budget spent: {cost} of dp-epsilon={self.config.dp_epsilon:g}"
        return Refused(text, Code.BUDGET)


def _agreed(config: RunConfig) -> dict[str, Any]:
    """Return what an account holds for: all that decides what an upload costs."""
    keys = ["dp_clip", "dp_epsilon", "dp_delta", "rounds"]
    keys += ["secure_sum", "sum_min", "sum_threshold"] * config.summed
    return {key: getattr(config, key) for key in keys}


class UploadProtection:
    """What happens to an upload before it is sent: noise if the run has ``dp-clip``.

    In a run with sums :class:`fedhet.sums.client.SumProtection` takes its place.
    """

    shared: Collection[int] | None = None  # classes whose rows may be summed; None: all

    def protect(self, upload: Payload, received: Payload, round_: int, budget: Budget) -> Payload:
        """Return a copy of the upload as it may be sent, entered in the account before."""
        arrays = upload.to_ndarrays()
        if budget.config.dp_clip:
            arrays = budget.noised(arrays, received.flat, round_)
        return type(upload).from_ndarrays(arrays)

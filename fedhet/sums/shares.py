"""Shamir's shares (1979) of a secret of 32 bytes, in the field of 2^521 - 1.

The one piece of cryptography that is written here: Lagrange weights are found once for all secrets
that the same members share, so a hundred of them take milliseconds.
"""

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


def split(secret: bytes, members: int, threshold: int) -> list[bytes]:
    """A share for each of ``members``, any ``threshold`` of which give the secret back.

    The member at position i has x = i + 1; coefficients are the operating system's.
    """
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return evaluate(int.from_bytes(secret, "big"), coefficients, members)


def evaluate(secret: int, coefficients: Sequence[int], members: int) -> list[bytes]:
    """Shares of secret + c_1 x + c_2 x^2 + ... at x = 1 ... members, each 66 bytes, big endian."""
    shares = []
    for x in range(1, members + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * x % PRIME
        shares.append(((value + secret) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def weights(points: Sequence[int]) -> list[int]:
    """Lagrange's weights at zero for distinct points x."""
    found = []
    for i, x in enumerate(points):
        above = below = 1
        for j, other in enumerate(points):
            if i != j:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def combine(shares: Mapping[int, bytes], known: Mapping[int, int] | None = None) -> bytes:
    """The secret, from shares by position (from 0); ``known`` are the weights by position.

    Raises ValueError if they are not shares of one secret of 32 bytes.
    """
    positions = sorted(shares)
    if known is None:
        known = dict(zip(positions, weights([p + 1 for p in positions]), strict=True))
    total = 0
    for position in positions:
        value = int.from_bytes(shares[position], "big")
        if len(shares[position]) != SHARE_BYTES or value >= PRIME:
            raise ValueError("a share is none")
        total += known[position] * value
    total %= PRIME
    if total >> (8 * SECRET_BYTES):
        raise ValueError("shares do not fit together")
    return total.to_bytes(SECRET_BYTES, "big")

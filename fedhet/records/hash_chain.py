"""The hash chain of a run: equal configuration, equal bytes, equal ``run_sha256``.

Every round's link covers the link before it, the accepted uploads, the clients' metrics and the
global arrays after the round (names, dtypes, shapes, bytes; in client order). Durations are left
out.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from fedhet.files import client_order
from fedhet.protocol.payload import Array

DURATIONS = {"seconds"}


class Chain:
    """Collects one round's material and closes it into the next link."""

    def __init__(self, digest: str = "") -> None:
        self.digest = digest
        self._parts: dict[tuple[str, str], tuple[Sequence[Array], Mapping[str, float]]] = {}

    def add(
        self, kind: str, client: str, metrics: Mapping[str, float], arrays: Sequence[Array] = ()
    ) -> None:
        """Something that a client contributed to the round; the order of calls is irrelevant."""
        self._parts[kind, client] = (arrays, metrics)

    def close(self, round_: int, arrays: Mapping[str, Array]) -> str:
        """The round's link, as a hex digest."""
        link = hashlib.sha256(f"{self.digest}|{round_}".encode())
        for kind, client in sorted(self._parts, key=lambda part: (part[0], client_order(part[1]))):
            uploaded, metrics = self._parts[kind, client]
            link.update(f"|{kind}|{client}".encode())
            for i, array in enumerate(uploaded):
                hash_array(link, str(i), array)
            for name in sorted(set(metrics) - DURATIONS):
                link.update(f"|{name}".encode() + np.float64(metrics[name]).tobytes())
        for name in sorted(arrays):
            hash_array(link, name, arrays[name])
        self._parts.clear()
        self.digest = link.hexdigest()
        return self.digest


def hash_array(link: "hashlib._Hash", name: str, array: Array) -> None:
    """Feed an array with its name, dtype and shape into a hash."""
    link.update(f"|{name}|{array.dtype.str}|{array.shape}".encode())
    link.update(np.ascontiguousarray(array).tobytes())

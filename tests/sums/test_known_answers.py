"""The protocol's known answers, which an independent implementation gave."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedhet.sums.masks import (
    Secrets,
    cohort_digest,
    encode,
    evaluate,
    fraction_bits,
    from_words,
    grid,
    public_bytes,
    stream,
    to_words,
)

A = X25519PrivateKey.from_private_bytes(bytes(range(32)))
B = X25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
KEYS = {"a": public_bytes(A), "b": public_bytes(B)}


def test_keys_digest_seed_stream_and_box() -> None:
    assert KEYS["a"].hex() == "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
    assert KEYS["b"].hex() == "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254"
    digest = cohort_digest(KEYS)
    assert digest.hex() == "63dd3af76dffa77dd835647d97e62dfaac4fcd1489973bf47dbc796f17781666"
    attempt = ["run-1", 3, 1, digest]
    first, second = Secrets("a", A, KEYS, attempt), Secrets("b", B, KEYS, attempt)
    seed = "dece3df8390f43b644a754afeb40969d68fd5d9009d455446f2febedb0ec8384"
    assert first.pair_seed("b").hex() == second.pair_seed("a").hex() == seed
    words = stream(bytes.fromhex(seed), 4).tolist()
    assert words == [856035559, 881942420, 4021002767, 3922535167]
    key = first.key("b", "share", "a", "b")
    assert key.hex() == "66da8ae16bb0065cc54c214eff30528f26cc91b52fc1a63b43d8c7278cb650d7"
    assert second.open("a", first.seal("b", b"a share")) == b"a share"


def test_words() -> None:
    assert (fraction_bits(10, 64.0), fraction_bits(100, 64.0)) == (20, 17)
    words = to_words(grid(np.array([1.5, -0.25, 1e-7]), 20, 64.0))
    assert words.tolist() == [1572864, 4294705152, 0]
    assert from_words(words, 20).tolist() == [1.5, -0.25, 0.0]


def test_shares() -> None:
    assert [int.from_bytes(share, "big") for share in evaluate(7, [5], 3)] == [12, 17, 22]


def test_encoding() -> None:
    assert encode(["ä", 3, b"\x00"]).hex() == "00000002c3a4" + "0000000400000003" + "0000000100"

"""Ask a server whether it knows a client's key, without joining.

Flower activates a node in one request and has no other that a node which is not active may send.
So the request is made with a heartbeat interval that no server accepts: it looks for the key first,
and which of the two it complains about tells.
"""

from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from cryptography.x509 import load_pem_x509_certificate

from fedhet.errors import UserError
from fedhet.protocol.flower import activate, refusal_codes
from fedhet.reading.structured import parse_object

NEVER = 0.0  # seconds; a heartbeat interval that is out of every server's bounds
UNAUTHORIZED = 401


def read_key(path: Path) -> EllipticCurvePrivateKey:
    """A client's private key; UserError if the file holds none."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UserError(f"'{path}' is no private key of `fedhet certs`: {error}") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(f"'{path}' is no elliptic curve key, as `fedhet certs` makes them")
    return key


def read_ca(path: Path) -> bytes:
    """A CA's certificate (PEM); UserError if the file holds none."""
    try:
        text = path.read_bytes()
        load_pem_x509_certificate(text)
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is no certificate: {error}") from error
    return text


def knows(server: str, ca: Path, path: Path) -> bool:
    """Whether the server at ``host:port`` knows the public half of the key in ``path``.

    Raises:
        UserError: no key, no certificate, a server that cannot be reached or that refuses the
            signature, as it does when the clocks differ.

    """
    key = read_key(path)
    try:
        activate(server, read_ca(ca), key, NEVER)
    except httpx.HTTPStatusError as error:
        return _understood(error.response, server)
    except httpx.HTTPError as error:
        raise UserError(f"{server} cannot be reached: {error}") from error
    raise UserError(f"{server} is no SuperLink of Flower 1.41 or 1.42")  # it accepted that


def _understood(answer: httpx.Response, server: str) -> bool:
    """What a refusal says about the key."""
    if answer.status_code == UNAUTHORIZED:
        raise UserError(f"{server} refuses this key's signature: the clocks differ")
    try:
        code = parse_object(answer.text)["code"]
    except (ValueError, KeyError, TypeError):
        code = None
    bad_interval, _ = known = refusal_codes()
    if code not in known:
        raise UserError(f"{server}: {answer.status_code} {answer.text[:100]}")
    return bool(code == bad_interval)

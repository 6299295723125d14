"""Client ids bound to the keys of the nodes that use them.

A SuperNode signs every request to the SuperLink with its own key, and the SuperLink hands a message
to nobody but the node that it is addressed to. What Flower tells the server of a node, its public
key and the name that the key was registered under, therefore needs no proof of its own. Who sends
a *reply* is not checked there: any node may answer in another's name if it can name the message,
whose id is a hash of its content. So the content carries a nonce (:mod:`fedhet.protocol.messages`)
that nobody but the addressee sees, and an answer proves that the addressee's key was used.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.serverapp import Grid

from fedhet.config.schema import KEY_POLICIES, OFF, REGISTERED
from fedhet.errors import UserError
from fedhet.files import is_id


@dataclass(frozen=True)
class Badge:
    """What the SuperLink knows of a node: the name that its key was registered under, and the key.

    ``name`` is empty where it was registered without one; ``key`` is the public key as PEM.
    """

    name: str = ""
    key: bytes = b""


def badges(grid: Grid) -> dict[int, Badge]:
    """The nodes that are online on a network: what Flower's own grid there asks the SuperLink."""
    nodes = grid.get_nodes()  # of HttpGrid, not of its base class
    return {node.node_id: Badge(str(node.name or ""), bytes(node.public_key)) for node in nodes}


class Names:
    """Says whether a node may speak for a client."""

    def __init__(self, policy: str = OFF) -> None:
        """``policy``: auto, registered, off, or a folder of ``<client>.pub``; UserError."""
        self.policy = policy
        self._keys = {} if policy in KEY_POLICIES else _read_keys(Path(policy))

    def check(self, client: str, node: int, online: Mapping[int, Badge]) -> None:
        """Nothing if ``node`` may be ``client``; ValueError with the reason otherwise."""
        own = online.get(node, Badge())
        if self.policy == OFF:
            return
        if self._keys:
            if client not in self._keys:
                raise ValueError(f"client-keys: there is no {client}.pub in '{self.policy}'")
            if not hmac.compare_digest(self._keys[client], _canonical(own.key)):
                raise ValueError(f"client id '{client}' belongs to another key than this node's")
        elif own.name:
            if own.name != client:
                raise ValueError(
                    f"client id '{client}' is not the name that this node's key is registered "
                    f"under, which is '{own.name}' (see client-keys)"
                )
        elif self.policy == REGISTERED:
            raise ValueError(
                f"client id '{client}': this node's key is registered under no name "
                "(client-keys=registered)"
            )
        elif client in {badge.name for badge in online.values()}:
            raise ValueError(f"client id '{client}' is the name of another node's key")


def _read_keys(folder: Path) -> dict[str, bytes]:
    """Public keys by client, out of ``<client>.pub`` in OpenSSH's format."""
    files = sorted(folder.glob("*.pub"))
    if not files:
        raise UserError(
            f"client-keys: '{folder}' holds no public keys (<client>.pub, as `fedhet certs` "
            f"writes them to clients/); or {', '.join(KEY_POLICIES)}"
        )
    keys = {}
    for path in files:
        if not is_id(path.stem):
            raise UserError(f"client-keys: '{path}': '{path.stem}' cannot be a client's id")
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise UserError(f"client-keys: '{path}' is not a public key: {error}") from error
        keys[path.stem] = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return keys


def _canonical(pem: bytes) -> bytes:
    """A public key of Flower's in the form of :func:`_read_keys`; empty if it is none."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return b""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

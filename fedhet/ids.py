"""Names of clients and experiments: what is allowed, and in which order they come."""

import re

from fedhet.errors import UserError

CLIENT_ID = r"[A-Za-z0-9._-]{1,64}"
NOBODY = "the round"  # in a list of failures: no client's id
_HINT = "up to 64 of A-Z a-z 0-9 . _ -"


def is_id(name: str) -> bool:
    """Whether a text may name a client or an experiment: it is safe as a folder's name."""
    return re.fullmatch(CLIENT_ID, name) is not None and name not in {".", ".."}


def check_id(name: str, what: str = "id") -> str:
    """The name itself; UserError that calls it ``what`` if :func:`is_id` does not hold."""
    if not is_id(name):
        raise UserError(f"{what}: '{name[:80]}' is not allowed: {_HINT}")
    return name


def client_order(client: str) -> tuple[int, int, str]:
    """Sort key of client ids: numbers by value, then texts; no two ids share one ("7", "07")."""
    # A folder that somebody sent may be called by digits that are no ASCII, and no numbers either.
    number = client.isascii() and client.isdigit()
    return (0, int(client), client) if number else (1, 0, client)

"""A server that cheats in a secure sum, and five hospitals that notice.

Run it with `python cheating_server.py`.
Keys and certificates are those of `fedhet certs`; two sites insist on sums, by their limits. There
is no network: messages are passed by hand, and a hospital's part is the code that a node runs.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fedhet.config.load import load_config
from fedhet.deploy.certs import make
from fedhet.errors import Refused, Rejected
from fedhet.protocol.messages import Reply
from fedhet.site.limits import NOTHING, Limits, check_run
from fedhet.site.state import FileStore
from fedhet.sums.client import Member, NodeCertificate
from fedhet.sums.masks import Cohort, SumKey, SumTerms, Survivors
from fedhet.sums.server import Attempt

NAMES, INSISTING = ("ash", "birch", "cedar", "dogwood", "elm"), ("ash", "birch")
TERMS = SumTerms(min_members=3, threshold=4)  # one of five may drop out
LIMITS = Limits.model_validate({"secure-sum": "required", "min-sum": 3})  # a site's own file
COUNTS = {name: np.array([k, 10 + k, 0], np.uint32) for k, name in enumerate(NAMES)}


def refused(who: str, what: Callable[..., object], *given: object) -> None:
    """Print why the server does not get what it asks for."""
    try:
        print("the server got", what(*given))
    except (Refused, Rejected) as error:
        print(f"{who}: {error}")


def main(folder: Path) -> None:
    """Keys, then the server's four tries."""
    certs, own, site = make(folder / "tls", ["127.0.0.1"], NAMES), {}, {}
    for name in NAMES:
        files = {"key": certs.client(name), "certificate": f"{certs.client(name)}.crt"}
        if (found := NodeCertificate.of({**files, "ca": certs.ca})) is not None:  # it names files
            own[name] = found
        site[name] = Member(FileStore(folder / name, sync=False), "run-1", name, TERMS)
    keys = {name: site[name].key(own[name]) for name in NAMES}

    def ask(server: Attempt, attempt: int, survivors: tuple[str, ...]) -> None:
        for name in survivors:
            boxes = server.boxes_for(name)[: len(survivors)]
            told = Survivors(survivors, attempt, boxes.tobytes())
            server.answer(name, site[name].open_shares(1, told))

    def ask_all(attempt: int, elms: bytes) -> Attempt:
        cohort = Cohort(NAMES, attempt, len(NAMES))
        server = Attempt(cohort, 3, TERMS, round_=1)
        for name in NAMES:  # each masks for what it was sent, of which this is the digest
            sent = elms if name == "elm" else bytes(32)
            server.take(
                name, site[name].mask(1, cohort, sent, Reply({}, {}, [COUNTS[name]])).arrays
            )
        server.close()
        ask(server, attempt, NAMES)
        return server

    for name in INSISTING:  # 1. It asks for single uploads.
        check = partial(check_run, shares_model=False)
        refused(name, check, LIMITS, load_config(None), NOTHING, "run-1")
    forged = keys | {"elm": SumKey(bytes(range(32)))}  # 2. It gives itself out for elm.
    print("ash does not accept the key of", *site["ash"].introduce(forged, own["ash"].ca))
    for name in NAMES:
        site[name].introduce(keys, own[name].ca)
    honest = ask_all(1, bytes(32))
    print("the sum:", honest.total().tolist())
    # 3. It asks again, as if elm had dropped out: the difference would be elm's patients.
    refused("ash", ask, honest, 1, NAMES[:4])
    # 4. It sends elm another payload, to find elm's part in the sum.
    refused("no sum", ask_all(2, elms=bytes(31) + b"1").total)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))

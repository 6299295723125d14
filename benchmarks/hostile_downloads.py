"""A lying server's messages to deployed clients of every method, by seed: what came of each.

Of the corpus (:mod:`benchmarks.hostile_server`) one thing or several at once; all are to be refused
with a word of the list, and nothing that the client keeps may change.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from flwr.app import RecordDict

from benchmarks.deployed import Deployed
from benchmarks.hostile_folders import Found
from benchmarks.hostile_server import BYTES, INSTRUCTIONS, RECORDS, instruction_with, payloads
from fedhet.config.registry import METHODS
from fedhet.protocol.reasons import Word

KINDS = ("instruction", "instructions", "record", "bytes", "payload")
# Alone this is an honest message where a method sends nothing.
_FAIR = {"standalone": "an instruction for arrays"}


def crafted(rng: random.Random, client: Deployed, method: str) -> tuple[str, RecordDict]:
    """Something that no honest server sends, and its name."""
    kind = rng.choice(KINDS)
    if kind.startswith("instruction"):
        names = rng.sample(sorted(INSTRUCTIONS), rng.randint(2, 4) if kind.endswith("s") else 1)
        changes = {key: value for name in names for key, value in INSTRUCTIONS[name].items()}
        return ", ".join(names), client.content(config=instruction_with(client.config, changes))
    if kind == "record":
        name = rng.choice(sorted(set(RECORDS) - {_FAIR.get(method)}))
        return name, RECORDS[name](client.content())
    content = client.content()
    damaged = dict(payloads(method, client.arrays))
    if kind == "bytes" or not damaged:
        name = rng.choice(sorted(BYTES))
        content["arrays"] = BYTES[name]()
        return name, content
    name = rng.choice(sorted(damaged))
    return name, client.content(arrays=damaged[name])


def downloads(place: Path, seeds: Sequence[int]) -> Found:
    """One crafted message for each seed, to a client of the seed's method."""
    found, clients = Found(), dict[str, Deployed]()
    for seed in seeds:
        rng, method = random.Random(seed), list(METHODS)[seed % len(METHODS)]
        if method not in clients:
            (place / method).mkdir()
            clients[method] = Deployed(place / method, method)
        client = clients[method]
        name, content = crafted(rng, client, method)
        found.tried += 1
        before = client.stamps()
        try:
            info = client.ask(content).content.config_records["info"]
        except Exception as error:  # noqa: BLE001  (whatever it is, it should not have come out)
            found.escapes.append(f"seed {seed} {method} {name}: {error!r}")
            continue
        word = str(info.get("error", ""))
        if not word or client.stamps() != before:
            found.effects.append(f"seed {seed} {method} {name}: {word or 'taken'}")
        elif word == Word.UNEXPECTED:
            found.escapes.append(f"seed {seed} {method} {name}: {word}")
        else:
            found.commands["refused"] += 1  # by a word, and with nothing changed
    return found

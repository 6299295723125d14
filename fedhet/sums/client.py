"""What a client answers to the messages of a sum; the ClientApp calls it in runs that have one."""

from typing import Any

from fedhet.clients.summing import Part
from fedhet.protocol.downloads import read_arrays
from fedhet.protocol.messages import Reply
from fedhet.protocol.reasons import Refused, Word, telling
from fedhet.request import Request
from fedhet.sums.fixed_point import fraction_bits
from fedhet.sums.kept import Credentials
from fedhet.sums.messages import (
    digest_of_sent,
    key_info,
    opened_info,
    read_cohort,
    read_introduction,
    read_survivors,
)
from fedhet.sums.metrics import SumMetrics


def own_key(asked: Request, client: str) -> dict[str, Any]:
    """What the handshake tells instead of classes and counts: the key for this run's sums."""
    if asked.config.secure_sum != "masked":
        asked.store(client)  # refused where the run began with masked sums
        return {}
    with telling(Word.PROOF):
        return key_info(asked.sum_notes(client).key(Credentials.of(asked.node)))


def introduce(asked: Request) -> dict[str, Any]:
    """Keep the others' keys; says whose are not accepted."""
    try:
        keys = read_introduction(asked.message)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    notes, own = asked.sum_notes(), Credentials.of(asked.node)
    strangers = notes.introduce(keys, own.ca if own is not None else None)
    return {"client": notes.client, "strangers": strangers}


def train(asked: Request) -> tuple[Reply, dict[str, float]]:
    """Train and answer with what the sum needs; the second are this client's own numbers."""
    part, config = _part(asked), asked.config
    counted = asked.method.strategy.sums_classes(config, config.params) and config.sum_owners > 1
    if counted != (part.told is not None):
        raise Refused("owners of classes are counted before, where their rows are summed")
    return part.reply(asked.what, read_arrays(asked.message))


def owners(asked: Request) -> Reply:
    """Which classes this client has, for a sum of its own."""
    return _part(asked).owners(asked.what)


def _part(asked: Request) -> Part:
    """This client's part in the sum that a message asks for."""
    try:
        cohort = read_cohort(asked.message)
        fraction_bits(cohort.size, asked.config.sum_range)  # of a size that fits no word
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    client = asked.client()
    config, strategy = asked.config, asked.method.strategy
    masked = config.secure_sum == "masked"
    summed = SumMetrics(config.sum_range, strategy.metric_ranges) if config.sum_metrics else None
    return Part(
        client=client,
        method=strategy,
        metrics=summed,
        cohort=cohort,
        sent=digest_of_sent(asked.message, asked.what, cohort, asked.text),
        notes=asked.sum_notes(client.setup.data.client) if masked else None,
        told=None if cohort.told is None else frozenset(cohort.told),
    )


def unmask(asked: Request) -> dict[str, Any]:
    """Open what others sealed for this client; needs neither examples nor model."""
    try:
        survivors = read_survivors(asked.message)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    notes = asked.sum_notes()
    opened = notes.unmask(asked.what.round, survivors)
    return {"client": notes.client, "round": asked.what.round, **opened_info(opened)}

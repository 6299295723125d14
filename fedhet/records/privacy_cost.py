"""What the noised uploads of a run have cost its clients, for ``summary.json``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhet.config.schema import RunConfig
from fedhet.files import client_order
from fedhet.records.tables import read_partition

NOT_COVERED = (
    "class ids and masks",
    "counts of images, in the handshake and in replies",
    "ranks and sizes of compressed uploads",
    "accuracies, losses and other metrics",
    "which clients take part, and when",
)
NOT_COVERED_IN_SUMS = (
    "sums of owners, of images per class and of weights",
    "sums of accuracies, losses and images, or, with sum-metrics: false, every client's own",
    "which clients take part, and when",
    "what two members know together, who can take their own shares of the noise away",
)


def privacy_summary(
    config: RunConfig, rounds: Sequence[Mapping[str, Any]], clients: Sequence[str]
) -> dict[str, Any] | None:
    """Budget, noise, every client's spent epsilon and what no noise covers; None without noise.

    ``epsilon_spent`` is what each client last said in a reply that was valid, 0 for those that
    never uploaded. What a lost or refused reply cost is known to the client alone until the next.
    """
    if not config.dp_clip:
        return None
    from fedhet.site.privacy import noise_multiplier, sigma  # noqa: PLC0415  (torch)

    told = dict.fromkeys(clients, 0.0)
    for record in rounds:
        told |= record.get("epsilon_spent", {})
    of_sum = {
        "mechanism": "discrete Gaussian noise on the sum of clipped vectors, of which every client "
        "adds a share",
        "noise_of": "sum",
    }
    of_upload = {
        "mechanism": "Gaussian noise on the clipped update of every upload, added by the client"
    }
    return {
        **(of_sum if config.summed else of_upload),
        "dp_clip": config.dp_clip,
        "dp_epsilon": config.dp_epsilon,
        "dp_delta": config.dp_delta,
        "noise_multiplier": noise_multiplier(config),
        "sigma": sigma(config),
        "uploads_planned": config.rounds,
        "amplification_by_sampling": "not counted",
        "epsilon_spent": {client: told[client] for client in sorted(told, key=client_order)},
        "epsilon_spent_max": max(told.values(), default=0.0),
        "not_covered": list(NOT_COVERED_IN_SUMS if config.summed else NOT_COVERED),
    }


def partition_clients(path: Path) -> list[str]:
    """The clients of ``partition.csv``; none while it is not there."""
    return list(read_partition(path).counts) if path.exists() else []

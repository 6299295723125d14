"""Keys that somebody set and that change nothing, each with the reason.

What decides which images a client gets is refused where a run is asked for: somebody who set it
expects another experiment. The rest is said in a note: presets and sweeps carry such keys for the
runs in which they have a meaning.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, kind_of
from fedhet.errors import UserError

SKEWED = ("dirichlet", "dirichlet-balanced", "quantity")  # partitions that alpha shapes
REFUSED = ("alpha", "classes-per-client", "legacy-pfedhn")


def idle(config: RunConfig, *, deployed: bool = False) -> dict[str, str]:
    """Why a key changes nothing in this configuration, by key.

    ``deployed``: the clients are nodes of a network, not processes of this machine.
    """
    inline, kind = config.engine == "inline", config.partition
    given = config.dataset == "digits" or config.dataset.startswith("synthetic")
    here = f"dataset={config.dataset} is read from no files"
    one_process = "engine=inline is one process, which waits for nobody"
    kept = "with state-backend=context states live in the run's processes, and end with them"
    reasons: dict[str, tuple[bool, str]] = {
        "alpha": (kind not in SKEWED, _belongs(kind, *SKEWED)),
        "classes-per-client": (kind != "classes-per-client", _belongs(kind, "classes-per-client")),
        "legacy-pfedhn": (kind != "classes-per-client", _belongs(kind, "classes-per-client")),
        "split": (kind == "file", "the partition-file says what each image is for"),
        "partition-seed": (kind == "file" and not given, "the partition-file says who owns what"),
        "model-assignment": (len(config.models) == 1, "there is one model for all"),
        "evaluate-all": (config.fraction == 1, "fraction=1 samples every client in every round"),
        "data-path": (given, here),
        **dict.fromkeys(
            ("image-size", "grey"),
            (kind_of(config.dataset) not in {"", IMAGE}, f"dataset={config.dataset} has no images"),
        ),
        "weighting": (
            config.aggregation != "mean",
            f"aggregation={config.aggregation} has no weights",
        ),
        "actors": (inline, one_process),
        "round-timeout": (inline, one_process),
        "start-timeout": (inline, one_process),
        "state-dir": (config.state_backend == "context", kept),
        "keep-state": (config.state_backend == "context", kept),
        **_of_sums(config),
        "client-keys": (True, "a simulation's clients have no keys; it is for --superlink"),
    }
    if deployed:
        own = "with --superlink every node has its own"
        del reasons["client-keys"]
        if not config.summed:
            del reasons["evaluate-all"]  # a node may be away
        reasons |= dict.fromkeys(("data-path", "actors", "state-dir", "keep-state"), (True, own))
    return {key: reason for key, (holds, reason) in reasons.items() if holds}


def _of_sums(config: RunConfig) -> dict[str, tuple[bool, str]]:
    keys = ("sum-range", "sum-min", "sum-threshold", "sum-owners", "sum-metrics")
    found = {key: (not config.summed, "secure-sum=off") for key in keys}
    if config.summed and config.sum_metrics:
        found["evaluate-all"] = (True, "sum-metrics: nobody outside a round's sum is evaluated")
    return found


def _belongs(partition: str, *to: str) -> str:
    return f"partition={partition}; it belongs to partition={' or '.join(to)}"


def check(config: RunConfig, given: Mapping[str, Any], *, deployed: bool = False) -> list[str]:
    """A line for each of the ``given`` keys that changes nothing; UserError for one of REFUSED."""
    found = idle(config, deployed=deployed)
    for key in REFUSED:
        if key in given and key in found:
            raise UserError(f"{key}: '{given[key]}' changes nothing with {found[key]}")
    return [f"{key}={given[key]} changes nothing: {found[key]}" for key in given if key in found]


def check_cells(configs: Iterable[RunConfig], given: Mapping[str, Any]) -> list[str]:
    """A line for each of the ``given`` keys that changes nothing in any cell of a sweep."""
    everywhere: dict[str, str] | None = None
    for config in configs:
        found = idle(config)
        everywhere = found if everywhere is None else {
            key: reason for key, reason in everywhere.items() if key in found
        }  # fmt: skip
    reasons = everywhere or {}
    return [f"{k}={v} changes nothing: {reasons[k]}" for k, v in given.items() if k in reasons]


def small_cohort(config: RunConfig) -> list[str]:
    """A line if a share of the clients is less than one of them; none where N is not known."""
    share = config.fraction * config.clients
    if not config.clients or round(share) >= 1:
        return []
    return [
        f"fraction={config.fraction:g} of {config.clients} clients is {share:g}: one of "
        f"{config.clients} is trained in each round"
    ]

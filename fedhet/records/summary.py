"""The figures of a run: out of its rounds and over its clients, and what its noise has cost."""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE_ACCURACY, METRICS, Metric, RunConfig
from fedhet.files import NOBODY, client_order, is_id
from fedhet.records.formats import read_partition

ABSENT = ("test_accuracy_std", "test_accuracy_p10", "test_accuracy_min", "clients.csv")
COMMONEST = 0.6  # share of the examples from which a class alone makes accuracy look good
log = logging.getLogger("fedhet")
RECENT = 50  # rounds that the participants' mean is averaged over, as papers do
UNSUMMED = "unsummed_classes"  # of a round: those that too few clients have (sum-owners)
_RECENT = 10  # rounds that the time left is estimated from
# How a client is left out whose numbers left the range in which there is anything to learn.
DIVERGENCE = re.compile(
    r"not finite|\bNaN\b|\bnan\b|\binf(inity)?\b|above max-update-(norm|ratio)"
    r"|'train_loss' is \S+, not within"
)


def summarise(
    config: RunConfig, rounds: Sequence[Mapping[str, Any]], status: str, clients: int, reason: str
) -> dict[str, Any]:
    """Return the figures of ``summary.json`` out of the lines of ``rounds.jsonl``."""
    evaluated = (r for r in reversed(rounds) if r["test_accuracy_mean"] is not None)
    last: Mapping[str, Any] = next(evaluated, {})
    best = best_round(config, rounds)
    replied = sum(r["replied"] for r in rounds)
    sent = sum(r["sampled"] - r["offline"] for r in rounds)

    def total(key: str) -> int:
        return int(sum(r[key] for r in rounds))

    sums = {"secure_sum": secure_sum_summary(config, rounds)} if config.summed else {}
    summary: dict[str, Any] = sums | {
        "method": config.method, "dataset": config.dataset, "clients": clients,
        "clients_expected": max(config.clients, clients), "fraction": config.fraction,
        "rounds": len(rounds), "seed": config.seed, "partition_seed": config.data_seed,
        "status": status, "reason": reason,
    }  # fmt: skip
    for kind in ("mean", "std", "p10", "min"):
        summary[f"test_accuracy_{kind}"] = last.get(f"test_accuracy_{kind}")
    summary["metric"] = config.metric
    for name in sorted({*BESIDE_ACCURACY, *(f"test_{key}" for key, _ in config.metrics)}):
        keys = (f"{name}_mean", f"{name}_clients")
        summary |= {key: last[key] for key in keys if last.get(key) is not None}
    for name in dict.fromkeys(("accuracy", config.metric)):
        means = [(r["round"], r["replied"], r.get(participants_mean(name))) for r in rounds]
        trained = participants(means, METRICS[name], config.evaluate_every)
        summary |= {f"participants_test_{name}_{kind}": value for kind, value in trained.items()}
    summary |= {
        "best_validation_round": best.get("round"),
        "best_validation_test_accuracy_mean": best.get("test_accuracy_mean"),
        f"best_validation_test_{config.metric}_mean": best.get(f"test_{config.metric}_mean"),
        "uplink_floats_per_client_round": total("uplink_floats") / max(1, replied),
        "downlink_floats_per_client_round": total("downlink_floats") / max(1, sent),
    }
    for kind in ("bytes", "message_bytes"):
        for way in ("uplink", "downlink"):
            summary[f"{way}_{kind}_total"] = total(f"{way}_{kind}")
    flops = [r["train_flops"] for r in rounds]
    return summary | {
        "train_flops_total": None if None in flops else sum(flops),  # not told (sum-metrics)
        "wall_seconds": sum(r["seconds"] for r in rounds),
        "failures": [
            {"round": r["round"], "client": f["client"], "reason": f["reason"]}
            for r in rounds for f in r["failures"]
        ],
        "clients_lost": rounds[-1]["lost"] if rounds else [],
        "run_sha256": rounds[-1]["sha256"] if rounds else None,
    }  # fmt: skip


def gain(config: RunConfig, value: float) -> float:
    """``value`` of the run's ``metric`` so that more is better: errors change their sign."""
    return -value if METRICS[config.metric].less_is_better else value


def headline(metric: str, figures: Mapping[str, Any], part: str = "test") -> str:
    """Return name and mean of ``metric`` in a line of ``rounds.jsonl`` or in ``summary.json``.

    A dash stands for a mean that is not there. Where some clients have no such figure, the text
    says how many have.
    """
    value, about = figures.get(f"{part}_{metric}_mean"), METRICS[metric]
    if not isinstance(value, int | float):
        return f"{about.title} -"
    clients = {name: figures.get(f"{part}_{name}_clients") or 0 for name in METRICS}
    have, most = clients[metric], max(clients.values())
    over = f" (of {have} of {most} clients)" if 0 < have < most else ""
    return f"{about.title} {about.text(value)}{over}"


def imbalance(config: RunConfig, counts: Mapping[str, int]) -> str:
    """Return a line if accuracy is the metric and one class has most of the examples.

    ``counts`` are the examples of all clients by class.
    """
    if config.metric != "accuracy" or not sum(counts.values()):
        return ""
    name = max(counts, key=counts.__getitem__)
    share = counts[name] / sum(counts.values())
    line = (
        f"class '{name}' has {100 * share:.0f} % of the examples: to answer it always would get an "
        f"accuracy of about {100 * share:.0f} %; metric=balanced_accuracy (or auroc) is not moved "
        "by that"
    )
    return line * (share > COMMONEST)


def participants_mean(metric: str) -> str:
    """Return the name of the participants' mean in a line of ``rounds.jsonl``."""
    return f"participants_test_{metric}_mean"


def participants(
    rounds: Iterable[tuple[int, int, float | None]], metric: Metric, evaluate_every: int
) -> dict[str, float]:
    """Summarise the participants' means: what the papers' programs print.

    ``rounds`` are number, replies and mean. ``last`` is the last mean, ``last_50`` the mean over
    the last 50 rounds, ``best`` the best one and ``best_round`` its round. Only ``last`` is there
    if a round that was evaluated has no mean, as in records of older versions.
    """
    lines = list(rounds)
    known = {n: mean for n, _, mean in lines if mean is not None and math.isfinite(mean)}
    if not known:
        return {}
    figures: dict[str, float] = {"last": known[max(known)]}
    if any(n % evaluate_every == 0 and replied and n not in known for n, replied, _ in lines):
        return figures
    best = max(known, key=lambda n: (known[n] * (-1 if metric.less_is_better else 1), -n))
    recent = [mean for n, mean in known.items() if n > lines[-1][0] - RECENT]
    return figures | {
        f"last_{RECENT}": float(np.mean(recent or [figures["last"]])),
        "best": known[best], "best_round": best,
    }  # fmt: skip


def out_of_patience(config: RunConfig, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ``patience`` evaluated rounds brought no better validation metric; logs it."""
    best: Mapping[str, Any] = best_round(config, lines) if config.patience else {}
    later = lines[best.get("round", len(lines)) :]
    waited: int = sum(line["round"] % config.evaluate_every == 0 for line in later)
    if over := waited >= config.patience > 0:
        log.info(
            "the run ends after round %d: %d evaluated rounds without a better validation %s than "
            "in round %d (patience)", lines[-1]["round"], waited,
            headline(config.metric, best, "val"), best["round"],
        )  # fmt: skip
    return over


def best_round(config: RunConfig, rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the line of the best validation ``metric``, the first of equals, or empty."""
    name, key = f"val_{config.metric}_mean", "test_accuracy_mean"
    validated = [line for line in rounds if line.get(name) is not None and line[key] is not None]
    return max(validated, key=lambda line: gain(config, line[name]), default={})  # the first


def secure_sum_summary(config: RunConfig, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the server learned what this summary says, and what it does not know."""
    summary: dict[str, Any]
    summary = {"mode": config.secure_sum, "sum_min": config.sum_min, "sum_range": config.sum_range}
    if counted := [line[UNSUMMED] for line in rounds if UNSUMMED in line]:
        summary |= {"sum_owners": config.sum_owners, UNSUMMED: int(counted[-1])}
    if config.sum_metrics:
        why = "the server learned only the sum over the clients of a round"
        summary["absent"] = dict.fromkeys(ABSENT, why)
        summary["means_are_over"] = "the clients of the last evaluated round, unweighted"
    return summary


def seconds_left(seconds: Sequence[float], rounds: int) -> float | None:
    """Time to the end after rounds that took ``seconds`` each, of ``rounds``; None: unknown yet.

    The last ten count. The first holds every process's imports and tells nothing.
    """
    recent = seconds[1:][-_RECENT:]
    return max(0, rounds - len(seconds)) * sum(recent) / len(recent) if recent else None


def left_out(failure: Mapping[str, Any]) -> str:
    """Return who was left out of a round and why; of a lost round the reason alone."""
    who = failure["client"]
    named = f"client {who}: " if is_id(who) else f"{who}: "  # a node that was refused has no id
    return ("" if who == NOBODY else named) + str(failure["reason"])


def diverged(line: Mapping[str, Any]) -> bool:
    """Whether a line of ``rounds.jsonl`` has no valid reply, and one whose numbers overflowed."""
    reasons = (failure["reason"] for failure in line["failures"])
    return line["replied"] == 0 and any(map(DIVERGENCE.search, reasons))


EVERYBODY = "all"  # in confusion.csv, where only the sum of the matrices is known


def confusion_rows(
    classes: Sequence[str], matrices: Mapping[str, NDArray[np.int64]]
) -> Iterator[list[Any]]:
    """Lines of ``confusion.csv``: for each client and class its recall, then the answers."""
    yield ["client", "class", "examples", "recall", *(f"predicted {name}" for name in classes)]
    for client in sorted(matrices, key=client_order):
        for label, counts in enumerate(matrices[client]):
            examples = int(counts.sum())
            if examples:
                recall = 100 * int(counts[label]) / examples
                yield [client, classes[label], examples, recall, *map(int, counts)]


def percent(value: float | None) -> str:
    """Return an accuracy as text, or a dash before the first evaluation."""
    return "-" if value is None else f"{value:.2f} %"


def duration(seconds: float) -> str:
    """Return seconds as h:mm:ss or m:ss; "?" if they are not finite."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def privacy_summary(
    config: RunConfig, rounds: Sequence[Mapping[str, Any]], clients: Sequence[str]
) -> dict[str, Any] | None:
    """Budget, noise and every client's spent epsilon; None without noise.

    ``epsilon_spent`` is what each client last said in a reply that was valid, 0 for those that
    never uploaded. What a lost or refused reply cost is known to the client alone until the next.
    What no noise covers is in docs/explanation/privacy.md.
    """
    if not config.dp_clip:
        return None
    from fedhet.site.privacy import noise_multiplier, sigma  # noqa: PLC0415  (torch)

    spent = dict.fromkeys(clients, 0.0)
    for record in rounds:
        spent |= record.get("epsilon_spent", {})
    return {
        "noise_of": "sum" if config.summed else "upload", "dp_clip": config.dp_clip,
        "dp_epsilon": config.dp_epsilon, "dp_delta": config.dp_delta,
        "noise_multiplier": noise_multiplier(config), "sigma": sigma(config),
        "epsilon_spent": {client: spent[client] for client in sorted(spent, key=client_order)},
        "epsilon_spent_max": max(spent.values(), default=0.0),
    }  # fmt: skip


def partition_clients(path: Path) -> list[str]:
    """Return the clients of ``partition.csv``; none while it is not there."""
    return list(read_partition(path)[1]) if path.exists() else []

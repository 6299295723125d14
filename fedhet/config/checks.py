"""Keys that do not exist, do not go together, or were set and change nothing; their messages.

What decides which examples a client gets is refused: somebody who set it expects another
experiment. The rest is said in a note: presets and sweeps carry such keys for the runs in which
they have a meaning.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedhet.config.registry import METHODS, Method
from fedhet.config.schema import PATHS, RunConfig, Schema, kebab
from fedhet.data.inputs import IMAGE, kind_of
from fedhet.errors import UserError, nearest

SKEWED = ("dirichlet", "dirichlet-balanced", "quantity")  # partitions that alpha shapes
REFUSED = ("alpha", "classes-per-client", "legacy-pfedhn")


def idle(config: RunConfig, *, deployed: bool = False) -> dict[str, str]:
    """Why a key changes nothing in this configuration, by key.

    ``deployed``: the clients are nodes of a network, not processes of this machine.
    """
    inline, kind = config.engine == "inline", config.partition
    given = config.dataset == "digits" or config.dataset.startswith("synthetic")
    here = f"dataset={config.dataset} reads no file"
    one_process = "engine=inline runs all clients one by one in one process"
    reasons: dict[str, tuple[bool, str]] = {
        "alpha": (kind not in SKEWED, _belongs(kind, *SKEWED)),
        "classes-per-client": (kind != "classes-per-client", _belongs(kind, "classes-per-client")),
        "legacy-pfedhn": (kind != "classes-per-client", _belongs(kind, "classes-per-client")),
        "split": (kind == "file", "the partition-file has the split of each image"),
        "partition-seed": (kind == "file" and not given, "the partition-file names the clients"),
        "model-assignment": (len(config.models) == 1, "all clients have the same model"),
        "evaluate-all": (config.fraction == 1, "fraction=1 samples every client in every round"),
        "data-path": (given, here),
        **dict.fromkeys(
            ("image-size", "grey", "standardise"),
            (kind_of(config.dataset) not in {"", IMAGE}, f"dataset={config.dataset} is not images"),
        ),
        "weighting": (
            config.aggregation != "mean",
            f"aggregation={config.aggregation} does not use weights",
        ),
        "actors": (inline, one_process),
        "local-epochs": (config.local_steps > 0, f"local-steps={config.local_steps} is set"),
        "round-timeout": (inline, one_process),
        "start-timeout": (inline, one_process),
        **dict.fromkeys(
            ("sum-range", "sum-min", "sum-threshold", "sum-owners", "sum-metrics"),
            (not config.summed, "secure-sum=off"),
        ),
        "client-keys": (True, "it is for runs with --superlink"),
    }
    if config.summed and config.sum_metrics:
        why = "with sum-metrics only the clients of a round are evaluated"
        reasons["evaluate-all"] = (True, why)
    if deployed:
        own = "with --superlink every node sets its own"
        del reasons["client-keys"]
        if not config.summed:
            del reasons["evaluate-all"]  # a node may be away
        reasons |= dict.fromkeys(("data-path", "actors", "state-dir", "keep-state"), (True, own))
    return {key: reason for key, (holds, reason) in reasons.items() if holds}


def _belongs(partition: str, *to: str) -> str:
    return f"it is for partition={' or '.join(to)}, and partition is {partition}"


def check_idle(config: RunConfig, given: Mapping[str, Any], *, deployed: bool = False) -> list[str]:
    """Return a line for each ``given`` key that changes nothing; refuse those of REFUSED."""
    found = idle(config, deployed=deployed)
    for key in REFUSED:
        if key in given and key in found:
            raise UserError(f"{key}: '{given[key]}' has no effect: {found[key]}")
    return [f"{key}={given[key]} has no effect: {found[key]}" for key in given if key in found]


def check_cells(configs: Iterable[RunConfig], given: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the ``given`` keys that changes nothing in any cell of a sweep."""
    cells = [idle(config) for config in configs]
    everywhere = [key for key in given if cells and all(key in reasons for reasons in cells)]
    return [f"{key}={given[key]} has no effect: {cells[0][key]}" for key in everywhere]


def small_cohort(config: RunConfig) -> list[str]:
    """Return a line if a share of the clients is less than one; none where N is unknown."""
    share = config.fraction * config.clients
    if not config.clients or round(share) >= 1:
        return []
    return [
        f"fraction={config.fraction:g} of {config.clients} clients is {share:g}: one of "
        f"{config.clients} is trained in each round"
    ]


HIDE_CLASSES = "hide-classes"
# Keys of a method that went: runs made before have them, and were like today's at this value.
GONE: Mapping[str, Mapping[str, Any]] = {"fedssa": {HIDE_CLASSES: False}}
GONE_EVERYWHERE: dict[str, Any] = {"state-backend": "file"}  # the same of common keys
# Keys by which a server looks at single uploads, and none reaches it.
OF_SINGLE = {
    "aggregation": "it needs single uploads",
    "max-weight": "the server does not learn single weights",
    "max-update-norm": "the server does not see single updates; use sum-range",
    "max-update-ratio": "the server does not see single updates; use sum-range",
}


def without_gone(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without keys that went, if they are switched off, as in older runs."""
    gone = {HIDE_CLASSES: False} | GONE_EVERYWHERE
    off = {key: {"", str(value).lower()} for key, value in gone.items()}
    return {k: v for k, v in values.items() if str(v).strip().lower() not in off.get(k, ())}


def check_cohort(config: RunConfig) -> None:
    """UserError if a round is too small, or too large, for its sum; ``clients`` is known."""
    if not config.summed:
        return
    from fedhet.sums.masks import SumTerms, fraction_bits  # noqa: PLC0415  (Flower, cryptography)

    size = config.cohort(config.clients)
    if size < config.sum_min:
        raise UserError(
            f"sum-min: {config.sum_min} is more than the {size} clients of a round "
            "(fraction x clients)"
        )
    needed = SumTerms(config.sum_min, config.sum_threshold).needed(size)
    if not size // 2 < needed <= size:
        raise UserError(
            f"sum-threshold: {config.sum_threshold} is not allowed with {size} clients a round: 0, "
            f"or {size // 2 + 1} to {size}"
        )
    try:
        fraction_bits(size, config.sum_range)
    except ValueError as error:
        raise UserError(f"sum-range: {config.sum_range:g} is too large: {error}") from error


# --- messages about a key or a value ------------------------------------------------------------

COMMON = {kebab(name) for name in RunConfig.model_fields if name != "params"}
SWEEPS = "several values are several runs: write `grid: {%s}` in a preset for `fedhet sweep`"
_PLAIN = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
}
_FORMS = {
    "split": "write train:val:test as whole numbers, such as 8:1:1",
    "device": "write auto, cpu, cuda or cuda:N",
    "name": "use up to 64 of A-Z a-z 0-9 . _ - and no spaces",
}
_TEXTS = {*PATHS, "labels", "target", "text", "client-keys", "name"}  # any commas


def method_keys(method: Method) -> set[str]:
    """Return the kebab-case keys that only this method accepts."""
    return {kebab(name) for name in method.params.model_fields}


def unknown_key(key: str, method: str, own: set[str]) -> str:
    """One line on a key that neither every run nor ``method``, with its ``own`` keys, has."""
    if key == "params":
        return f"params: unknown key; write the method's keys beside the others: {sorted(own)}"
    if key in {"grid", "paired", "title"}:
        return f"{key}: this is a preset of many runs: `fedhet sweep` runs them"
    plain, owners = re.sub("[-_]+", "-", key.lower()).strip("-"), dict[str, list[str]]()
    for name, known in METHODS.items():
        for other in method_keys(known) - own:
            owners.setdefault(other, []).append(name)
    if plain in owners:
        only = " or ".join(owners[plain])
        return f"{key}: only method {only} has this key, and method is '{method}'"
    for name, field in RunConfig.model_fields.items():  # a symbol of the papers
        if re.match(rf"{re.escape(key)}[ ,;]", f"{field.description} "):
            return f"{key}: unknown key; did you mean '{kebab(name)}' ({key})?"
    hint = nearest(plain, sorted(COMMON | own | owners.keys() | {"grid"}))
    whose = [
        f"{k} is a key of {', '.join(names)}" for k, names in owners.items() if f"'{k}'" in hint
    ]
    return f"{key}: unknown key{hint}{''.join(f'; {one}' for one in whose)}"


def check_single(schema: type[Schema], key: str, value: Any) -> None:
    """UserError for several values where a key takes one."""
    field = schema.model_fields[key.replace("-", "_")]
    listed = isinstance(value, str) and "," in value and key not in _TEXTS
    listed = listed and not value.startswith("flwr:")  # whose arguments may be lists
    if isinstance(field.default, tuple) or not (listed or isinstance(value, list)):
        return
    if isinstance(field.default, float) and re.fullmatch(r"-?\d+,\d+", str(value)):
        raise UserError(f"{key}: '{value}' is not allowed: write {str(value).replace(',', '.')}")
    values = value if isinstance(value, list) else [part.strip() for part in value.split(",")]
    shown = f"{key}: [{', '.join(map(str, values))}]"
    raise UserError(f"{key}: '{value}' is not allowed: one value is needed; {SWEEPS % shown}")


def wrong_value(schema: type[Schema], key: str, value: Any, error: Mapping[str, Any]) -> str:
    """One line on a value that does not fit: what is allowed, in words."""
    meaning = schema.model_fields[key.replace("-", "_")].description or key
    shown = f"{key}: '{value}' is not allowed"
    kind = error["type"]
    if kind in _PLAIN:
        return f"{shown}: {_PLAIN[kind]} is needed ({meaning})"
    if key in _FORMS:
        return f"{shown}: {_FORMS[key]}"
    reason = error["msg"][0].lower() + error["msg"][1:]
    return f"{shown}: {reason} ({meaning})"

"""Checks of a whole configuration: keys without effect, values that exclude others, messages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedhet.config.registry import METHODS, find_method, method_keys
from fedhet.config.schema import PATHS, TUNABLE, RunConfig, Schema, kebab
from fedhet.data.inputs import DATASETS, HUB, IMAGE, SIGNAL, family, kind_of
from fedhet.errors import UserError, nearest
from fedhet.models.names import small_name, validate_model_name
from fedhet.plugins import is_given, is_own

COMMON = {kebab(name) for name in RunConfig.model_fields if name != "params"}
DEFAULTS = {kebab(name): field.default for name, field in RunConfig.model_fields.items()}

# --- keys without effect --------------------------------------------------------------------------

_FORM = ("columns", "separator", "decimal", "thousands", "quote", "encoding", "sheet", "gaps")
_READ_BY: dict[tuple[str, ...], tuple[str, ...]] = {  # keys that describe files, and of what
    ("target", "labels", "site", "group", "split-by", *_FORM): (*DATASETS, "image-folder"),
    ("categories", "numbers"): ("table",),
    ("ignore",): ("table", "signals", "image-folder"),
    ("image",): ("image-folder",),
    ("text", "vocabulary"): ("texts",),
    ("length",): ("texts", "signals"),
    ("scale", "axes", "channels", "time"): ("signals",),
    ("window",): ("image-folder",),
}
_SUMS = ("sum-range", "sum-min", "sum-threshold", "sum-owners", "sum-metrics")
_HUB = {"table", "texts"}  # what a data set of the hub may be read as


class Idle(NamedTuple):
    """Why a key changes nothing, and whether it is refused off its default or only noted."""

    why: str
    refused: bool


def idle(config: RunConfig, *, deployed: bool = False) -> dict[str, Idle]:
    """Return the keys that change nothing in this configuration.

    Those are noted that presets and sweeps carry for runs in which they have a meaning; refused,
    those that would promise what does not happen. ``deployed``: the clients are nodes of a network.
    """
    data, kind, rule = config.dataset, config.partition, config.aggregation
    file, built_in = kind == "file", data == "digits" or data.startswith("synthetic")
    sums, strategy = f"secure-sum={config.secure_sum}", find_method(config.method).strategy
    of_other, method = f"partition={kind}; it is for partition=", f"method={config.method}"
    given = f"your data are read as {data.partition(':')[0]} (texts of a frame need text=)"
    shown = given if is_given(data) else f"dataset={data}"
    noted: list[tuple[bool, str, Sequence[str]]] = [
        (file, "the partition-file has the split of each image", ["split"]),
        (file and not built_in, "the partition-file names the clients", ["partition-seed"]),
        (len(config.models) == 1, "all clients have the same model", ["model-assignment"]),
        (built_in, f"dataset={data} reads no file", ["data-path"]),
        (kind_of(data) not in {"", IMAGE}, f"dataset={data} is not images",
         ["image-size", "grey", "standardise"]),
        (rule != "mean", f"aggregation={rule} does not use weights", ["weighting"]),
        (config.local_steps > 0, f"local-steps={config.local_steps}", ["local-epochs"]),
        (config.engine == "inline", "engine=inline runs all clients in one process", ["actors"]),
        (not deployed, "a simulation waits for all of its clients",
         ["round-timeout", "start-timeout", "late", "late-after", "late-weight"]),
        (config.late == "drop", "late=drop", ["late-after", "late-weight"]),
        (not config.summed, sums, _SUMS),
        (config.fraction == 1 and not deployed, "fraction=1 samples every client in every round",
         ["evaluate-all"]),
        (config.summed and config.sum_metrics,
         "with sum-metrics only the clients of a round are evaluated", ["evaluate-all"]),
        (not deployed, "it is for runs with --superlink", ["client-keys"]),
        (deployed, "with --superlink every node sets its own",
         ["data-path", "actors", "state-dir", "keep-state"]),
        (not kind.startswith(("dirichlet", "quantity")), f"{of_other}dirichlet or quantity",
         ["alpha"]),
        (kind != "classes-per-client", f"{of_other}classes-per-client", ["classes-per-client"]),
    ]  # fmt: skip
    refused: list[tuple[bool, str, Sequence[str]]] = [
        *((family(data) not in of and not (data.startswith(HUB) and _HUB & {*of}),
           f"{shown}; it is for dataset={' or '.join(of)}", keys)
          for keys, of in _READ_BY.items()),
        (not file, f"{of_other}file", ["partition-file"]),
        (config.optimizer == "adam", "optimizer=adam", ["momentum"]),
        (rule != "trimmed-mean", f"aggregation={rule}; it is for trimmed-mean", ["trim"]),
        (rule != "mean", f"aggregation={rule} does not use weights", ["max-weight"]),
        (not strategy.shares_small_model, f"{method} shares no model", ["small-model"]),
        *((True, f"{method}: {why}", [key])
          for key, why in strategy.ignores(config, config.params).items()),
        (config.summed, f"{sums}: the server sees no single uploads",
         ["aggregation", "max-weight", "max-update-norm", "max-update-ratio"]),
    ]  # fmt: skip
    return {
        key: Idle(why, refuses)
        for refuses, rows in ((False, noted), (True, refused))
        for holds, why, keys in rows
        if holds
        for key in keys
    }


def off_default(config: RunConfig, keys: Iterable[str]) -> list[str]:
    """Return those of the common ``keys`` that are not at their defaults."""
    return [
        key
        for key in keys
        if key in COMMON and getattr(config, key.replace("-", "_")) != DEFAULTS[key]
    ]


def check_idle(config: RunConfig, values: Mapping[str, Any]) -> None:
    """Raise UserError for a key of ``values`` off its default that is refused where it is idle."""
    without = idle(config)
    for key in off_default(config, values):
        if key in without and without[key].refused:
            raise UserError(f"{key}: '{values[key]}' has no effect: {without[key].why}")


def idle_notes(
    config: RunConfig, values: Mapping[str, Any], *, deployed: bool = False
) -> list[str]:
    """Return a line for each key of ``values``, which somebody gave, that changes nothing."""
    without = idle(config, deployed=deployed)
    return [f"{key}={values[key]} has no effect: {without[key].why}" for key in values
            if key in without]  # fmt: skip


def check_cells(configs: Iterable[RunConfig], given: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the ``given`` keys that changes nothing in any cell of a sweep."""
    cells = [idle(config) for config in configs] or [{}]
    everywhere = [key for key in given if all(key in reasons for reasons in cells)]
    return [f"{key}={given[key]} has no effect: {cells[0][key].why}" for key in everywhere]


# --- values that do not go together ---------------------------------------------------------------


def check_combinations(config: RunConfig) -> None:
    """Raise UserError for settings that are fine alone and impossible together."""
    strategy, kind = find_method(config.method).strategy, kind_of(config.dataset)
    for model in config.models:
        validate_model_name(model, kind)
    functions = [function for _, (function,) in config.metrics]
    foreign = next((f for f in functions if not (config.summed or is_own("metric", f))), "")
    noise = ("dp-clip", "dp-epsilon", "dp-delta")
    missing = [key for key in noise if key not in off_default(config, noise)]
    tuned = TUNABLE | method_keys(config.method)
    untuned = next((key for key in config.tuned if key not in tuned), "")
    # Of files it shows when they are opened: a folder of several names its clients.
    siteless = kind and family(config.dataset) not in {*DATASETS, "image-folder"}
    method, late = f"is not allowed with method={config.method}", config.late == "next"
    for holds, text in (
        (functions and config.summed,
         "metrics: own metrics are not allowed with secure-sum: clients send sums"),
        (foreign, f"metrics: '{foreign}' is not of the form module:function"),
        (config.partition == "file" and not config.partition_file,
         "partition-file: '' is not allowed: partition=file needs the path of a CSV"),
        (config.split[2] == 0,
         "split: its test share is 0, must be at least 1 to measure accuracy"),
        (config.name in {".", ".."},
         f"name: '{config.name}' is not allowed: it must name a folder below out"),
        (0 < len(missing) < len(noise), f"{(*missing, '')[0]}: 0 is not allowed: dp-clip, "
         "dp-epsilon and dp-delta are needed together"),
        (config.partition == "natural" and siteless,
         f"partition: 'natural' is not allowed with dataset={config.dataset}: its examples name "
         "no client; use partition=file with a partition-file"),
        (untuned, f"tuned: '{untuned}' is not allowed: {', '.join(sorted(TUNABLE))}, or a key "
         "of the method; runs that differ in other keys are not compared"),
        (config.aggregation not in strategy.aggregations, f"aggregation: '{config.aggregation}' "
         f"{method}, which combines uploads itself; allowed: {', '.join(strategy.aggregations)}"),
        (config.summed and strategy.not_summed,
         f"secure-sum: '{config.secure_sum}' {method}: {strategy.not_summed}"),
        (late and config.summed, f"late: 'next' {method}: the sum of a round is that of its "
         "members"),
        (late and config.aggregation != "mean",
         f"late: 'next' {method}: a median or trimmed mean has no weights"),
        (late and not strategy.weighs_late,
         f"late: 'next' {method}: its server uses no weights of uploads"),
    ):  # fmt: skip
        if holds:
            raise UserError(text)
    if config.clients:
        check_replies(config)
    if strategy.shares_small_model:
        small_name(config, kind)
    check_kind(config, kind)
    strategy.check_aggregate(config)
    strategy.check_config(config, config.params)


def check_kind(config: RunConfig, kind: str) -> None:
    """Raise UserError if method or `augment` do not work with that ``kind`` (empty: unknown)."""
    refuses = find_method(config.method).strategy.refuses
    where = f"is not allowed with dataset={config.dataset} (kind {kind})"
    if kind in refuses:
        raise UserError(f"method: '{config.method}' {where}: {refuses[kind]}")
    of = {"crop-flip": IMAGE, "flip-erase-crop": IMAGE, "jitter-scale": SIGNAL}
    fitting = of.get(config.augment, kind)
    if kind not in {"", fitting}:
        raise UserError(f"augment: '{config.augment}' {where}: it is for {fitting}s")


def check_replies(config: RunConfig) -> None:
    """Raise UserError if a round has too few clients, or too many; ``clients`` is known."""
    size = config.cohort(config.clients)
    small = f"is more than the {size} clients of a round (fraction x clients)"
    if config.min_replies > size:
        raise UserError(f"min-replies: {config.min_replies} {small}")
    if not config.summed:
        return
    from fedhet.sums.masks import SumTerms, fraction_bits  # noqa: PLC0415  (imports Flower)

    if size < config.sum_min:
        raise UserError(f"sum-min: {config.sum_min} {small}")
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


# --- messages about a key or a value --------------------------------------------------------------

_TEXTS = {*PATHS, "labels", "target", "text", "name"}  # any commas


def unknown_key(key: str, method: str) -> str:
    """Return one line on a key that neither every run nor ``method`` has, with one hint."""
    if key in {"grid", "paired", "title"}:
        return f"{key}: this is a preset of many runs: `fedhet sweep` runs them"
    plain, keys = re.sub("[-_]+", "-", key.lower()).strip("-"), method_keys(method)
    owners = [name for name in METHODS if plain in method_keys(name)]
    if owners and plain not in keys:
        return f"{key}: only method {' or '.join(owners)} has this key, and method is '{method}'"
    return f"{key}: unknown key{nearest(plain, sorted(COMMON | keys | {'grid'}))}"


def check_single(schema: type[Schema], key: str, value: Any) -> None:
    """Raise UserError for several values where a key takes one."""
    field = schema.model_fields[key.replace("-", "_")]
    listed = isinstance(value, str) and "," in value and key not in _TEXTS
    listed = listed and not value.startswith("flwr:")  # whose arguments may be lists
    if isinstance(field.default, tuple) or not (listed or isinstance(value, list)):
        return
    if isinstance(field.default, float) and re.fullmatch(r"-?\d+,\d+", str(value)):
        raise UserError(f"{key}: '{value}' is not allowed: write {str(value).replace(',', '.')}")
    values = value if isinstance(value, list) else [part.strip() for part in value.split(",")]
    raise UserError(
        f"{key}: '{value}' is not allowed: one value is needed; several values are several runs: "
        f"write `grid: {{{key}: [{', '.join(map(str, values))}]}}` in a preset for `fedhet sweep`"
    )


def wrong_value(schema: type[Schema], key: str, value: Any, reason: str) -> str:
    """Return one line on a value that does not fit, with pydantic's ``reason`` and the meaning."""
    meaning = schema.model_fields[key.replace("-", "_")].description or key
    reason = reason.replace("Input should be", "it must be")
    reason = reason[0].lower() + reason[1:]
    return f"{key}: '{value}' is not allowed: {reason} ({meaning})"

"""A run's configuration: defaults < YAML < ``key=value``; every mistake is one line."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedhet import TOP
from fedhet.config.registry import METHODS, find_method, method_keys, method_name
from fedhet.config.schema import FORM, METRICS, PATHS, TUNABLE, RunConfig, Schema, kebab
from fedhet.data.inputs import DATASETS, HUB, IMAGE, SIGNAL, family, kind_of
from fedhet.errors import UserError, nearest, one_line
from fedhet.files import parse_object, plain_path, read_yaml
from fedhet.models.names import DEFAULT_GROUP, expand, small_name, validate_model_name
from fedhet.plugins import is_given, is_own

S = TypeVar("S", bound=Schema)
COMMON = {kebab(name) for name in RunConfig.model_fields if name != "params"}
# Keys that `fedhet resume` may change: where a run computes, how long, and when it gives up.
RESUMABLE = (
    "engine", "rounds", "actors", "min-replies", "max-skipped-rounds", "round-timeout",
    "start-timeout", "keep-state", "state-dir", "tracker",
)  # fmt: skip


def read_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """``key=value`` words of a command line; a key given twice: the last wins."""
    overrides: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(
                f"'{pair}' is not a setting: write KEY=VALUE without spaces around '=', such as "
                'rounds=20; put a value that has spaces in quotes, such as "labels={ill: [yes]}"'
            )
        overrides[key.strip()] = value.strip()
    return overrides


def find_preset(name: str) -> Path:
    """Return a YAML file by its path, or by its name in ``configs``; UserError if there is none."""
    path = Path(name).expanduser()
    if path.suffix in {".yaml", ".yml"}:
        return path
    if path.is_file():
        raise UserError(
            f"config '{name}' is no .yaml file: `fedhet init {name}` writes a preset for data"
        )
    folder = TOP / "configs"
    files = sorted(folder.rglob("*.yaml"))
    shipped = {str(file.relative_to(folder).with_suffix("")): file for file in files}
    name = method_name(name)  # FedSSA is fedssa here as well
    if name not in shipped:
        raise UserError(
            f"config '{name}' is neither a file nor a preset{nearest(name, list(shipped))}; "
            f"presets: {', '.join(shipped)}"
        )
    return shipped[name]


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Merge defaults, the preset and the command line, and check the whole."""
    return load_noted(path, overrides)[0]


def load_noted(
    path: Path | None, overrides: Sequence[str] | Mapping[str, Any] = (), *, deployed: bool = False
) -> tuple[RunConfig, list[str]]:
    """As :func:`load_config`; with a line for every key that somebody set in vain.

    ``overrides`` may be values by key; ``deployed``: the run goes to a network.
    """
    preset = read_yaml(path) if path else {}
    new = dict(overrides) if isinstance(overrides, Mapping) else read_overrides(overrides)
    method = method_name(str(preset.get("method", "fedssa")))
    if method_name(str(new.get("method", method))) != method:
        # The preset's keys of the old method make no sense for the new one.
        old = method_keys(method)
        preset = {key: value for key, value in preset.items() if key not in old}
    config = build_config({**preset, **new})
    # A preset's key may have lost its effect to an override; a run's own config.yaml has them all.
    changed = off_default(config)
    written = {key: value for key, value in preset.items() if key in changed}
    return config, idle_notes([config], written | new, deployed=deployed)


def resumed_config(started: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """Return a run's first configuration, changed where resuming may change it."""
    keys = method_keys(str(started.get("method", "fedssa")))
    for key in changes:
        if key in (COMMON | keys) - set(RESUMABLE):
            raise UserError(
                f"{key}: cannot be changed in a resumed run, whose rounds must stay comparable; "
                f"allowed: {', '.join(RESUMABLE)}"
            )
    config = build_config({**started, **changes})
    planned = (
        (config.lr_schedule != "constant", f"lr-schedule={config.lr_schedule}"),
        (find_method(config.method).strategy.plans_rounds, f"method={config.method}"),
        (config.dp_clip > 0, "the noise of dp-clip"),
    )
    if config.rounds != started["rounds"] and (what := next((w for is_, w in planned if is_), "")):
        raise UserError(
            f"rounds: {config.rounds} is not allowed: {what} depends on the number of rounds, and "
            f"this run began with {started['rounds']}; start a new run"
        )
    return config


def build_config(values: Mapping[str, Any]) -> RunConfig:
    """Check a flat mapping of keys; raises :class:`UserError` for the first mistake."""
    name = method_name(str(values.get("method", "fedssa")))
    method, keys = find_method(name), method_keys(name)
    for key in sorted(keys & COMMON):
        raise UserError(f"method '{name}': its key '{key}' is a common key: rename it")
    for key in values:
        if key not in COMMON | keys:
            raise UserError(unknown_key(key, name))
    params = _validate(method.params, {k: v for k, v in values.items() if k in keys})
    common = {k: v for k, v in values.items() if k in COMMON}
    config = _validate(RunConfig, common | {"method": name})
    group = DEFAULT_GROUP[kind_of(config.dataset) or IMAGE]
    models = config.models if "models" in values else (group,)
    config = config.model_copy(update={"params": params, "models": expand(models)})
    reasons, changed = idle(config, carried=False), off_default(config)
    if wrong := [key for key in values if key in reasons and key in changed]:
        key = wrong[0]
        raise UserError(f"{key}: '{values[key]}' has no effect: {reasons[key]}")
    check_combinations(config)
    return config


def _validate(schema: type[S], values: Mapping[str, Any]) -> S:
    """Return the values checked; UserError with pydantic's reason, the meaning and a hint."""
    fields = {kebab(name): field for name, field in schema.model_fields.items()}
    wrong: list[tuple[str, Any, str]] = [  # pydantic would count a truth value
        (key, str(value).lower(), "it must be a number") for key, value in values.items()
        if isinstance(value, bool) and fields[key].annotation in (int, float)
    ]  # fmt: skip
    try:
        if not wrong:
            return schema.model_validate(dict(values))
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        key = str(error["loc"][0])
        reason = error["msg"].replace("Input should be", "it must be")
        wrong = [(key, values.get(key, error["input"]), reason[0].lower() + reason[1:])]
    key, value, reason = wrong[0]
    many = "; several values are a `grid` of `fedhet sweep`" if "," in str(value) else ""
    meaning = fields[key].description or key
    raise UserError(f"{key}: '{one_line(value)}' is not allowed: {reason} ({meaning}){many}")


def absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with paths that mean the same in every process."""
    paths = {key: str(getattr(config, key)) for key in (path.replace("-", "_") for path in PATHS)}
    return config.model_copy(update={k: str(plain_path(path)) for k, path in paths.items() if path})


def envelope(config: RunConfig, run: Mapping[str, Any]) -> str:
    """Return the ``config`` scalar of Flower's run config: configuration and identity as JSON."""
    return json.dumps({"config": config.flat(), "run": dict(run)}, separators=(",", ":"))


def from_run_config(run_config: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration and the run's identity from a Flower run config.

    ``fedhet run`` sends :func:`envelope`; a plain ``flwr run`` sends the scalars of
    ``[tool.flwr.app.config]``, for which the identity is empty. ``models`` and methods'
    own keys that are "" are unset: Flower takes no override that is not there.
    """
    text = str(run_config.get("config", ""))
    if text:
        loaded = parse_object(text, "run config", "config")
        return build_config(loaded["config"]), dict(loaded["run"])
    settable = COMMON - {"models"}
    return build_config({k: v for k, v in run_config.items() if v != "" or k in settable}), {}


# --- keys without effect --------------------------------------------------------------------------

_READ_BY: dict[str, tuple[str, ...]] = {  # keys that describe files, and of what
    f"target labels site group split-by {' '.join(FORM)}": (*DATASETS, "image-folder"),
    "categories numbers": ("table",),
    "ignore": ("table", "signals", "image-folder"),
    "image": ("image-folder",),
    "text vocabulary": ("texts",),
    "length": ("texts", "signals"),
    "scale axes channels time": ("signals",),
    "window": ("image-folder",),
}
_HUB = {"table", "texts"}  # what a data set of the hub may be read as


def idle(config: RunConfig, *, deployed: bool = False, carried: bool = True) -> dict[str, str]:
    """Return the keys that change nothing in this configuration, and why.

    ``deployed``: the clients are nodes of a network. Not ``carried``: without those that presets
    and sweeps carry for runs in which they have a meaning; off its default any other is an error.
    """
    data, kind, rule, sums = config.dataset, config.partition, config.aggregation, config.summed
    strategy, method = find_method(config.method).strategy, f"method={config.method}"
    file, built_in = kind == "file", data == "digits" or data.startswith("synthetic")
    of_other = f"partition={kind}; it is for partition="
    from_python = f"your data are read as {data.partition(':')[0]} (texts of a frame need text=)"
    shown = from_python if is_given(data) else f"dataset={data}"
    noted = (  # keys, why they change nothing, whether that is so
        ("split", "the partition-file has the split of each image", file),
        ("partition-seed", "the partition-file names the clients", file and not built_in),
        ("model-assignment", "all clients have the same model", len(config.models) == 1),
        ("data-path", f"dataset={data} reads no file", built_in),
        ("image-size grey standardise", f"dataset={data} is not images",
         kind_of(data) not in {"", IMAGE}),
        ("weighting", f"aggregation={rule} does not use weights", rule != "mean"),
        ("local-epochs", f"local-steps={config.local_steps}", config.local_steps),
        ("actors", "engine=inline runs all clients in one process", config.engine == "inline"),
        ("round-timeout start-timeout late late-after late-weight",
         "a simulation waits for all of its clients", not deployed),
        ("late-after late-weight", "late=drop", config.late == "drop"),
        ("sum-range sum-min sum-threshold sum-owners sum-metrics", "secure-sum=off", not sums),
        ("evaluate-all", "fraction=1 samples every client in every round",
         config.fraction == 1 and not deployed),
        ("evaluate-all", "with sum-metrics only the clients of a round are evaluated",
         sums and config.sum_metrics),
        ("client-keys", "it is for runs with --superlink", not deployed),
        ("data-path actors state-dir keep-state", "with --superlink every node sets its own",
         deployed),
        ("alpha", f"{of_other}dirichlet or quantity", not kind.startswith(("dirichlet", "quan"))),
        ("classes-per-client", f"{of_other}classes-per-client", kind != "classes-per-client"),
    )  # fmt: skip
    refused = (
        *((keys, f"{shown}; it is for dataset={' or '.join(of)}",
           family(data) not in of and not (data.startswith(HUB) and _HUB & {*of}))
          for keys, of in _READ_BY.items()),
        ("partition-file", f"partition={kind}; it is for partition=file", not file),
        ("momentum", "optimizer=adam", config.optimizer == "adam"),
        ("trim", f"aggregation={rule}; it is for trimmed-mean", rule != "trimmed-mean"),
        ("max-weight", f"aggregation={rule} does not use weights", rule != "mean"),
        ("small-model", f"{method} shares no model", not strategy.shares_small_model),
        *((key, f"{method}: {why}", True)
          for key, why in strategy.ignores(config, config.params).items()),
        ("aggregation max-weight max-update-norm max-update-ratio",
         f"secure-sum={config.secure_sum}: the server sees no single uploads", sums),
    )  # fmt: skip
    rows: tuple[tuple[str, str, object], ...] = (*noted, *refused) if carried else refused
    return {key: why for keys, why, holds in rows if holds for key in keys.split()}


def off_default(config: RunConfig) -> set[str]:
    """Return the common keys that are not at their defaults."""
    return set(config.model_dump(exclude_defaults=True))


def idle_notes(
    configs: Iterable[RunConfig], values: Mapping[str, Any], *, deployed: bool = False
) -> list[str]:
    """Return a line for each key of ``values``, which somebody gave, that is idle in every run."""
    runs = [idle(config, deployed=deployed) for config in configs] or [{}]
    everywhere = [key for key in values if all(key in reasons for reasons in runs)]
    return [f"{key}={values[key]} has no effect: {runs[0][key]}" for key in everywhere]


# --- values that do not go together ---------------------------------------------------------------


def check_combinations(config: RunConfig) -> None:
    """Raise UserError for settings that are fine alone and impossible together."""
    strategy, kind = find_method(config.method).strategy, kind_of(config.dataset)
    for model in config.models:
        validate_model_name(model, kind)
    name = re.compile(r"(?!.*accuracy)[a-z][a-z0-9_]{0,39}")
    odd = [n for n, of in config.metrics if n in METRICS or not name.fullmatch(n) or len(of) != 1]
    foreign = [one for _, of in config.metrics for one in of if not is_own("metric", one)]
    window = ",".join(f"{end:g}" for end in config.window)
    noise = ("dp-clip", "dp-epsilon", "dp-delta")
    missing = [key for key in noise if key not in off_default(config)]
    tuned = TUNABLE | method_keys(config.method)
    untuned = next((key for key in config.tuned if key not in tuned), "")
    # Of files it shows when they are opened: a folder of several names its clients.
    siteless = kind and family(config.dataset) not in {*DATASETS, "image-folder"}
    method, late = f"is not allowed with method={config.method}", config.late == "next"
    for holds, text in (
        (odd, f"metrics: '{(*odd, '')[0]}' cannot be a metric's name, or has not one function: "
         "write {name: module:function}, the name up to 40 of a-z 0-9 _, none of ours and "
         "without 'accuracy'"),
        (config.window and config.window[0] >= config.window[-1],
         f"window: '{window}' is not allowed: LOW,HIGH, of which LOW must be less than HIGH"),
        (config.metrics and config.summed,
         "metrics: own metrics are not allowed with secure-sum: clients send sums"),
        (foreign, f"metrics: '{(*foreign, '')[0]}' is not of the form module:function"),
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
    strategy.check_hooks(config)
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


def unknown_key(key: str, method: str) -> str:
    """Return one line on a key that neither every run nor ``method`` has, with one hint."""
    if key in {"grid", "paired"}:
        return f"{key}: this is a preset of many runs: `fedhet sweep` runs them"
    if key == "title":  # of older presets, such as those that `tune` wrote
        return "title: reports name a setting by its keys: remove this line"
    plain, keys = re.sub("[-_]+", "-", key.lower()).strip("-"), method_keys(method)
    owners = [name for name in METHODS if plain in method_keys(name)]
    if owners and plain not in keys:
        return f"{key}: only method {' or '.join(owners)} has this key, and method is '{method}'"
    return f"{key}: unknown key{nearest(plain, sorted(COMMON | keys | {'grid'}))}"

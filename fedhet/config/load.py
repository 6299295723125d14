"""Reads a run's configuration: defaults < YAML < ``key=value``, every mistake in one line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedhet import plugins
from fedhet.config import checks
from fedhet.config.checks import (
    COMMON,
    OF_SINGLE,
    check_single,
    method_keys,
    unknown_key,
    wrong_value,
)
from fedhet.config.registry import METHODS, Method
from fedhet.config.schema import KEY_POLICIES, TUNABLE, Params, RunConfig, Schema, kebab
from fedhet.data.inputs import DATASETS, IMAGE, SIGNAL, is_hub, kind_of
from fedhet.errors import UserError
from fedhet.files import near, parse_object, read_yaml
from fedhet.models.names import DEFAULT_GROUP, expand, small_name, validate_model_name

if TYPE_CHECKING:
    from fedhet.strategies.base import MethodStrategy

# Keys that `fedhet resume` may change: where a run computes, how long, and when it gives up.
RESUMABLE = (
    "engine", "rounds", "actors", "min-replies", "max-skipped-rounds", "round-timeout",
    "start-timeout", "keep-state", "state-dir", "tracker",
)  # fmt: skip

KEPT = 4  # configurations that a process hands on
_handed: dict[str, RunConfig] = {}  # by the text that went with them


def find_method(name: str) -> Method:
    """Return the method of that name; raise UserError with the nearest name if there is none."""
    name = method_name(name)
    if name in METHODS:
        return METHODS[name]
    check_single(RunConfig, "method", name)
    if not plugins.is_own("method", name):
        known = [*METHODS, *plugins.installed("method")]
        raise UserError(
            f"method: unknown value '{name}'{plugins.hint('method', name, known)}; "
            f"allowed: {', '.join(known)} "
            "or your own module:METHOD"
        )
    found = plugins.load("method", name)
    if not isinstance(found, Method):
        raise UserError(
            f"method '{name}' is a {type(found).__name__}, must be a fedhet.config.registry.Method"
        )
    return found


def method_name(name: str) -> str:
    """Return the name here of a method as the papers write it (FedSSA, LG-FedAvg)."""
    plain = name.strip().lower().replace("-", "_")
    return plain if plain in METHODS else name.strip()


def folder_name(method: str) -> str:
    """Return what a run of the method is called by default: of ``module:METHOD`` the module."""
    module, _, name = method.rpartition(":")
    return (module if module and name == "METHOD" else name)[:40]


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


def load_config(
    path: Path | None, overrides: Sequence[str] = (), *, changes: Mapping[str, Any] | None = None
) -> RunConfig:
    """Merge defaults, the preset and the command line, and check the whole.

    ``changes`` are overrides that are values already.
    """
    return load_noted(path, overrides, changes=changes)[0]


def load_noted(
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    changes: Mapping[str, Any] | None = None,
    deployed: bool = False,
) -> tuple[RunConfig, list[str]]:
    """As :func:`load_config`; with a line for every key that somebody set in vain.

    ``deployed``: the run goes to a network.
    """
    preset = read_yaml(path) if path else {}
    new = {**read_overrides(overrides), **(changes or {})}
    for values in (preset, new):
        if isinstance(values.get("method"), str):
            values["method"] = method_name(values["method"])
    if "method" in new and new["method"] != preset.get("method", "fedssa"):
        # The preset's keys of the old method make no sense for the new one.
        old = method_keys(find_method(str(preset.get("method", "fedssa"))))
        preset = {key: value for key, value in preset.items() if key not in old}
    config = build_config({**preset, **new})
    # A preset's key may have lost its effect to an override; a run's own config.yaml has them all.
    defaults = RunConfig().flat()
    written = {key: value for key, value in preset.items() if value != defaults.get(key)}
    if "partition" in new:
        written = {key: v for key, v in written.items() if key not in checks.REFUSED}
    return config, checks.check_idle(config, {**written, **new}, deployed=deployed)


def resumed_config(started: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """Return a run's first configuration, changed where resuming may change it."""
    own = method_keys(find_method(str(started.get("method", "fedssa"))))
    for key in changes:
        if key in (COMMON | own) - set(RESUMABLE):
            raise UserError(
                f"{key}: cannot be changed in a resumed run, whose rounds must stay comparable; "
                f"allowed: {', '.join(RESUMABLE)}"
            )
    config = build_config({**started, **changes})
    planned = {
        f"lr-schedule={config.lr_schedule}": config.lr_schedule != "constant",
        f"method={config.method}": find_method(config.method).strategy.plans_rounds,
        "the noise of dp-clip": config.dp_clip > 0,
    }
    for what in (what for what, holds in planned.items() if holds):
        if config.rounds != started["rounds"]:
            raise UserError(
                f"rounds: {config.rounds} is not allowed: {what} depends on the number of "
                f"rounds, and this run began with {started['rounds']}; start a new run"
            )
    return config


def build_config(values: Mapping[str, Any]) -> RunConfig:
    """Check a flat mapping of keys; raises :class:`UserError` for the first mistake."""
    name = method_name(str(values.get("method", "fedssa")))
    if isinstance(values.get("method"), list):
        check_single(RunConfig, "method", values["method"])
    method, values = find_method(name), {**values, "method": name}
    own = method_keys(method)
    values = values if checks.HIDE_CLASSES in own else checks.without_gone(values)
    taken = sorted(own & COMMON)
    if taken:
        raise UserError(
            f"method '{values.get('method')}': its key '{taken[0]}' is a common key: rename it"
        )
    for key in values:
        if key not in COMMON | own:
            raise UserError(unknown_key(key, name, own))
    params = _validate(method.params, {k: v for k, v in values.items() if k in own})
    config = _validate(RunConfig, {k: v for k, v in values.items() if k in COMMON})
    assert isinstance(config, RunConfig) and isinstance(params, Params)
    kind = kind_of(config.dataset)
    group = DEFAULT_GROUP[kind or IMAGE]
    models = config.models if "models" in values else (group,)
    config = config.model_copy(update={"params": params, "models": expand(models)})
    for key, why in _without_effect(config, method.strategy):
        field = key.replace("-", "_")
        if getattr(config, field) != RunConfig.model_fields[field].default:
            raise UserError(f"{key}: '{values[key]}' has no effect with {why}")
    _check_combinations(config)
    if method.strategy.shares_small_model:
        small_name(config, kind or IMAGE, method.strategy.own_small(params))
    check_kind(config, kind)
    if config.aggregation not in method.strategy.aggregations:
        raise UserError(
            f"aggregation: '{config.aggregation}' is not allowed with method={config.method}, "
            f"which combines uploads itself; allowed: {', '.join(method.strategy.aggregations)}"
        )
    if config.summed and method.strategy.not_summed:
        raise UserError(
            f"secure-sum: '{config.secure_sum}' is not allowed with method={config.method}: "
            f"{method.strategy.not_summed}"
        )
    method.strategy.check_config(config, params)
    if method.strategy.public_set != "nobody":
        _check_public(config)
    return config


def check_kind(config: RunConfig, kind: str) -> None:
    """Raise UserError if method or `augment` do not work with that ``kind`` (empty: unknown)."""
    refuses = find_method(config.method).strategy.refuses
    where = f"is not allowed with dataset={config.dataset} (kind {kind})"
    if kind in refuses:
        raise UserError(f"method: '{config.method}' {where}: {refuses[kind]}")
    of = {"crop-flip": IMAGE, "flip-erase-crop": IMAGE, "jitter-scale": SIGNAL}
    own = of.get(config.augment, kind)
    if kind not in {"", own}:
        raise UserError(f"augment: '{config.augment}' {where}: it is for {own}s")


def _check_public(config: RunConfig) -> None:
    """UserError for a public data set that is missing, or is the clients' own."""
    public = (config.public_dataset or "image-folder", config.public_path)
    if not any((config.public_dataset, config.public_path)):
        raise UserError(
            f"public-path: '' is not allowed with method={config.method}, which needs a public "
            "data set: give public-path=FOLDER, or public-dataset=NAME"
        )
    if public == (config.dataset, config.data_path) and not public[0].startswith("synthetic"):
        raise UserError(
            f"public-{'path' if public[1] else 'dataset'}: '{public[1] or public[0]}' is not "
            "allowed: it is what the clients' own examples are taken from"
        )


def _validate(schema: type[Schema], values: Mapping[str, Any]) -> Schema:
    for key, value in values.items():
        check_single(schema, key, value)
        annotation = schema.model_fields[key.replace("-", "_")].annotation
        if isinstance(value, bool) and annotation in (int, float):
            kind = {"type": "int_type" if annotation is int else "float_type"}
            raise UserError(wrong_value(schema, key, str(value).lower(), kind))
    try:
        return schema.model_validate(dict(values))
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        key = str(error["loc"][0])
        raise UserError(wrong_value(schema, key, values.get(key, error["input"]), error)) from None


def _check_combinations(config: RunConfig) -> None:
    """Refuse settings that are fine alone and impossible together."""
    for model in config.models:
        try:
            validate_model_name(model, kind_of(config.dataset))
        except UserError:
            _check_data_path(config)
            raise
    if config.partition == "file" and not config.partition_file:
        raise UserError("partition-file: '' is not allowed: partition=file needs the path of a CSV")
    if config.split[2] == 0:
        raise UserError("split: its test share is 0, must be at least 1 to measure accuracy")
    if config.name in {".", ".."}:
        raise UserError(f"name: '{config.name}' is not allowed: it must name a folder below out")
    if config.client_keys not in KEY_POLICIES and not Path(config.client_keys).is_absolute():
        raise UserError(
            f"client-keys: '{config.client_keys}' is not allowed: {', '.join(KEY_POLICIES)}, or "
            "the absolute path of a folder on the server"
        )
    privacy = {key: getattr(config, key) for key in ("dp_clip", "dp_epsilon", "dp_delta")}
    if any(privacy.values()) and not all(privacy.values()):
        missing = kebab(next(key for key, value in privacy.items() if not value))
        raise UserError(
            f"{missing}: 0 is not allowed: dp-clip, dp-epsilon and dp-delta are needed together"
        )
    # Of files it shows when they are opened: a folder of several names its clients.
    named = (*DATASETS, "image-folder")
    if config.partition == "natural" and kind_of(config.dataset) and config.dataset not in named:
        raise UserError(
            f"partition: 'natural' is not allowed with dataset={config.dataset}: its examples name "
            "no client; use partition=file with a partition-file"
        )
    tuned = TUNABLE | method_keys(find_method(config.method))
    for key in (key for key in config.tuned if key not in tuned):
        raise UserError(
            f"tuned: '{key}' is not allowed: {', '.join(sorted(TUNABLE))}, or a key of the "
            "method; runs that differ in other keys are not compared"
        )
    if config.clients:
        check_replies(config)


def _check_data_path(config: RunConfig) -> None:
    """Raise UserError if a data set's file is missing: that is said before its models are."""
    if config.dataset in DATASETS and not config.data_path:
        raise UserError(f"data-path is empty: dataset {config.dataset} needs its file")
    if config.data_path and not Path(config.data_path).expanduser().exists():
        raise UserError(
            f"data-path {config.data_path}: this file does not exist{near(config.data_path)}"
        )


def _without_effect(
    config: RunConfig, strategy: "type[MethodStrategy[Any]]"
) -> Iterator[tuple[str, str]]:
    """Yield keys that must keep their defaults in this run, each with what makes them idle."""
    files, rows = tuple(DATASETS), ("table", "texts")
    form = ("columns", "separator", "decimal", "thousands", "quote", "encoding", "gaps")
    belongs = {
        **dict.fromkeys(("target", "labels", "site", *form), files), "categories": ("table",),
        "ignore": ("table", "signals"), "text": ("texts",), "length": ("texts", "signals"),
        "vocabulary": ("texts",), "scale": ("signals",), "axes": ("signals",),
        "channels": ("signals",), "time": ("signals",), "window": ("image-folder",),
    }  # fmt: skip
    for key, datasets in belongs.items():
        hub = is_hub(config.dataset) and set(rows) & set(datasets)
        if config.dataset not in datasets and not hub:
            needed = " or ".join(datasets)
            yield key, f"dataset={config.dataset}; it belongs to dataset={needed}"
    if config.partition != "file":
        yield "partition-file", f"partition={config.partition}; it belongs to partition=file"
    if config.optimizer == "adam":
        yield "momentum", "optimizer=adam"
    rule = f"aggregation={config.aggregation}"
    if config.aggregation != "trimmed-mean":
        yield "trim", f"{rule}; it belongs to aggregation=trimmed-mean"
    if config.aggregation != "mean":
        yield "max-weight", f"{rule}, which does not use weights"
    own = f"method={config.method}"
    if not strategy.shares_small_model:
        yield "small-model", f"{own}, which does not share a model"
    ignored = dict(strategy.ignores(config, config.params))
    if strategy.public_set == "nobody":
        ignored |= dict.fromkeys(("public-dataset", "public-path"), "it needs no public data set")
    yield from ((key, f"{own}: {reason}") for key, reason in ignored.items())
    if config.summed:
        yield from ((k, f"secure-sum={config.secure_sum}: {why}") for k, why in OF_SINGLE.items())


def check_replies(config: RunConfig) -> None:
    """UserError if a round has too few clients for what is asked; ``clients`` is known."""
    if config.min_replies > config.cohort(config.clients):
        raise UserError(
            f"min-replies: {config.min_replies} is more than the "
            f"{config.cohort(config.clients)} clients of a round (fraction x clients)"
        )
    checks.check_cohort(config)


def envelope(config: RunConfig, run: Mapping[str, Any]) -> str:
    """Return the ``config`` scalar of Flower's run config: configuration and identity as JSON.

    In this process :func:`from_run_config` hands on ``config`` itself.
    """
    text = json.dumps({"config": config.flat(), "run": dict(run)}, separators=(",", ":"))
    while len(_handed) >= KEPT:
        del _handed[next(iter(_handed))]
    _handed[text] = config
    return text


def from_run_config(run_config: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration and the run's identity from a Flower run config.

    ``fedhet run`` sends :func:`envelope`; a plain ``flwr run`` sends the scalars of
    ``[tool.flwr.app.config]``, for which the identity is empty. Those of a method's own keys that
    are "" are unset: Flower takes no override that is not there, so every method's are.
    """
    text = str(run_config.get("config", ""))
    if text:
        loaded = parse_object(text, "run config", "config")
        return _handed.get(text) or build_config(loaded["config"]), dict(loaded["run"])
    values = {k: v for k, v in run_config.items() if k in COMMON or v != ""}
    shipped = RunConfig()
    if values.get("models") == ",".join(shipped.models):  # not chosen by the user
        del values["models"]
    config, defaults = build_config(values), shipped.flat()
    checks.check_idle(config, {k: v for k, v in values.items() if v != defaults.get(k)})
    return config, {}

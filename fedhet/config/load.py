"""Reads a run's configuration: defaults < YAML < ``key=value``, every mistake in one line."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedhet import TOP
from fedhet.config import checks
from fedhet.config.checks import COMMON, check_idle, check_single, idle_notes, off_default
from fedhet.config.registry import find_method, method_keys, method_name
from fedhet.config.schema import PATHS, Params, RunConfig, Schema
from fedhet.data.inputs import IMAGE, kind_of
from fedhet.errors import UserError, nearest
from fedhet.files import parse_object, plain_path, read_yaml
from fedhet.models.names import DEFAULT_GROUP, expand

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
    check_single(RunConfig, "method", overrides.get("method"))
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
    shipped = {str(preset.relative_to(folder).with_suffix("")): preset for preset in files}
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
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    changes: Mapping[str, Any] | None = None,
    deployed: bool = False,
) -> tuple[RunConfig, list[str]]:
    """As :func:`load_config`; with a line for every key that somebody set in vain.

    ``changes`` are overrides that are values already; ``deployed``: the run goes to a network.
    """
    preset = read_yaml(path) if path else {}
    new = {**read_overrides(overrides), **(changes or {})}
    for values in (preset, new):
        if isinstance(values.get("method"), str):
            values["method"] = method_name(values["method"])
    if "method" in new and new["method"] != preset.get("method", "fedssa"):
        # The preset's keys of the old method make no sense for the new one.
        old = method_keys(str(preset.get("method", "fedssa")))
        preset = {key: value for key, value in preset.items() if key not in old}
    config = build_config({**preset, **new})
    # A preset's key may have lost its effect to an override; a run's own config.yaml has them all.
    written = {key: preset[key] for key in off_default(config, preset)}
    return config, idle_notes(config, {**written, **new}, deployed=deployed)


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
    if "method" in values:
        check_single(RunConfig, "method", values["method"])
    name = method_name(str(values.get("method", "fedssa")))
    method, keys = find_method(name), method_keys(name)
    for key in sorted(keys & COMMON):
        raise UserError(f"method '{name}': its key '{key}' is a common key: rename it")
    for key in values:
        if key not in COMMON | keys:
            raise UserError(checks.unknown_key(key, name))
    params = _validate(method.params, {k: v for k, v in values.items() if k in keys})
    common = {k: v for k, v in values.items() if k in COMMON}
    config = _validate(RunConfig, common | {"method": name})
    assert isinstance(config, RunConfig) and isinstance(params, Params)
    group = DEFAULT_GROUP[kind_of(config.dataset) or IMAGE]
    models = config.models if "models" in values else (group,)
    config = config.model_copy(update={"params": params, "models": expand(models)})
    check_idle(config, values)
    checks.check_combinations(config)
    return config


def _validate(schema: type[Schema], values: Mapping[str, Any]) -> Schema:
    for key, value in values.items():
        check_single(schema, key, value)
        annotation = schema.model_fields[key.replace("-", "_")].annotation
        if isinstance(value, bool) and annotation in (int, float):  # pydantic would count it
            word = str(value).lower()
            raise UserError(checks.wrong_value(schema, key, word, "it must be a number"))
    try:
        return schema.model_validate(dict(values))
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        key = str(error["loc"][0])
        value = values.get(key, error["input"])
        raise UserError(checks.wrong_value(schema, key, value, error["msg"])) from None


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
    ``[tool.flwr.app.config]``, for which the identity is empty. Those of a method's own keys that
    are "" are unset: Flower takes no override that is not there, so every method's are.
    """
    text = str(run_config.get("config", ""))
    if text:
        loaded = parse_object(text, "run config", "config")
        return build_config(loaded["config"]), dict(loaded["run"])
    values = {k: v for k, v in run_config.items() if k in COMMON or v != ""}
    shipped = RunConfig()
    if values.get("models") == ",".join(shipped.models):  # not chosen by the user
        del values["models"]
    return build_config(values), {}

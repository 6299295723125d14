"""Configuration: precedence, methods' own keys, and one clear line for every mistake."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers.flower_internals import read_run_config, with_overrides

from fedhet import TOP
from fedhet.config.load import (
    COMMON,
    build_config,
    envelope,
    from_run_config,
    idle,
    load_config,
    load_noted,
)
from fedhet.config.registry import METHODS, find_method, method_keys
from fedhet.config.schema import RunConfig
from fedhet.errors import UserError


def write(tmp_path: Path, **values) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({k.replace("_", "-"): v for k, v in values.items()}))
    return path


def test_defaults_then_yaml_then_command_line_whose_texts_become_values(tmp_path):
    words = ["lr=1e-3", "seed=5", "seed=6", "models=cnn-1, cnn-5", "split=8:0:2", "keep-state=no"]
    config = load_config(write(tmp_path, rounds=7, lr=0.1), words)
    assert (config.rounds, config.lr, config.seed, config.batch_size) == (7, 0.001, 6, 64)
    assert (config.models, config.split) == (("cnn-1", "cnn-5"), (8, 0, 2))
    assert config.keep_state is False and config.cohort(7) == 7


def test_a_new_method_drops_the_presets_keys_of_the_old_one(tmp_path):
    path = write(tmp_path, method="fedssa", mu0=0.9, rounds=3)
    assert load_config(path, ["method=standalone"]).rounds == 3
    with pytest.raises(UserError, match="mu0: only method fedssa"):
        load_config(path, ["method=standalone", "mu0=0.9"])


def test_resolved_configuration_is_read_back_unchanged():
    config = build_config(
        {"method": "fedssa", "mu0": 0.25, "split": "8:0:2", "classes": ["b", "a"]}
    )
    assert build_config(config.flat()) == config
    again, run = from_run_config({"config": envelope(config, {"folder": "/x"}), "seed": 9})
    assert again == config and run == {"folder": "/x"}
    assert build_config({"fraction": 0.001}).cohort(100) == 1  # at least


PROJECT = Path(__file__).resolve().parents[2]
# A first look at the models of the data's kind; results go to ~/.fedhet/runs.
SHORTER = {"rounds": 3, "local-epochs": 1, "out": "", "models": ""}
FLOWERS_OWN = {"engine", "actors"}  # of `flwr run`, sized by --federation-config


def test_flowers_config_has_every_key_of_the_schema_and_of_every_method():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["flwr"]["app"]["config"]
    common = {k: v for k, v in RunConfig().flat().items() if k not in FLOWERS_OWN} | SHORTER
    common = {k: ",".join(v) if isinstance(v, list | dict) else v for k, v in common.items()}
    own = {key: "" for method in METHODS for key in method_keys(method)}
    assert shipped == {"config": "", **common, **own}, "[tool.flwr.app.config] of pyproject.toml"
    assert all(type(value) is type((common | own).get(key, "")) for key, value in shipped.items())


def plain(words):
    return from_run_config(with_overrides(PROJECT, read_run_config([words])))[0]


def test_each_methods_own_keys_can_be_given_to_flwr_run():
    for method in METHODS:
        defaults = find_method(method).params().model_dump(mode="json")
        words = [f"{key}={json.dumps(value)}" for key, value in defaults.items()]
        config = plain(f"method='{method}' seed=7 " + " ".join(words))
        assert (config.method, config.seed) == (method, 7)
        assert config.params == find_method(method).params()
        assert config.models == RunConfig().models and config.rounds == SHORTER["rounds"]


def test_what_flwr_run_is_given_in_vain_is_one_line():
    with pytest.raises(UserError, match="^mu0: only method fedssa has this key, and method is.*$"):
        plain("method='fedproto' mu0=0.3")
    with pytest.raises(UserError, match="^max-weight: '0.5' has no effect.*$"):
        plain("method='standalone' max-weight=0.5")


MISTAKES = {
    "method=fedsa": "method: unknown value 'fedsa' (did you mean 'fedssa'?); allowed: ",
    "rounds=ten": "rounds: 'ten' is not allowed: it must be a valid integer",
    "partition=file": "partition-file: '' is not allowed",
    "name=../x": "name: '../x' is not allowed",
    "split=8:1": "split: '8:1' is not allowed",
    "partition=natural": "partition: 'natural' is not allowed with dataset=digits",
    f"dataset=table models=cnn-1 data-path={__file__}": "model 'cnn-1' is for images",
    "models=@table-9": "models: group '@table-9' is unknown (did you mean",
    "augment=jitter-scale": "augment: 'jitter-scale' is not allowed with dataset=digits",
    "method=fedkd compress-down=true fraction=0.5": "fraction=0.5",
    "method=fedmrl matryoshka=false inference=mix-small": "inference: ",
    "method=fd dp-clip=1 dp-epsilon=8 dp-delta=1e-5": "dp-clip: 1 is not allowed with method=fd",
    "rounds = 3": "'rounds' is not a setting: write KEY=VALUE without spaces around '=', such as",
    "labels={krank: [ja]}": "'[ja]}' is not a setting: write KEY=VALUE without spaces around '=', "
    'such as rounds=20; put a value that has spaces in quotes, such as "labels={ill: [yes]}"',
    "seed=1,2,3": "several values are a `grid` of `fedhet sweep`",
    "gird=3": "did you mean 'grid'",
    "grid=3": "`fedhet sweep` runs them",
    "representaton=256": "did you mean 'representation'",
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.items())
def test_every_mistake_is_one_line(words, message):
    with pytest.raises(UserError) as caught:
        load_config(None, words.split())
    line = str(caught.value)
    assert message in line and "\n" not in line


IDLE = {
    "data-path=/x": "dataset=digits reads no file",
    "partition=file partition-file=a.csv split=6:2:2": "partition-file",
    "models=cnn-5 model-assignment=random": "the same model",
    "evaluate-all=no": "fraction=1",
    "client-keys=off": "--superlink",
    "partition=iid alpha=0.1": "partition=iid; it is for partition=dirichlet or quantity",
    "method=lg_fedavg aggregation=median weighting=uniform": "aggregation=median",
    **{f"deployed dataset=cifar10 {word}": "every node sets its own"
       for word in ("data-path=/x", "actors=2", "state-dir=/s", "keep-state=no")},
}  # fmt: skip


def notes(*words, deployed=False, path=None):
    return load_noted(path, words, deployed=deployed)[1]


@pytest.mark.parametrize(("words", "why"), IDLE.items())
def test_a_key_that_changes_nothing_is_named_with_the_reason(words, why):
    given = words.removeprefix("deployed ")
    (line,) = notes(*given.split(), deployed=given != words)
    assert line.startswith(words.split()[-1]) and why in line


def test_what_has_an_effect_is_not_named():
    words = "dataset=cifar10 data-path=/x actors=2 fraction=0.5 evaluate-all=no partition-seed=1"
    more = "split=6:2:2 partition=dirichlet alpha=1 models=cnn-1,cnn-5 state-dir=s classes=1,2,3"
    assert notes(*words.split(), *more.split()) == []


@pytest.mark.parametrize("method", METHODS)
def test_what_has_no_effect_is_a_key_and_no_preset_sets_one(method):
    config = build_config({"method": method})
    assert idle(config).keys() | idle(config, deployed=True).keys() <= COMMON
    path = TOP / "configs" / f"{method}.yaml"
    assert notes(path=path) == notes("engine=inline", path=path) == []
    assert notes("client-keys=off", "evaluate-all=no", path=path, deployed=True) == []


def test_a_file_is_told_too_unless_it_says_the_default(tmp_path):
    path = write(tmp_path, engine="inline", actors=2, round_timeout=3600)
    assert [line.partition("=")[0] for line in notes(path=path)] == ["actors"]


@pytest.mark.parametrize("text", ["- a\n", "a: [", "3: 4\n", "rounds: true\n", "a: 1\na: 2\n"])
def test_broken_files_are_one_line(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="^[^\n]+$"):
        load_config(path)


def test_a_plain_flwr_run_of_another_kind_takes_the_models_of_that_kind():
    config = plain("dataset='table' target='num' labels='{ill: [1, 2], well: [0]}'")
    assert config.models[0] == "mlp-1" and dict(config.labels)["ill"] == ("1", "2")

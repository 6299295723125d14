"""``fedhet models``: what models there are for which examples, their sizes and costs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhet.cli.display import show_table
from fedhet.config.load import build_config, read_overrides
from fedhet.data.inputs import IMAGE, KINDS, PLURAL, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.errors import UserError
from fedhet.models import GROUPS, MODELS, model_sizes, validate_model_name
from fedhet.models.names import MORE, MORE_OF_TORCHVISION, expand, is_known, with_weights
from fedhet.site.local_data import load_dataset

CLASSES = 10
EXAMPLES = {  # where no data set is named
    SIGNAL: Inputs(SIGNAL, (6, 128)),
    TABLE: Inputs.table(tuple(f"x{number}" for number in range(10))),
    TOKENS: Inputs(TOKENS, (64,), 5000),
}


@dataclass(frozen=True)
class Asked:
    """What models are built for: examples by kind, classes, the width of a representation."""

    inputs: dict[str, Inputs]
    classes: int
    d: int


def models(words: Sequence[str], classes: int | None, kind: str | None, *, as_json: bool) -> None:
    """All listed models of every kind, or of one; or those named, built as ``KEY=VALUE`` say.

    Raises:
        UserError: a name or key that is wrong, a model that is not for these examples.

    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"--kind: '{kind}' is not allowed: {', '.join(KINDS)}")
    pairs = [word for word in words if " " not in word.partition("=")[0] and "=" in word]
    names: Sequence[str] = expand([word for word in words if word not in pairs])
    asked, named = _asked(pairs, classes, kind)
    names = names or named
    table: list[dict[str, Any]] = []
    for own, inputs in asked.inputs.items():
        chosen = _of_kind(names, own, list(asked.inputs)) if names else MODELS[own]
        if chosen:
            table += model_sizes(chosen, asked.classes, asked.d, inputs)
    if as_json:
        print(json.dumps(table, indent=2))
        return
    for own, inputs in asked.inputs.items():
        _show([row for row in table if row["kind"] == own], inputs, asked)
    if not names:
        _say_more(list(asked.inputs))


def _asked(
    pairs: Sequence[str], classes: int | None, kind: str | None
) -> tuple[Asked, tuple[str, ...]]:
    """What ``KEY=VALUE`` say: examples, classes, d, and the models that are named there."""
    values = read_overrides(pairs)
    config = build_config(values)
    named = config.models if "models" in values else ()
    d = config.representation
    if not {"dataset", "data-path"} & values.keys():
        every = {IMAGE: Inputs.image(config.image_size)} | EXAMPLES
        inputs = {kind: every[kind]} if kind else every
        return Asked(inputs, classes or CLASSES, d), named
    dataset = load_dataset(config)
    if kind not in (None, dataset.inputs.kind):
        raise UserError(
            f"--kind: '{kind}' is not allowed with dataset={config.dataset}, which is of "
            f"{dataset.inputs.kind}"
        )
    inputs = {dataset.inputs.kind: dataset.inputs}
    return Asked(inputs, classes or len(dataset.classes), d), named


def _of_kind(names: Sequence[str], kind: str, kinds: Sequence[str]) -> list[str]:
    """Those of ``names`` to be built for ``kind``, of the ``kinds`` that are asked for.

    Of other people's nobody can say: for images, unless one kind alone is asked for.
    """
    found = []
    for name in names:
        plain = with_weights(name)[0]
        fitting = [one for one in KINDS if is_known(plain, one)] or [IMAGE]
        if len(kinds) == 1:  # then a model that is for others is told that it is
            validate_model_name(name, kind)
            fitting = [kind]
        else:
            validate_model_name(name)
        if kind in fitting:
            found.append(name)
    return found


def _show(rows: Sequence[dict[str, Any]], inputs: Inputs, asked: Asked) -> None:
    """One table of one kind."""
    if not rows:
        return
    cells = [
        (row["name"], row["parameters"], f"{row['mib']:.2f}", row["buffers"], row["forward_flops"])
        for row in rows
    ]
    columns = ("model", "parameters", "MiB", "buffers", f"FLOPs per {_one(inputs)}, forward")
    show_table(f"{asked.classes} classes, {_form(inputs)}", columns, cells)


def _one(inputs: Inputs) -> str:
    return {TABLE: "row", TOKENS: "text"}.get(inputs.kind, inputs.kind)


def _form(inputs: Inputs) -> str:
    """The examples in words."""
    first = inputs.shape[0]
    if inputs.kind == IMAGE:
        return f"{inputs.shape[1]} x {inputs.shape[2]} pixels"
    if inputs.kind == SIGNAL:
        return f"signals of {first} channels and {inputs.shape[1]} steps"
    if inputs.kind == TABLE:
        return f"rows of {len(inputs.columns)} columns, {first} numbers for a model"
    return f"texts of {first} words, {inputs.vocabulary} token ids"


def _say_more(kinds: Sequence[str]) -> None:
    for kind in kinds:
        more = [name for name in MORE[kind] if name not in MORE_OF_TORCHVISION]
        if kind == IMAGE:
            more += ["any classifier of torchvision", "timm:NAME"]
        if more:
            print(f"for {PLURAL[kind]} also: {', '.join(more)}")
    for kind in kinds:
        groups = [name for name in GROUPS if is_known(GROUPS[name][0], kind)]
        print(f"groups for {PLURAL[kind]}: {', '.join(groups)}")
    print("or your own: module:factory; with weights: 'NAME [frozen] weights=FILE'")
    print("buffers: BatchNorm statistics, sent of a shared model only")

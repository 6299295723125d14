"""Commands that list and begin: init, runs, keys, methods, models, new and report."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import inspect
import json
import keyword
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from fedhet import plugins
from fedhet.cli.common import Json, Trust, loading, show_json, show_table, tell
from fedhet.config.registry import METHODS, find_method, method_name
from fedhet.config.schema import METRICS, RunConfig, Schema, as_yaml, kebab
from fedhet.errors import RunFailed, UserError, nearest, one_line
from fedhet.files import plain_path

_BOUNDS = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}
CLASSES = 10  # of models that are listed without a data set


# --- a file, runs, keys, methods ---------------------------------------------------------------


def init(
    path: Annotated[str, typer.Argument(metavar="FILE", help="a table, texts, signals, images")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="keys that correct or add to the guesses"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the preset to write; default: FILE.yaml in this folder")
    ] = None,
) -> None:
    """Print what is recognised in a file of yours, and write a preset for it.

    What cannot be known is asked for on a terminal; elsewhere the command to type is printed.
    """
    loading(as_json=False)
    from fedhet.config.load import build_config, read_overrides
    from fedhet.data.preset import initialise
    from fedhet.site.local_data import load_dataset, reading_of

    def checked(keys):  # type: ignore[no-untyped-def]
        config = build_config(keys)
        return reading_of(config), lambda: load_dataset(config)

    ask = _ask if sys.stdin is not None and sys.stdin.isatty() else None
    for line in initialise(path, read_overrides(words or []), out, checked, show_table, ask):
        print(line)


def _ask(question: str, choices: Sequence[str]) -> str:
    """Ask a person by a numbered list; an empty choice is none of them."""
    print(one_line(question, None))
    for number, choice in enumerate(choices, start=1):
        print(f"  {number}  {one_line(choice, None) or 'none of them'}")
    number = typer.prompt("number", type=click.IntRange(1, len(choices)))
    return choices[number - 1]


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="folder that is searched for run folders")
    ] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs with status, method and accuracy."""
    from fedhet.records.summary import headline

    base = plain_path(folder)
    if not base.is_dir():
        raise UserError(f"'{base}' is not a folder: give the folder that your runs are in")
    folders = [path.parent.parent for path in base.rglob("checkpoint/run.json")]
    table = sorted(map(_run_row, folders), key=lambda row: row["started"])
    if as_json:
        show_json(table)
        return
    if not table:
        print(f"no runs in {base}")
        return
    rows = [
        (str(Path(row["folder"]).relative_to(base)), row["status"], row["method"] or "-",
         row["dataset"] or "-", f"{row['rounds'] or 0}/{row['rounds_wanted'] or '-'}",
         headline(row["metric"], row))
        for row in table
    ]  # fmt: skip
    show_table(str(base), ("run", "status", "method", "dataset", "rounds", "last mean"), rows)


def _run_row(path: Path) -> dict[str, Any]:
    """Return what the list shows of one run; it may be running, killed, or damaged."""
    from fedhet.records.run_folder import RunFolder

    folder = RunFolder(path)
    row: dict[str, Any] = {"folder": str(path), "started": folder.identity.stat().st_mtime}
    row |= dict.fromkeys(("method", "dataset", "rounds", "rounds_wanted")) | {"metric": "accuracy"}
    try:
        config, (summary, rounds) = folder.started_config(), folder.read_result()
        row |= {"method": config["method"], "dataset": config["dataset"]}
        row |= {"rounds": len(rounds), "rounds_wanted": config["rounds"]}
        row["metric"] = config["metric"] if config.get("metric") in METRICS else "accuracy"
        last = rounds[-1] if rounds else {}
        kept = {"test_accuracy_mean", f"test_{row['metric']}_mean"}
        row |= {key: last.get(key) for key in sorted(kept)} | {"run_sha256": last.get("sha256")}
        row["status"] = summary.get("status") or ("running" if folder.being_written() else "killed")
    except (UserError, RunFailed, ValueError, KeyError, TypeError) as error:
        row |= {"status": "damaged", "test_accuracy_mean": None, "reason": str(error)}
    return row


def keys(
    word: Annotated[
        str | None,
        typer.Argument(metavar="METHOD|WORD", help="its keys as well, or keys with this word"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys of a configuration with defaults, ranges and meaning, or search them."""
    known = [*METHODS, *plugins.installed("method")]
    method = word if word and (method_name(word) in known or ":" in word) else None
    searched = "" if method or word is None else word.lower()
    rows = [
        (key, owner, what)
        for owner in ["", *([method] if method else METHODS if searched else ())]
        for key, what in schema_keys(find_method(owner).params if owner else RunConfig).items()
        if searched in f"{key} {what['meaning']} {what['allowed']}".lower()
    ]
    if not rows:
        near = nearest(searched, [*schema_keys(RunConfig), *METHODS])
        raise UserError(f"keys: no key has '{word}' in its name or meaning{near}")
    if as_json and searched:
        show_json([{"key": key, "method": owner or None, **what} for key, owner, what in rows])
    elif as_json:
        show_json({key: what for key, _, what in rows})
    else:
        for key, owner, what in rows:
            print((f"method={owner}: " if searched and owner else "") + _key_line(key, what))
        if word is None:
            print("and each method's own: fedhet methods, fedhet keys METHOD")


def schema_keys(schema: type[Schema]) -> dict[str, dict[str, Any]]:
    """Default, range and meaning by key, in the schema's order."""
    return {
        kebab(name): {
            "default": as_yaml(field.get_default(call_default_factory=True)),
            "allowed": _allowed(field),
            "meaning": field.description or "",
        }
        for name, field in schema.model_fields.items()
        if name != "params"
    }


def _allowed(field: FieldInfo) -> str:
    """Alternatives or bounds; empty where the meaning says it all."""
    options = getattr(field.annotation, "__args__", ())
    if options and all(isinstance(option, str) for option in options):
        return " | ".join(options)
    if field.annotation is bool:
        return "true | false"
    known = [(note, _BOUNDS[type(note)]) for note in field.metadata if type(note) in _BOUNDS]
    return ", ".join(f"{sign} {getattr(note, name):g}" for note, (sign, name) in known)


def _key_line(key: str, what: Mapping[str, Any]) -> str:
    default = what["default"]
    shown = ",".join(default) if isinstance(default, list) else json.dumps(default).strip('"')
    allowed = f" [{what['allowed']}]" if what["allowed"] else ""
    return f"{key}={shown}  {what['meaning']}{allowed}"


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="one method in full, or module:METHOD")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods and the keys that only they have; one with what it does and sends."""
    names = [*METHODS, *plugins.installed("method")] if name is None else [method_name(name)]
    table = [_method_row(one) for one in names]
    if name is not None:
        table[0]["text"] = inspect.getdoc(inspect.getmodule(find_method(name).strategy)) or ""
    if as_json:
        show_json(table if name is None else table[0])
        return
    for row in table:
        print(f"{row['name']}: {row['about']}")
        for key, what in row["keys"].items():
            print(f"    {_key_line(key, what)}")
        if "text" in row:  # only ours have a preset
            run = row["name"] if row["name"] in METHODS else f"quickstart method={row['name']}"
            print(f"\n{row['text']}\n\nfedhet run {run}  (all other keys: fedhet keys)")


def _method_row(name: str) -> dict[str, Any]:
    """Return what is listed; a method that is installed and broken does not hide the rest."""
    try:
        method = find_method(name)
        return {"name": name, "about": method.about, "keys": schema_keys(method.params)}
    except UserError as error:
        return {"name": name, "about": str(error), "keys": {}}


# --- models -----------------------------------------------------------------------------------


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|KEY=VALUE...", help="models, groups, module:factory; keys"),
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="number; default: 10")] = None,
    as_json: Json = False,
) -> None:
    """List the models with parameters, size and cost; your own too, if you name them."""
    from fedhet.config.load import build_config, read_overrides
    from fedhet.data.inputs import IMAGE, Inputs
    from fedhet.models import GROUPS, MODELS, model_sizes, validate_model_name
    from fedhet.models.names import FORM, expand, kinds_of, parse
    from fedhet.models.zoo import EXAMPLES
    from fedhet.site.local_data import load_dataset

    pairs = [one for one in words or [] if " " not in one.partition("=")[0] and "=" in one]
    values = read_overrides(pairs)
    config = build_config(values)
    names: Sequence[str] = expand([word for word in words or [] if word not in pairs])
    names = names or (config.models if "models" in values else ())
    asked: dict[str, Inputs] = EXAMPLES | {IMAGE: Inputs.image(config.image_size)}
    count = classes or CLASSES
    if {"dataset", "data-path"} & values.keys():
        dataset = load_dataset(config)
        asked = {dataset.inputs.kind: dataset.inputs}
        count = classes or len(dataset.classes)
    for name in names:
        validate_model_name(name, next(iter(asked)) if len(asked) == 1 else "")
    table: list[dict[str, Any]] = []
    for kind, inputs in asked.items():
        # The kind of other people's models is unknown: images, or the one kind that is asked for.
        chosen = [
            name for name in names
            if len(asked) == 1
            or kind in (kinds_of(parse(name).plain) or (IMAGE,))
        ] or ([] if names else MODELS[kind])  # fmt: skip
        rows = model_sizes(chosen, count, config.representation, inputs) if chosen else []
        if rows and not as_json:
            columns = ("model", "parameters", "MiB", "buffers", "FLOPs per example, forward")
            cells = [
                (row["name"], row["parameters"], f"{row['mib']:.2f}", row["buffers"],
                 row["forward_flops"]) for row in rows
            ]  # fmt: skip
            show_table(f"{count} classes, {inputs}", columns, cells)
        table += rows
    if as_json:
        show_json(table)
    elif not names:
        print("for images also any classifier of torchvision, and timm:NAME; for texts hf:FOLDER")
        print(f"or your own: module:factory; with weights: '{FORM}'; groups: {', '.join(GROUPS)}")
        print("buffers: BatchNorm statistics, sent of a shared model only")


# --- a method's skeleton, reports --------------------------------------------------------------


def template(name: str) -> str:
    """Return the text of a file in ``templates/``."""
    return files("fedhet.cli").joinpath(f"templates/{name}.txt").read_text("utf-8")


def new(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="method")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the module, as my_method")],
) -> None:
    """Write a method of your own and its test into this folder (docs/how-to/own-method.md)."""
    if what != "method":
        raise UserError(f"'{what}' is not allowed: write `fedhet new method NAME`")
    spelling = "".join(word.capitalize() for word in name.split("_"))
    words = name.isidentifier() and not keyword.iskeyword(name) and name == name.lower()
    if not words or not spelling.isidentifier():  # of _1 the classes' names would begin with a 1
        raise UserError(
            f"'{name}' is not allowed: use a name such as my_method: lower-case "
            "letters, digits and _, with a letter first, but not a Python keyword"
        )
    if name in METHODS:
        raise UserError(f"fedhet already has a method '{name}': choose another name")
    texts = {Path.cwd() / f"{name}.py": "method", Path.cwd() / f"test_{name}.py": "test_method"}
    for path in texts:
        if path.exists():
            raise UserError(f"'{path}' already exists: choose another name, or move it away")
    for path, text in texts.items():
        path.write_text(template(text).format(name=name, spelling=spelling), encoding="utf-8")
        print(path)
    print(f"fedhet run quickstart method={name}:METHOD")


def report(  # noqa: PLR0913, PLR0917  (one parameter per option)
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_SWEEP...", help="run folders, sweeps, packed records"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the report; files in it are replaced")],
    baseline: Annotated[str, typer.Option(help="compared with; default: standalone")] = "",
    title: Annotated[str, typer.Option(help="heading of the page")] = "fedhet report",
    records: Annotated[Path | None, typer.Option(help="folder for packed records of runs")] = None,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="draw what needs the clients' models")
    ] = True,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare runs: tables with intervals, figures, and one self-contained page."""
    loading(as_json=as_json)
    from fedhet.reports.report import report as write

    written = write(
        places, out, baseline=baseline, title=title, records=records, models=models, trust=trust,
    )  # fmt: skip
    page = str(plain_path(out / "report.html"))
    left_out = {one.name: one.reason for one in written.runs.left_out}
    if as_json:
        content = {
            "page": page, "runs": len(written.runs.placed),
            "tables": [table.name for table in written.tables],
            "figures": [figure.name for figure in written.figures if figure.panels],
            "absent": written.absent, "left_out": left_out,
        }  # fmt: skip
        show_json(content)
        return
    for name, reason in left_out.items():
        tell(f"left out: {name}: {reason}")
    for figure, reason in written.absent.items():
        tell(f"figure {figure} is absent: {reason}")
    for line in written.runs.verdict:
        print(one_line(line, None))
    print(page)

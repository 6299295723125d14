"""Commands that list and begin: init, runs, keys, methods, models, new and report."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import inspect
import json
import keyword
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic.fields import FieldInfo
from typer import Argument, Option

from fedhet import plugins
from fedhet.cli.common import File, Texts, Trust, show_table, tell
from fedhet.config.registry import METHODS, find_method, method_name
from fedhet.config.schema import METRICS, RunConfig, Schema, kebab
from fedhet.errors import RunFailed, UserError, one_line
from fedhet.files import plain_path

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
CLASSES = 10  # of models that are listed without a data set


# --- a file, runs, keys, methods ---------------------------------------------------------------


def init(
    path: Annotated[str, Argument(metavar="FILE", help="a table, texts, signals, images")],
    words: Annotated[Texts, Argument(metavar="KEY=VALUE...", help="keys that correct it")] = None,
    out: Annotated[File, Option(help="the preset to write; default: FILE.yaml here")] = None,
) -> None:
    """Print what is recognised in a file of yours, and write a preset for it.

    What cannot be known is asked for on a terminal; elsewhere the command to type is printed.
    """
    from fedhet.cli.preset import initialise
    from fedhet.config.load import read_overrides

    for line in initialise(path, read_overrides(words or []), out):
        print(line)


def runs(
    folder: Annotated[Path, Argument(metavar="DIR", help="folder of run folders")] = Path("runs"),
) -> None:
    """List runs with status, method and accuracy."""
    from fedhet.records.run_folder import RunFolder
    from fedhet.records.summary import headline

    base, rows = plain_path(folder), list[tuple[str, ...]]()
    if not base.is_dir():
        raise UserError(f"'{base}' is not a folder: give the folder that your runs are in")
    for path in sorted(base.rglob("checkpoint/run.json"), key=lambda path: path.stat().st_mtime):
        run = RunFolder(path.parent.parent)  # running, killed, or damaged
        name = str(run.path.relative_to(base))
        try:
            config, (summary, rounds) = run.started_config(), run.read_result()
            metric = config["metric"] if config.get("metric") in METRICS else "accuracy"
            last = headline(metric, rounds[-1] if rounds else {})
            done, status = f"{len(rounds)}/{config['rounds']}", run.status(summary, rounds)[0]
            rows.append((name, status, config["method"], config["dataset"], done, last))
        except (UserError, RunFailed, ValueError, KeyError, TypeError):
            rows.append((name, "damaged", "-", "-", "-", "-"))
    if not rows:
        print(f"no runs in {base}")
        return
    show_table(str(base), ("run", "status", "method", "dataset", "rounds", "last mean"), rows)


def keys(
    method: Annotated[str, Argument(metavar="METHOD", help="list its own keys as well")] = "",
) -> None:
    """List the keys of a configuration with defaults, ranges and meaning, one a line."""
    schemas: list[type[Schema]] = [RunConfig, *([find_method(method).params] if method else [])]
    print("\n".join(line for schema in schemas for line in _key_lines(schema)))
    if not method:
        print("and each method's own: fedhet methods, fedhet keys METHOD")


def _allowed(field: FieldInfo) -> str:
    """Alternatives or bounds; empty where the meaning says it all."""
    options = getattr(field.annotation, "__args__", ())
    if options and all(isinstance(option, str) for option in options):
        return " | ".join(options)
    if field.annotation is bool:
        return "true | false"
    known = [(note, name) for note in field.metadata for name in _BOUNDS if hasattr(note, name)]
    return ", ".join(f"{_BOUNDS[name]} {getattr(note, name):g}" for note, name in known)


def schema_keys(schema: type[Schema]) -> dict[str, dict[str, Any]]:
    """Return default, range and meaning by key, in the schema's order."""
    fields = {kebab(name): field for name, field in schema.model_fields.items()}
    meanings = {key: field.description or "" for key, field in fields.items()}
    return {
        key: {"default": default, "allowed": _allowed(fields[key]), "meaning": meanings[key]}
        for key, default in schema().flat().items()
    }


def _key_lines(schema: type[Schema]) -> Iterator[str]:
    for key, what in schema_keys(schema).items():
        default = what["default"]
        shown = ",".join(default) if isinstance(default, list) else json.dumps(default).strip('"')
        yield f"{key}={shown}  {what['meaning']}" + f" [{what['allowed']}]" * bool(what["allowed"])


def methods(
    name: Annotated[str, Argument(metavar="NAME", help="one in full, or module:METHOD")] = "",
) -> None:
    """List the methods and the keys that only they have; one with what it does and sends."""
    for one in [method_name(name)] if name else [*METHODS, *plugins.installed("method")]:
        try:
            method = find_method(one)
            print("\n    ".join([f"{one}: {method.about}", *_key_lines(method.params)]))
            if name:
                print(f"\n{inspect.getdoc(inspect.getmodule(method.strategy)) or ''}\n")
                run = one if one in METHODS else f"quickstart method={one}"  # ours have a preset
                print(f"fedhet run {run}  (all other keys: fedhet keys)")
        except UserError as error:  # an installed one that is broken does not hide the rest
            if name:
                raise
            print(f"{one}: {error}")


# --- models -----------------------------------------------------------------------------------


def models(
    words: Annotated[Texts, Argument(metavar="NAME|KEY=VALUE...", help="models; keys")] = None,
    classes: Annotated[int | None, Option(min=1, help="number; default: 10")] = None,
) -> None:
    """List the models with parameters, size and cost; your own too, if you name them."""
    from fedhet.config.load import build_config, read_overrides
    from fedhet.data.inputs import IMAGE, Inputs
    from fedhet.models import names as known
    from fedhet.models.flops import model_sizes
    from fedhet.models.zoo import EXAMPLES
    from fedhet.site.local_data import load_dataset

    pairs = [one for one in words or [] if " " not in one.partition("=")[0] and "=" in one]
    config = build_config(read_overrides(pairs))
    names: Sequence[str] = known.expand([word for word in words or [] if word not in pairs])
    kinds: dict[str, Inputs] = EXAMPLES | {IMAGE: Inputs.image(config.image_size)}
    count = classes or len(config.classes) or CLASSES
    if any(one.startswith(("dataset=", "data-path=")) for one in pairs):
        dataset = load_dataset(config)
        kinds, count = {dataset.inputs.kind: dataset.inputs}, classes or len(dataset.classes)
    only = next(iter(kinds)) if len(kinds) == 1 else ""
    for name in names:
        known.validate_model_name(name, only)
    columns = ("model", "parameters", "MiB", "buffers", "FLOPs per example, forward")
    # Of other people's models the kind is unknown: the one that is asked for, or images.
    kinds_of = {name: known.kinds_of(known.parse(name).plain) or (IMAGE,) for name in names}
    for kind, inputs in kinds.items():
        fitting = [name for name in names if only or kind in kinds_of[name]]
        if chosen := fitting if names else known.MODELS[kind]:
            cells = [*model_sizes(chosen, count, config.representation, inputs)]
            show_table(f"{count} classes, {inputs}", columns, cells)
    if not names:
        print("for images also any classifier of torchvision, and timm:NAME; for texts hf:FOLDER")
        groups = ", ".join(known.GROUPS)
        print(f"or your own: module:factory; with weights: '{known.FORM}'; groups: {groups}")
        print("buffers: BatchNorm statistics, sent of a shared model only")


# --- a method's skeleton, reports --------------------------------------------------------------


def template(name: str) -> str:
    """Return the text of a file in ``templates/``."""
    return files("fedhet.cli").joinpath(f"templates/{name}.txt").read_text("utf-8")


def new(
    what: Annotated[str, Argument(metavar="WHAT", help="method")],
    name: Annotated[str, Argument(metavar="NAME", help="name of the module, as my_method")],
) -> None:
    """Write a method of your own and its test into this folder (docs/how-to/own-method.md)."""
    if what != "method":
        raise UserError(f"'{what}' is not allowed: write `fedhet new method NAME`")
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        form = "a letter, then letters, digits and _, all lower-case, and no Python keyword"
        raise UserError(f"'{name}' is not allowed: use a name such as my_method: {form}")
    if name in METHODS:
        raise UserError(f"fedhet already has a method '{name}': choose another name")
    texts = {Path.cwd() / f"{name}.py": "method", Path.cwd() / f"test_{name}.py": "test_method"}
    for path in texts:
        if path.exists():
            raise UserError(f"'{path}' already exists: choose another name, or move it away")
    spelling = "".join(word.capitalize() for word in name.split("_"))
    for path, text in texts.items():
        path.write_text(template(text).format(name=name, spelling=spelling), encoding="utf-8")
        print(path)
    print(f"fedhet run quickstart method={name}:METHOD")


def report(  # noqa: PLR0913, PLR0917  (one parameter per option)
    places: Annotated[list[Path], Argument(metavar="RUN_OR_SWEEP...", help="or packed records")],
    out: Annotated[Path, Option(help="folder of the report; files in it are replaced")],
    baseline: Annotated[str, Option(help="compared with; default: standalone")] = "",
    title: Annotated[str, Option(help="heading of the page")] = "fedhet report",
    records: Annotated[File, Option(help="folder for packed records of runs")] = None,
    models: Annotated[bool, Option(help="draw what needs the clients' models")] = True,
    trust: Trust = False,
) -> None:
    """Compare runs: tables with intervals, figures, and one self-contained page."""
    from fedhet.reports.report import report as write

    written = write(
        places, out, baseline=baseline, title=title, records=records, models=models, trust=trust,
    )  # fmt: skip
    for one in written.runs.left_out:
        tell(f"left out: {one.name}: {one.reason}")
    for figure, reason in written.absent.items():
        tell(f"figure {figure} is absent: {reason}")
    for line in written.runs.verdict:
        print(one_line(line, None))
    print(plain_path(out / "report.html"))

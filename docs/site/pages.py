"""Make pages from the sources when the site is built.

The overview and the project's pages are files of the checkout's top; the reference is made from the
registry, the schema and the packages' public names.
"""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from roles import cell, plain  # beside this file

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    "README.md": "overview.md", "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md",
}  # fmt: skip
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the methods' pages below the reference."""
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    reference = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    from methods import SPELT  # noqa: PLC0415  (beside this file, imports torch)

    pages = [{shown: f"reference/methods/{name}.md"} for name, shown in SPELT.items()]
    reference.append({"Methods": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made here."""
    import methods  # noqa: PLC0415  (beside this file, imports torch)

    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in TOP.items()}
    made |= {page: text for _, page, text in methods.pages()}
    made |= {
        "reference/api.md": api_page(),
        "reference/keys.md": keys_page(),
        "reference/command-line.md": command_line_page(),
        "reference/strategies.md": hooks_page("strategies.base", "The server half of a method"),
        "reference/clients.md": hooks_page("clients.base", "The client half of a method"),
    }
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files of the checkout that are pages here; keep the words of other links."""
    top = page.file.src_uri in TOP.values()
    folder = ROOT if top else Path(config.docs_dir) / Path(page.file.src_uri).parent

    def there(link: re.Match[str]) -> str:
        image, shown, target, anchor = link[1], link[2], link[3], link[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        found = (folder / target).resolve()
        name = found.relative_to(ROOT).as_posix() if found.is_relative_to(ROOT) else ""
        uri = TOP.get(name) or name.removeprefix("docs/")
        if files.get_file_from_path(uri) is None and not target.startswith("reference/"):
            return link[0] if files.get_file_from_path(target) else shown
        up = "../" * page.file.src_uri.count("/")
        return f"{image}[{shown}]({up}{uri}{anchor})"

    return markdown if page.file.src_uri.startswith("reference/") else _LINK.sub(there, markdown)


def quoted(thing: object) -> str:
    """Return a docstring as it stands: equations and tables in it are no Markdown."""
    return f"```text\n{plain(inspect.getdoc(thing) or '')}\n```"


def keys_page() -> str:
    """Return the page of every key of every run."""
    from methods import schema_keys, table  # noqa: PLC0415  (torch)

    from fedhet.config.schema import RunConfig  # noqa: PLC0415

    head = "# Keys of a configuration\n\nEach method has its own besides: see its page.\n\n"
    return head + table(schema_keys(RunConfig))


def command_line_page() -> str:
    """Return the page of every command with its arguments and options."""
    import typer  # noqa: PLC0415

    from fedhet.cli.app import app  # noqa: PLC0415

    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    parts = [
        "# The command line",
        "Exit codes: 0 done, 2 a mistake of the user, 3 a run that failed, 128 + n after signal n.",
    ]
    for name, command in group.commands.items():
        parts += [f"## fedhet {name}", cell(command.help or "")]
        if rows := [row for one in command.params if (row := option(one))]:
            parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def option(one: click.Parameter) -> str:
    """Return a line of a command's table; empty for what is hidden."""
    if getattr(one, "hidden", False):
        return ""
    names = [one.human_readable_name] if isinstance(one, click.Argument) else one.opts
    value = one.default if isinstance(one.default, str | int | Path) else ""
    plain = "" if isinstance(value, bool) else str(value)
    default = "required" if one.required else f"`{plain}`" if plain else ""
    shown = ", ".join(f"`{name}`" for name in [*names, *one.secondary_opts]).replace("|", "\\|")
    return f"| {shown} | {default} | {cell(getattr(one, 'help', None) or '')} |"


def api_page() -> str:
    """Return the page of all that ``import fedhet`` gives."""
    import fedhet  # noqa: PLC0415

    names = [getattr(fedhet, name) for name in sorted(fedhet.__all__, key=str.lower)]
    named = [one for one in names if inspect.isclass(one) or inspect.isfunction(one)]
    halves = ("fedhet.clients.", "fedhet.strategies.")  # packages beside the folder fedhet
    places = [
        one.__module__.removeprefix("fedhet.") if one.__module__.startswith(halves) else
        one.__module__ for one in named
    ]  # fmt: skip
    parts = [f"::: {place}.{one.__qualname__}" for place, one in zip(places, named, strict=True)]
    head = "# What fedhet exports\n\nEverything that `import fedhet` gives.\n"
    return "\n\n".join([head, *parts]) + "\n"


def hooks_page(module: str, title: str) -> str:
    """Return the classes that a method's module takes from a base."""
    found = import_module(f"fedhet.{module}")
    own = [
        name
        for name, one in vars(found).items()
        if inspect.isclass(one)
        and (one.__module__ == found.__name__ or name in getattr(found, "__all__", ()))
        and not (name.startswith("_") or getattr(one, "_is_protocol", False))
    ]
    places = [vars(found)[name].__module__.removeprefix("fedhet.") for name in own]
    parts = [f"::: {place}.{name}" for place, name in zip(places, own, strict=True)]
    head = f"# {title}\n\n{quoted(found)}"
    return "\n\n".join([head, *parts]) + "\n"

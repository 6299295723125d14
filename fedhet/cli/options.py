"""What the modules of commands share: words that several take, and how help is shown."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

from fedhet.cli.saying import tell
from fedhet.errors import UserError

Register = Callable[[], Callable[[Callable[..., None]], object]]  # makes a command's decorator

ConfigName = Annotated[
    str, typer.Argument(metavar="CONFIG", help="YAML file, or a shipped preset (quickstart)")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="keys that replace the file's")
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="engine, rounds and other keys that may change"),
]
Connection = Annotated[
    str | None,
    typer.Option(help="run there: a connection in Flower's config.toml", metavar="CONNECTION"),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="import the code that it names, whoever made it: it runs as you"),
]
Ray = Annotated[
    str,
    typer.Option(
        help="run the cells on this Ray cluster, HOST:PORT; else RAY_ADDRESS is asked",
        metavar="ADDRESS",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


class Command(TyperCommand):
    """A command whose ``--help`` shows what its arguments mean.

    Since click's arguments have a help text of their own (8.2), theirs, empty, replaces typer's.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for note in getattr(hints.get(str(parameter.name)), "__metadata__", ()):
                if isinstance(note, ArgumentInfo) and isinstance(parameter, TyperArgument):
                    parameter.help = parameter.help or note.help

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option without a value, as a script's unset variable gives it."""
        taking = {
            name for one in self.params if isinstance(one, click.Option) and not one.is_flag
            for name in one.opts
        }  # fmt: skip
        for word, following in zip(args, [*args[1:], "-"], strict=False):
            name, equals, value = word.partition("=")
            if name in taking and not (value if equals else following).strip():
                raise UserError(f"{name}: '' is not allowed: give it a value, or leave it out")
        return super().parse_args(ctx, args)


def loading(*, as_json: bool = False) -> None:
    """Say to a terminal, before the imports that take seconds, why nothing happens yet.

    Not to a program: what it reads on stderr is a run's trouble, nothing else.
    """
    if sys.stderr.isatty() and not as_json and "torch" not in sys.modules:
        tell("loading torch and Flower ...")

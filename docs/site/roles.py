"""Show names in Sphinx's roles as code in the docstrings of the site; texts in cells."""

import html
import re

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Roles(griffe.Extension):
    """Replaces roles, such as ``:class:`~fedhet.api.Run```, by the last part of the name."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Replace the roles in everything that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)


def plain(text: str) -> str:
    """Return the text with names instead of roles."""
    return _ROLE.sub(_shown, text)


def _shown(role: re.Match[str]) -> str:
    whole = role[0].split("`")[1]
    name = role[1].rpartition(".")[2] if whole.startswith("~") else role[1]
    return f"`{name.removeprefix('.')}`"


def cell(words: str) -> str:
    """Return a text as it is, in a cell of a table."""
    escaped = html.escape(" ".join(words.split()), quote=False)
    return re.sub(r"[\\`*_|\[\]]", r"\\\g<0>", escaped)

"""The app that ``fedhet run`` gives to Flower: our source files, and nothing else of a folder.

Flower runs an app from its source, which it sends to every client. A wheel has no folder with a
``pyproject.toml``, and a checkout has more in it than the app. So every run makes its own, laid out
as a wheel is: with ``clients/`` at its top, where Flower imports from, it would hide a package of
somebody else's that has so common a name.
"""

import json
import shutil
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from fedhet import __version__, layout
from fedhet.errors import UserError

PUBLISHER = "fedhet"
COMPONENTS = {"serverapp": "fedhet.server_app:app", "clientapp": "fedhet.client_app:app"}


def project() -> str:
    """Its ``pyproject.toml``, from what was installed; UserError if fedhet is not.

    The dependencies are for a SuperLink that installs them itself.
    """
    try:
        about = metadata("fedhet")
    except PackageNotFoundError as error:
        raise UserError(
            f"fedhet runs from '{layout.HERE}' without being installed, and Flower asks for its "
            "dependencies: `pip install` it, or use engine=inline"
        ) from error
    needs = [need for need in about.get_all("Requires-Dist", []) if "extra ==" not in need]
    tables: dict[str, dict[str, str | list[str]]] = {
        "project": {
            "name": about["Name"],
            "version": __version__,
            "description": about["Summary"],
            "license": about["License-Expression"],
            "requires-python": about["Requires-Python"],
            "dependencies": needs,
        },
        "tool.flwr.app": {"publisher": PUBLISHER},
        "tool.flwr.app.components": dict(COMPONENTS),
        "tool.flwr.app.config": {"config": ""},  # fedhet.config.load.envelope
    }
    lines: list[str] = []
    for table, entries in tables.items():
        # JSON's strings and lists of strings are TOML's as well
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> Path:
    """Make the app in a new ``folder``, which is returned; UserError as :func:`project`."""
    text = project()
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    for name, path in layout.sources():
        target = folder / "fedhet" / name.removeprefix("fedhet/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)  # without its mode: the files of a system are read-only
    return folder

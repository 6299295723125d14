"""The application that ``fedhet run`` gives to Flower, and its comparison at a node.

Flower sends an application's source with every run: a folder with our source files, laid out as in
a wheel, since a ``clients/`` at its top would hide somebody else's package. A node compares what it
was sent with the files that its owner installed; it neither unpacks nor imports them.
"""

import hashlib
import io
import shutil
import tomllib
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fedhet import __version__
from fedhet.files import sources

CLIENT_APP = ("fedhet.client_app", "app")
COMPONENT = ":".join(CLIENT_APP)
PROJECT, MANIFEST = "pyproject.toml", ".info/CONTENT"
PROJECT_BYTES = 1 << 16  # ours has 1,500
# What Flower wants of an application; a SuperLink of ours installs no dependencies.
ABOUT = f"""[project]
name = "fedhet"
version = "{__version__}"
description = "Model-heterogeneous personalised federated learning"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedhet"
config = {{config = ""}}
[tool.flwr.app.components]
serverapp = "fedhet.server_app:app"
clientapp = "{COMPONENT}"
"""  # `config` is that of fedhet.config.load.envelope


def write(folder: Path) -> Path:
    """Make the application in a new ``folder`` and return it."""
    folder.mkdir(parents=True)
    (folder / PROJECT).write_text(ABOUT, encoding="utf-8")
    for name, path in _sources().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)  # without its mode: the files of a system are read-only
    return folder


def _sources() -> dict[str, Path]:
    """Our source files by their names in the application."""
    return {f"fedhet/{name.removeprefix('fedhet/')}": path for name, path in sources()}


def installed() -> dict[str, tuple[int, bytes]]:
    """Return size and SHA-256 of every file of the installed application by its name in there."""
    contents = {name: path.read_bytes() for name, path in _sources().items()}
    return {name: (len(c), hashlib.sha256(c).digest()) for name, c in contents.items()}


def difference(sent: bytes, own: Mapping[str, tuple[int, bytes]]) -> str:
    """Return in one line how a sent application differs from the installed one; empty if equal.

    Files, each once, their contents and the component that Flower would run must be the same.
    Nothing is written, and no more of a file is decompressed than the installed one has.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(sent)) as archive:
            about = tomllib.loads(_start_of(archive, PROJECT, PROJECT_BYTES).decode())
            version = about["project"]["version"]
            component = about["tool"]["flwr"]["app"]["components"]["clientapp"]
            names = archive.namelist()
            odd = set(names) ^ {*own, PROJECT, MANIFEST}
            odd |= {name for name, times in Counter(names).items() if times > 1}
            for name in own.keys() - odd:
                size, digest = own[name]
                if hashlib.sha256(_start_of(archive, name, size)).digest() != digest:
                    odd.add(name)
    except Exception as error:  # bytes of the other side may be anything
        return f"this run's application cannot be read ({type(error).__name__})"
    if component != COMPONENT:
        return f"this run's application is not fedhet: it runs {component!r:.80}"
    if odd and version != __version__:
        return f"this run's fedhet {version!s:.40} is not this site's {__version__}"
    if odd:
        text = f"{len(odd)} files differ, such as '{min(odd):.80}'"
        return f"this run's fedhet {__version__} is not the one installed at this site: {text}"
    return ""


def _start_of(archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    """Return ``size`` bytes of a member, and one more if there is one."""
    with archive.open(name) as file:
        return file.read(size + 1)

"""The application that ``fedhet run`` gives to Flower, and its comparison at a node.

Flower sends an application's source with every run: a folder with our source files, laid out as in
a wheel, since a ``clients/`` at its top would hide somebody else's package. A node compares what it
was sent with the files that its owner installed; it neither unpacks nor imports them.
"""

import io
import tomllib
import zipfile
from collections import Counter
from collections.abc import Mapping

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


def application() -> dict[str, bytes]:
    """Return the files of the application by their names: our sources, and what they are."""
    ours = {f"fedhet/{name.removeprefix('fedhet/')}": path for name, path in sources()}
    return {PROJECT: ABOUT.encode()} | {name: path.read_bytes() for name, path in ours.items()}


def difference(sent: bytes, own: Mapping[str, bytes]) -> str:
    """Return in one line how a sent application differs from our ``own``; empty if it does not.

    Files, each once, their contents and the component that Flower would run must be the same.
    Nothing is written, and no more of a file is decompressed than the installed one has.
    """

    def start_of(name: str, size: int) -> bytes:  # and one byte more, if there is one
        with archive.open(name) as file:
            return file.read(size + 1)

    try:
        with zipfile.ZipFile(io.BytesIO(sent)) as archive:
            about = tomllib.loads(start_of(PROJECT, PROJECT_BYTES).decode())
            version = about["project"]["version"]
            component = about["tool"]["flwr"]["app"]["components"]["clientapp"]
            times = Counter(archive.namelist())
            odd = {*times} ^ {*own, MANIFEST} | {name for name in times if times[name] > 1}
            code = own.keys() - odd - {PROJECT}  # which Flower writes anew
            odd |= {name for name in code if start_of(name, len(own[name])) != own[name]}
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

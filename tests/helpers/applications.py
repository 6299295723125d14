"""Applications as a server sends them, honest and not."""

import io
import stat
import zipfile

from fedhet.deploy import bundle
from fedhet.protocol.flower import packed_app

CLIENT, PROJECT = "fedhet/client_app.py", "pyproject.toml"


def honest(folder):
    """The application as `fedhet run` sends it: content by name."""
    with zipfile.ZipFile(io.BytesIO(packed_app(bundle.write(folder)))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files, *more, link=""):
    """A zip of these files and more entries, one of them a link."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in (*files.items(), *more):
            info = zipfile.ZipInfo(name)
            if name == link:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, content)
    return stream.getvalue()

"""What is meant by a path, by a server's folder, or by both."""

from pathlib import Path

from fedhet.errors import UserError
from fedhet.watch.run import RunView
from fedhet.watch.sites import Sites
from fedhet.watch.sweep import SweepView


def open_view(path: Path | None, superlink: str = "") -> RunView | SweepView:
    """The view of a run folder or a folder of runs; UserError if it is neither.

    With ``superlink``, the folder that `fedhet server` was given, the sites of that server are
    shown with it; without ``path`` it is the server's last run.
    """
    sites = Sites.connect(Path(superlink).expanduser().absolute()) if superlink else None
    if path is None:
        if sites is None:
            raise UserError("watch: give a run folder or a sweep's, --superlink TLS, or both")
        path = sites.last_run()
    path = path.expanduser().absolute()
    try:
        if (path / "config.yaml").is_file():
            return RunView(path, sites)
        if not path.exists():
            raise UserError(f"'{path}': no such run: `fedhet runs DIR` lists those of a folder")
        if not path.is_dir():
            raise UserError(f"'{path}' is a file: give a run folder or a sweep's")
        runs = any(path.glob("sweeps/*/sweep.json")) or any(path.glob("*/config.yaml"))
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from error
    if not runs:
        raise UserError(
            f"'{path}': no run is there: a run folder has config.yaml, a sweep's folder sweeps/ or "
            "run folders"
        )
    if sites is not None:
        raise UserError("--superlink: only used with one run")
    return SweepView(path)

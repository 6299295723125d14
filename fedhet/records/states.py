"""The states of simulated clients, where they lie, and whose they are.

Inside the run folder they are the run's. A ``state-dir`` elsewhere is shared by runs, and a run
folder that somebody else made may name any: there a file beside the clients' folders says which run
folder they belong to, and only that one goes on from them or removes them.
"""

import shutil
from pathlib import Path

from fedhet.errors import VerifyError
from fedhet.files import private_files, write_text
from fedhet.records.run_folder import RunFolder
from fedhet.schema import RunConfig

OWNER = "owner~"  # no client can be called that


def states_of(folder: RunFolder, config: RunConfig) -> Path:
    """The folder of the run's states."""
    return folder.state_dir(config) / folder.experiment


def claim_states(folder: RunFolder, config: RunConfig) -> None:
    """Say that the states are this run folder's; VerifyError if they are another one's."""
    path = states_of(folder, config)
    if _outside(folder, path) and config.state_backend == "file":
        if path.exists():
            check_owner(folder, config)
        else:
            with private_files():
                path.mkdir(parents=True)
                write_text(path / OWNER, str(folder.path))


def check_owner(folder: RunFolder, config: RunConfig) -> None:
    """VerifyError if states outside the run folder are not marked as this run folder's."""
    path = states_of(folder, config)
    if not _outside(folder, path):
        return
    try:
        owner = (path / OWNER).read_text(encoding="utf-8")
    except (OSError, ValueError):
        owner = ""
    if owner != str(folder.path):
        raise VerifyError(
            f"'{path / OWNER}' does not say that these states belong to '{folder.path}': if you "
            "moved the run folder, write its path there"
        )


def remove_states(folder: RunFolder, config: RunConfig) -> None:
    """Delete the states of a completed run; what is not this run folder's stays."""
    try:
        check_owner(folder, config)
    except VerifyError:
        return
    shutil.rmtree(states_of(folder, config), ignore_errors=True)  # follows no link


def _outside(folder: RunFolder, path: Path) -> bool:
    return not path.is_relative_to(folder.path)

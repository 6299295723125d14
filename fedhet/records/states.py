"""The states of simulated clients, where they lie, and whose they are.

In ``RUN/state`` they are the run's. Anywhere else they are only taken up, written or removed where
this user's register says that they are this run's: a run folder that somebody else made may name
any place. ``fedhet resume RUN state-dir=PLACE``, the user's own word, enters them there.
"""

import shutil
from pathlib import Path

from fedhet.config.schema import RunConfig
from fedhet.errors import UserError, VerifyError
from fedhet.files import private_files, write_text
from fedhet.records import register
from fedhet.records.run_folder import RunFolder

OWNER = "owner~"  # beside the clients' folders, none of which can be called that


def states_of(folder: RunFolder, config: RunConfig) -> Path:
    """The folder of the run's states, without links or ``..``."""
    return (folder.state_dir(config) / folder.experiment).resolve()


def claim_states(folder: RunFolder, config: RunConfig) -> None:
    """Make the folder of the states, if it is elsewhere; VerifyError if it is not this run's."""
    if config.state_backend != "file":
        return
    check_owner(folder, config)
    path = states_of(folder, config)
    if not _own(folder, path) and not path.exists():
        with private_files():
            path.mkdir(parents=True)
            write_text(path / OWNER, str(folder.path))


def check_owner(folder: RunFolder, config: RunConfig) -> None:
    """VerifyError if states outside ``RUN/state`` are not known to be this run folder's."""
    path = states_of(folder, config)
    if _own(folder, path):
        return
    entry = register.find(folder.experiment)
    if entry is None or entry.states != str(path) or entry.folder != str(folder.path.resolve()):
        known = f"; they are known as those of '{entry.folder}'" if entry is not None else ""
        raise VerifyError(
            f"state-dir: '{path.parent}' lies outside '{folder.path}', and no run of yours is "
            f"known to have its states there{known}; if they are yours, and this folder was moved "
            f"or copied, `fedhet resume {folder.path} state-dir={path.parent}` says so (or "
            f"state-dir={folder.path / 'state'}, if you put them there)"
        )


def adopt_states(folder: RunFolder, config: RunConfig) -> None:
    """Enter states where the user says that they are; UserError for what are no run's states."""
    path = states_of(folder, config)
    if _own(folder, path):
        return
    entry = register.find(folder.experiment)
    if entry is not None and entry.folder != str(folder.path.resolve()):
        other = RunFolder(Path(entry.folder))
        if other.identity.exists() and other.experiment == folder.experiment:
            raise UserError(
                f"state-dir: '{path}' belongs to '{other.path}', which is still there: two run "
                "folders cannot go on from the same states"
            )
    if not (path / OWNER).is_file():
        raise UserError(
            f"state-dir: '{path}' holds no clients' states of a run ('{OWNER}' is missing)"
        )
    try:
        register.note(folder.experiment, folder.path, register.named(config.flat()), path)
    except OSError as error:
        raise UserError(
            f"'{register.place()}' cannot be written: {error.strerror}; XDG_STATE_HOME names "
            "another place"
        ) from error


def remove_states(folder: RunFolder, config: RunConfig) -> None:
    """Delete the states of a completed run; what is not this run folder's stays."""
    try:
        check_owner(folder, config)
    except VerifyError:
        return
    shutil.rmtree(states_of(folder, config), ignore_errors=True)  # follows no link


def _own(folder: RunFolder, path: Path) -> bool:
    """Whether that is the place inside the run folder; a link there leads elsewhere."""
    return path == folder.path.resolve() / "state" / folder.experiment

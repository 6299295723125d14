"""Who holds a folder: names of the locks, and how to ask without taking one."""

import fcntl
import os
from pathlib import Path

from fedhet.errors import VerifyError

LOCK = ".lock"  # of whoever writes a run, or runs a sweep
OWNER = ".owner"  # of the command that has a run done


def held(path: Path) -> bool:
    """Whether somebody holds a lock.

    It is asked for with others (for the moment of this call) by who cannot make or change it; a
    command that begins in that very moment finds the folder in use, so this is not asked often.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise VerifyError(f"'{path}' cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False

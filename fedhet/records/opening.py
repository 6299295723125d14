"""A run folder's configuration for whoever opens it: no code that it names runs unasked."""

import contextlib
from collections.abc import Iterator
from typing import Any

from fedhet import plugins
from fedhet.records import register
from fedhet.records.run_folder import RunFolder


@contextlib.contextmanager
def opened(folder: RunFolder, *, trust: bool) -> Iterator[dict[str, Any]]:
    """The configuration that a run was started with; meanwhile only what may be is imported.

    UserError where it names code of others, unless this user made the run or ``trust``.
    """
    started = folder.started_config()
    names = register.named(started)
    trusted = trust or register.trusts(folder.experiment, folder.path, names)
    register.require_trust(f"'{folder.path}'", names, trusted=trusted)
    with plugins.guarded(lambda _: trusted):
        yield started

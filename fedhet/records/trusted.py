"""A run folder's configuration for whoever opens it: no code that it names runs unasked."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedhet import plugins
from fedhet.config.schema import RunConfig
from fedhet.data.named_sources import TORCHVISION
from fedhet.errors import UserError
from fedhet.records import register
from fedhet.records.run_folder import RunFolder
from fedhet.records.states import check_owner, states_of


def check_downloads(folder: RunFolder, config: RunConfig) -> None:
    """UserError if a run that was not made here names where something would be downloaded to."""
    if register.trusts(folder.experiment, folder.path, ()):
        return
    for key, name, place in (
        ("data-path", config.dataset, config.data_path),
        ("public-path", config.public_dataset, config.public_path),
    ):
        if name in TORCHVISION and place:
            raise UserError(
                f"{key}: '{place}' is where '{name}' would be downloaded to, and the run was not "
                "made here: `fedhet resume --trust` allows it"
            )


def own_states(folder: RunFolder, config: RunConfig) -> Path:
    """The folder of the run's states; VerifyError if it is elsewhere, and not known as this run's.

    Nobody is shown what lies at a place that a stranger's configuration names.
    """
    check_owner(folder, config)
    return states_of(folder, config)


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

"""fedhet from Python, in a script or a notebook: run, resume, and look at what came out.

Every mistake is a :class:`~fedhet.errors.UserError`, a run that did not complete a
:class:`~fedhet.errors.RunFailed`; the message is the one line that the command line shows.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedhet.cli.common import RunProgress, tell
from fedhet.config.load import load_noted
from fedhet.config.registry import folder_name
from fedhet.config.schema import kebab
from fedhet.data.inputs import safe_ids
from fedhet.engines import session
from fedhet.engines.system import Interrupted
from fedhet.errors import UserError, one_line
from fedhet.export.model import Personalised, load_model, states_of
from fedhet.files import is_id, plain_path
from fedhet.plugins import look_here
from fedhet.records.formats import FIRST, read_evaluations
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import headline


class Run:
    """A run folder, read when a property is read. ``str(run)`` says how it went."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raise UserError if ``path`` is not a run folder."""
        self.path = plain_path(path)
        self._folder = RunFolder(self.path)
        self.config: dict[str, Any] = self._folder.started_config()

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: the figures of the whole run; empty while it has not ended."""
        return self._folder.read_summary()

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One dict per finished round, as in ``rounds.jsonl``: accuracies in percent, seconds."""
        return self._folder.read_rounds()

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per client and evaluation, as in ``clients.csv``, numbers as numbers."""
        if not self._folder.clients.exists():
            return []
        rows = read_evaluations(self._folder.clients)
        return [{key: getattr(row, key) for key in FIRST} | row.other for row in rows]

    def model(
        self,
        client: str | int,
        generation: int | Literal["best"] | None = None,
        *,
        trust: bool = False,
    ) -> Personalised:
        """Return a client's personalised model, on the CPU and in evaluation mode.

        ``client`` is its id, or the site's name in the data (``Klinikum Nord``).
        Images (B, 3, s, s) float32 in [-1, 1] to logits (B, C) over ``model.classes``.
        ``generation`` is the round after which it is taken, ``best`` that of the best validation
        (``keep-best``), by default the last that the server accepted. ``model.predict(examples)``
        gives a DataFrame. Raises UserError if the client has no state here: never sampled, another
        machine's, or ``keep-state=false``; or if the run names code of others, unless this user
        made it or ``trust`` is set.
        """
        there = {path.name: path for path in states_of(self.path, trust=trust)}
        name = str(client)
        if name not in there:  # an id made of a name may end in a number
            made = re.sub(r"-\d+$", "", safe_ids([name])[0])
            found = [one for one in there if re.fullmatch(rf"{re.escape(made)}(-\d+)?", one)]
            if len(found) != 1 or is_id(name):
                raise UserError(
                    f"client: '{one_line(name, 80)}' has no state in '{self.path}'; clients with a "
                    f"state: {', '.join(there)}"
                )
            name = found[0]
        return load_model(there[name], generation, trust=trust)[0]

    def __repr__(self) -> str:
        return f"Run('{self.path}')"

    def __str__(self) -> str:
        done = self.summary
        if not done:
            return f"{self.config.get('method')}: {len(self.rounds)} rounds finished ({self.path})"
        shown = headline(done.get("metric", "accuracy"), done)
        return (
            f"{done.get('method')}: {done['status']}, test {shown} "
            f"after {done['rounds']} rounds ({self.path})"
        )


def run(config: str | os.PathLike[str] | None = None, *, progress: bool = True, **keys: Any) -> Run:
    """Run a configuration to its end: ``fedhet.run("configs/fedssa.yaml", rounds=3)``.

    ``config`` is a YAML file or a shipped preset, None for the defaults alone; ``keys`` replace
    the file's, in snake_case and with Python's values (``models=["cnn-5"]``). ``progress=False``
    shows nothing. With ``engine="inline"`` all happens in this process. Raises UserError,
    RunFailed, or KeyboardInterrupt when it was interrupted; :func:`resume` then goes on.
    """
    look_here()
    path = None if config is None else session.find_preset(os.fspath(config))
    loaded, notes = load_noted(path, changes=_keys(keys))
    name = folder_name(loaded.method) if path is None else path.stem
    begin = partial(session.start, loaded, name, _console(progress=progress), notes=notes)
    return Run(_done(begin).path)


def resume(
    run: str | os.PathLike[str] | Run, *, progress: bool = True, trust: bool = False, **keys: Any
) -> Run:
    """Go on with a run after its last finished round; ``rounds=N`` extends a finished one.

    ``run`` is one, or its folder; ``keys`` are those that may change, as for :func:`run`, and
    ``progress=False`` shows nothing. ``trust``: code that the run names is imported although
    somebody else made it. Raises UserError, Damaged for a folder that is damaged,
    RunFailed, or KeyboardInterrupt when it was interrupted.
    """
    look_here()
    path = run.path if isinstance(run, Run) else Path(run)
    work = partial(session.resume, path, _keys(keys), _console(progress=progress), trust=trust)
    return Run(_done(work).path)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run in a folder; UserError if ``path`` is none."""
    return Run(path)


def _done(work: Callable[[], RunFolder]) -> RunFolder:
    """Return what ``work`` returns; raise Python's own exceptions for an interruption."""
    try:
        return work()
    except Interrupted as interrupt:
        if interrupt.exit_code == 130:
            raise KeyboardInterrupt from None
        raise SystemExit(interrupt.exit_code) from None


def _console(*, progress: bool) -> session.Console:
    say = tell if progress else lambda _: None
    return session.Console(say, partial(RunProgress, silent=not progress))


def _keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys as YAML has them, with Python's collections and paths as YAML gives them."""
    made = {kebab(key): value for key, value in keys.items()}
    for key, value in made.items():
        if isinstance(value, os.PathLike):
            made[key] = os.fspath(value)
        elif isinstance(value, tuple | set | range):
            made[key] = list(value)
    return made

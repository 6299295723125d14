"""fedhet from Python: run, resume, and look at what came out.

Models, data, metrics and a method may be objects. Each gets a name, which stands in the
configuration (:func:`fedhet.plugins.name_of`). Every mistake is a :class:`fedhet.UserError`, a run
that did not complete a :class:`fedhet.RunFailed`, with the line that the command line shows.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedhet.cli.common import RunProgress, tell
from fedhet.config.load import find_preset, load_noted
from fedhet.config.registry import folder_name, named
from fedhet.config.schema import METRICS, kebab
from fedhet.data.inputs import safe_ids
from fedhet.data.objects import understand
from fedhet.engines import session
from fedhet.engines.launch import OnRound, between_runs
from fedhet.engines.system import Interrupted
from fedhet.errors import UserError, one_line
from fedhet.export.model import load_model, states_of
from fedhet.export.predict import Personalised
from fedhet.files import is_id, plain_path
from fedhet.models.names import DEFAULT_GROUP
from fedhet.plugins import MODEL_KEYS, giving, look_here
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import headline
from fedhet.reports.reading import evaluations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBJECTS = ("models", "data", "metrics", "method", *MODEL_KEYS)  # arguments that may be objects


class Run:
    """A run folder, read when a property is read. ``str(run)`` says how it went."""

    def __init__(
        self, path: str | os.PathLike[str], objects: Mapping[str, Any] | None = None
    ) -> None:
        """Raise UserError if ``path`` is not a run folder; ``objects`` by name are the run's."""
        self.path = plain_path(path)
        self._folder = RunFolder(self.path)
        self._objects = dict(objects or {})
        self.config: dict[str, Any] = self._folder.started_config()

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: the figures of the whole run; empty while it has not ended."""
        return self._folder.read_summary()

    @property
    def rounds(self) -> pd.DataFrame:
        """A DataFrame, a row a round, as in ``rounds.jsonl``: accuracies in percent, seconds."""
        return pd.DataFrame(self._folder.read_rounds())

    @property
    def clients(self) -> pd.DataFrame:
        """A DataFrame, a row a client and evaluation, as in ``clients.csv``; NaN for a gap."""
        return evaluations(self._folder.clients)

    def plot(self, metric: str = "") -> "Figure":
        """Return a matplotlib figure: a metric over rounds, one thin line a client, the mean.

        ``metric`` is by default the run's own (accuracy). Raise UserError if nobody has it.
        """
        from matplotlib.figure import Figure  # noqa: PLC0415  (half a second, for those who plot)

        metric = metric or str(self.config.get("metric", "accuracy"))
        column, clients, rounds = f"test_{metric}", self.clients, self.rounds
        if column not in clients or clients[column].isna().all():
            there = [name[5:] for name in clients if str(name).startswith("test_")]
            raise UserError(f"metric: no client has '{metric}'; there: {', '.join(there)}")
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for _, one in clients.dropna(subset=[column]).groupby("client"):
            axes.plot(one["round"], one[column], color="tab:blue", linewidth=0.6, alpha=0.4)
        axes.plot(rounds["round"], rounds[f"{column}_mean"], color="tab:blue", linewidth=2)
        about = METRICS.get(metric)
        label = metric if about is None else about.title + " (%)" * about.percent
        title = f"{self.config.get('method')}: mean and {clients['client'].nunique()} clients"
        axes.set(xlabel="round", ylabel=f"test {label}", title=title)
        return figure

    def model(self, client: str | int, *, best: bool = False, trust: bool = False) -> Personalised:
        """Return a client's personalised model, on the CPU and in evaluation mode.

        ``client`` is its id, or the site's name in the data (``Klinikum Nord``). The model is the
        last one that the server accepted, with ``best`` that of the best validation round
        (``keep-best``): of images (B, 3, s, s) float32 in [-1, 1] logits (B, C) over
        ``model.classes``. ``model.predict(examples)`` gives a DataFrame. Raises UserError if the
        client has no state here, or if the run names code of others, unless ``trust`` is set.
        """
        states = {path.name: path for path in states_of(self.path, trust=trust)}
        name = str(client)
        if name not in states:  # an id made of a name may end in a number
            stem = re.sub(r"-\d+$", "", safe_ids([name])[0])
            near = [one for one in states if re.fullmatch(rf"{re.escape(stem)}(-\d+)?", one)]
            if len(near) != 1 or is_id(name):
                raise UserError(
                    f"client: '{one_line(name, 80)}' has no state in '{self.path}'; clients with a "
                    f"state: {', '.join(states)}"
                )
            name = near[0]
        with between_runs(), giving(self._objects):
            return load_model(states[name], best=best, trust=trust)[0]

    def __repr__(self) -> str:
        return f"Run('{self.path}')"

    def __str__(self) -> str:
        done, said = self.summary, f"{len(self.rounds)} rounds finished"
        if done:
            shown = headline(done.get("metric", "accuracy"), done)
            said = f"{done['status']}, test {shown} after {done['rounds']} rounds"
        return f"{self.config.get('method')}: {said} ({self.path})"


def run(
    config: str | os.PathLike[str] | None = None,
    *,
    on_round: OnRound | None = None,
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Run a configuration to its end: ``fedhet.run("configs/fedssa.yaml", rounds=3)``.

    ``config`` is a YAML file or a shipped preset, None for the defaults alone; ``keys`` replace
    the file's, in snake_case and with Python's values (``models=["cnn-5"]``). Beside names they
    may be objects (docs/how-to/python.md): ``method`` a :class:`Method`; ``models`` and
    ``small_model`` modules, classes or functions; ``data`` arrays, tensors, frames or data sets;
    ``metrics`` functions of labels (n,) and probabilities (n, C), by name. ``on_round`` is called
    with the record of every round; if it returns False the run ends, completed. ``progress=False``
    shows warnings alone. A process has one run at a time. Raises UserError, RunFailed, or
    KeyboardInterrupt when it was interrupted; :func:`resume` then goes on.
    """
    look_here()
    path = None if config is None else find_preset(os.fspath(config))
    values, objects = _named(keys)
    with giving(objects), _interrupted():
        loaded, notes = load_noted(path, _keys(values))
        name = path.stem if path else folder_name(loaded.method)
        console = _console(progress=progress)
        folder = session.start(loaded, name, console, notes=notes, on_round=on_round)
        return Run(folder.path, objects)


def resume(
    run: str | os.PathLike[str] | Run,
    *,
    on_round: OnRound | None = None,
    progress: bool = True,
    trust: bool = False,
    **keys: Any,
) -> Run:
    """Go on with a run after its last finished round; ``rounds=N`` extends a finished one.

    ``run`` is one, or its folder; ``keys`` are those that may change. ``on_round`` and ``progress``
    are as for :func:`run`. Objects that the run was given (``models``, ``data``, ``metrics``,
    ``method``) are given again, unless ``run`` still has them; others are refused. ``trust``: code
    that the run names is imported although somebody else made it. Raises as :func:`run` does, and
    Damaged for a folder that is damaged.
    """
    look_here()
    path, kept = (run.path, run._objects) if isinstance(run, Run) else (Path(run), {})
    values, objects = _again(path, keys)
    with giving(kept | objects), _interrupted():
        console = _console(progress=progress)
        folder = session.resume(path, _keys(values), console, trust=trust, on_round=on_round)
        return Run(folder.path, kept | objects)


def load_run(path: str | os.PathLike[str], **objects: Any) -> Run:
    """Return the run in a folder; UserError if ``path`` is none.

    ``objects`` are those that the run was given (``models``, ``method``, ...), which
    :meth:`Run.model` needs again.
    """
    return Run(path, _again(Path(path), objects)[1])


# --- objects and their names -------------------------------------------------------------------


def _named(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keys with names in place of objects and of ``data``, and the objects by name."""
    values, objects = named(keys)
    if not isinstance(values.get("dataset", ""), str):
        raise UserError("dataset: it takes a name; objects are given as data=")
    if "data" not in values:
        return values, objects
    if values.get("dataset"):
        raise UserError("data: give it, or dataset=NAME, not both")
    clients = values.get("clients") or ()
    names = [str(one) for one in (range(clients) if isinstance(clients, int) else clients)]
    read = understand(values.pop("data"), names, text=bool(values.get("text")))
    objects[read.name] = read
    values["dataset"] = read.name
    if not isinstance(clients, int):
        values["clients"] = len(names)
    if read.site:
        values["site"] = [read.site]
    if values.get("site") or (read.data and read.data.clients) is not None:
        values.setdefault("partition", "natural")
    values.setdefault("models", [DEFAULT_GROUP[read.kind]])
    return values, objects


def _again(path: Path, keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keys of a resumed run and the objects among them; UserError for other objects."""
    values = {key: value for key, value in keys.items() if kebab(key) not in OBJECTS}
    about = {k: value for k, value in keys.items() if k not in values and value is not None}
    if not about:
        return values, {}
    started = RunFolder(plain_path(path)).started_config()
    like = {key: started[key] for key in ("text", "site", "clients") if started.get(key)}
    again, objects = _named(like | about)
    for key in about:
        name = "dataset" if key == "data" else key
        before, now = started.get(kebab(name)), again.get(name)
        if key == "metrics":
            now = {name: function for name, (function,) in again[key].items()}
        if now != before and not (key == "models" and set(before or ()) <= set(now or ())):
            raise UserError(
                f"{key}: is not what this run was given: it is now {one_line(now)}, and was "
                f"{one_line(before)}"
            )
    return values, objects


# --- beside -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Raise Python's own exceptions for an interruption."""
    try:
        yield
    except Interrupted as end:
        code = end.exit_code
        raise (KeyboardInterrupt if code == 130 else SystemExit(code)) from None


def _console(*, progress: bool) -> session.Console:
    def say(text: str) -> None:
        if progress or text.startswith("warning"):
            tell(text)

    return session.Console(say, partial(RunProgress, mode="" if progress else "silent"))


def _keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys as YAML has them, with Python's collections and paths as YAML gives them."""
    return {
        kebab(key): os.fspath(value) if isinstance(value, os.PathLike)
        else list(value) if isinstance(value, tuple | set | range) else value
        for key, value in keys.items()
    }  # fmt: skip

"""``fedhet export``: a client's private state becomes a model that anybody can run.

Only the client's machine can do it: nobody else has the state. The folder appears whole or not at
all, and says in ``card.yaml`` what the model is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from safetensors.torch import load_file

import fedhet
from fedhet import plugins
from fedhet.config.load import build_config
from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.errors import Damaged, Refused, UserError, brief
from fedhet.export import onnx as onnx_file
from fedhet.export.model import CARD, FORMAT, Personalised, load_model, rebuild, write_weights
from fedhet.files import appearing, client_order, csv_text, plain_path, read_json, write_text
from fedhet.records.run_folder import RunFolder
from fedhet.site.state import DESCRIPTION, PREDICTIONS, FileStore, accuracies_of

_CARD = ("method", "architecture", "run", "client")  # of the description, for the card


@dataclass(frozen=True)
class Exported:
    """A client's inference model with what is known about it."""

    model: Personalised
    description: dict[str, Any]
    generation: int
    metrics: dict[str, float]

    def card(self) -> dict[str, Any]:
        """The contents of ``card.yaml`` as far as the state says it."""
        about = {k: v for k, v in self.description.items() if k != plugins.MAC}
        return {
            "format": FORMAT,
            "fedhet": fedhet.__version__,
            "method": about.pop("method"),
            "architecture": about.pop("architecture"),
            "parameters": self.model.parameter_count(),
            "parts": list(self.model.parts),
            "run": about.pop("run"),
            "client": about.pop("client"),
            "generation": self.generation,
            "accuracy": {  # percent, of the client's own examples; null: not in that round
                "test": self.metrics.get("test_accuracy"),
                "validation": self.metrics.get("val_accuracy"),
            },
            "input": describe_input(self.model.inputs),
            "output": "logits (batch, classes); their softmax is the probabilities",
            **about,
        }


def describe_input(inputs: Inputs) -> dict[str, Any]:
    """What goes into the network, and how it comes of raw examples, for people."""
    dtype = "int64" if inputs.kind == TOKENS else "float32"
    about: dict[str, Any] = {"shape": ["batch", *inputs.shape], "dtype": dtype}
    if inputs.kind == IMAGE:
        return about | {
            "channels": "grey" if inputs.channels == 1 else "RGB",
            "resize": "bilinear, aspect not kept",
            "normalisation": "2 (x - low) / (high - low) - 1, cut to [-1, 1], low and high as in "
            "model.safetensors"
            if inputs.scan
            else "pixel / 127.5 - 1, pixel in 0..255",
        }
    words = {
        SIGNAL: "(x / scale - mean) / deviation by channel, as in model.safetensors",
        TABLE: "standardised numbers with the median for a gap, which columns are gaps, then "
        "one-hot categories; median, mean and deviation as in model.safetensors",
        TOKENS: "words and marks in lower case, each 1 + CRC-32 mod (vocabulary - 1), 0 behind",
    }
    return about | {"preparation": words[inputs.kind]}


def export(
    state: Path,
    out: Path,
    *,
    generation: int | Literal["best"] | None = None,
    images: Sequence[Path] | None = None,
    trust: bool = False,
) -> Path:
    """Write the inference model of ``state`` to the new folder ``out``; returns its path.

    ``generation`` None means the newest. ``images`` asks for ONNX as well, compared with torch on
    those images, or on the built-in digits if it is empty. ``trust``: code that the state names is
    imported, whoever made it.
    Raises UserError, in one line, for everything that is not as it should be.
    """
    if images is not None:
        onnx_file.require()
    out = plain_path(out)
    if out.exists():
        raise UserError(f"out: '{out}' already exists: choose a new folder, nothing is overwritten")
    exported = open_state(state, generation, trust=trust)
    try:
        with appearing(out) as folder:  # private: a model trained on private images is, too
            card = exported.card() | {"sha256": write_weights(exported.model, folder)}
            if images is not None:
                card["onnx"] = onnx_file.write(exported.model, folder, images)
            card[plugins.MAC] = plugins.sign(card)
            text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
            (folder / CARD).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"out: '{out}' cannot be written: {error.strerror or error}") from error
    return out


def export_all(
    run: Path,
    out: Path,
    *,
    best: bool = False,
    images: Sequence[Path] | None = None,
    trust: bool = False,
) -> tuple[list[Path], dict[str, str]]:
    """:func:`export` the newest (or ``best``) state of every client to ``out/<client>``.

    Returns the folders made, and the reason for every client that was left out. UserError if there
    is no state at all, or if anything is at ``out``.
    """
    out = plain_path(out)
    if out.exists():
        raise UserError(f"out: '{out}' already exists: choose a new folder, nothing is overwritten")
    states = _states_of(plain_path(run), trust=trust)
    made, left_out = [], {}
    generation: Literal["best"] | None = "best" if best else None
    for state in states:
        try:
            made.append(
                export(state, out / state.name, generation=generation, images=images, trust=trust)
            )
        except UserError as error:
            left_out[state.name] = str(error)
    if not made:
        raise UserError(f"no client of '{run}' has a model: {next(iter(left_out.values()))}")
    return made, left_out


def export_predictions(run: Path, out: Path, *, trust: bool = False) -> int:
    """Write what clients of a run with ``keep-predictions`` answered, as one CSV; returns its rows.

    Columns: client, split (val or test), row (of the data set), y (the true class) and p_<class>.
    UserError if there is nothing, or something at ``out``.
    """
    out = plain_path(out)
    if out.exists():
        raise UserError(f"out: '{out}' already exists: choose a new file, nothing is overwritten")
    lines: list[list[Any]] = []
    for state in _states_of(plain_path(run), trust=trust):
        path = state / f"{PREDICTIONS}.safetensors"
        classes = [str(name) for name in _read_description(state)["classes"]]
        if not lines:
            lines.append(["client", "split", "row", "y", *(f"p_{name}" for name in classes)])
        found = load_file(path) if path.exists() else {}
        for part in ("val", "test"):
            if f"{part}/p" in found:
                parts = (found[f"{part}/{name}"].tolist() for name in ("row", "y", "p"))
                rows = zip(*parts, strict=True)
                lines += [[state.name, part, row, classes[y], *p] for row, y, p in rows]
    if len(lines) < 2:  # noqa: PLR2004  (the head alone)
        raise UserError(f"'{run}' holds no predictions: run with keep-predictions=true")
    write_text(out, csv_text(lines), private=True)
    return len(lines) - 1


def _states_of(run: Path, *, trust: bool) -> list[Path]:
    """The state folders of a run's clients here, in client order."""
    folder = RunFolder(run)
    if not folder.identity.exists():
        raise UserError(f"'{run}' is not a run folder: --all exports the clients of one")
    there = folder.states(build_config(folder.opened(trust=trust)))
    found = [path.parent for path in there.glob(f"*/{DESCRIPTION}")]
    if not found:
        raise UserError(
            f"'{there}' has no client's state: keep-state=false deleted them, or they are on other "
            "machines"
        )
    return sorted(found, key=lambda path: client_order(path.name))


def open_state(
    state: Path, generation: int | Literal["best"] | None = None, *, trust: bool = False
) -> Exported:
    """The inference model in a client's state folder; None means the newest generation.

    ``best`` is the state of the best validation round, of a run with ``keep-best``.

    UserError where it names code of others, unless this user made the run or ``trust``.
    """
    state = plain_path(state)
    description = _read_description(state)
    store = FileStore(state, sync=True)
    chosen = _choose(store, generation)
    trusted = trust or plugins.made_here(description)
    plugins.require_trust(f"state '{state}'", description, trusted=trusted)
    try:
        for key in _CARD:
            _ = description[key]
        client = rebuild(description, state, chosen)
        return Exported(
            Personalised(client), description, chosen, accuracies_of(store.load(chosen))
        )
    except Refused as error:
        if isinstance(error.__cause__, KeyError | RuntimeError):
            raise _misfit(state, chosen, error.__cause__) from error
        raise UserError(str(error)) from error
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise _misfit(state, chosen, error) from error


def open_model(folder: Path, *, best: bool = False, trust: bool = False) -> Personalised:
    """Return the model of an exported folder, or of a client's folder of states.

    Of states the newest is taken, or the ``best``, of a run with ``keep-best``.
    """
    folder = folder.expanduser()
    if (folder / DESCRIPTION).is_file():
        return open_state(folder, "best" if best else None, trust=trust).model
    if best:
        raise UserError(
            f"--best: '{folder}' is not a client's folder of states, of which the best can be taken"
        )
    return load_model(folder, trust=trust)[0]


def _misfit(state: Path, generation: int, error: BaseException) -> UserError:
    return UserError(
        f"state '{state}': generation {generation} does not fit {DESCRIPTION}: {brief(error)}"
    )


def _read_description(state: Path) -> dict[str, Any]:
    path = state / DESCRIPTION
    try:
        return read_json(path)
    except OSError as error:
        raise UserError(
            f"'{state}' is not a client's state folder: {DESCRIPTION} cannot be read "
            f"({error.strerror}); {_nearby(state)}"
        ) from error
    except Damaged as error:
        raise UserError(f"state '{state}': {DESCRIPTION} is damaged: {error.what}") from error


def _nearby(folder: Path) -> str:
    """Where the state folders are, for somebody who named the run or one of the folders above."""
    patterns = ("*", "*/*", "state/*/*")  # a run folder has state/<experiment>/<client>
    found = sorted({p.parent for x in patterns for p in folder.glob(f"{x}/{DESCRIPTION}")})
    if not found:
        return "expected <state-dir>/<experiment>/<client>"
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"did you mean '{found[0]}'{more}?"


def _choose(store: FileStore, generation: int | Literal["best"] | None) -> int:
    if generation == "best":
        best = store.best()
        if best is None:
            raise UserError(f"state '{store.folder}' holds no best state: run with keep-best=true")
        return best
    there = store.generations()
    if not there:
        raise UserError(f"state '{store.folder}' holds no generation: the client has not trained")
    if generation is None:
        return there[-1]
    if generation not in there:
        raise UserError(
            f"generation: {generation} is not in '{store.folder}'; there: "
            f"{', '.join(str(number) for number in there)}"
        )
    return generation

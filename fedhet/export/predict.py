"""Classify raw examples with a client's model: classes and probabilities as a DataFrame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, Form, Inputs
from fedhet.errors import UserError, one_line
from fedhet.export.examples import Batch, ImageFiles, Truth, batches, of_frame
from fedhet.site.local_data import reading_of
from fedhet.training.loop import EVALUATION_BATCH, autocast, without_denormals
from fedhet.training.metrics import metrics_of


class Answering(Protocol):
    """What is needed of a model: :class:`fedhet.export.model.Personalised`."""

    config: RunConfig
    classes: tuple[str, ...]
    inputs: Inputs

    def prepare(self, examples: Tensor) -> Tensor:
        """Return inputs of examples as they are stored."""

    def window(self) -> tuple[float, float] | None:
        """Return the range of values of scans."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return logits (B, C)."""


@dataclass(frozen=True)
class Answers:
    """What a model answered: columns ``class`` and ``p_<class>``, by the names of the examples.

    ``metrics`` are those of the ``labelled`` examples, whose files name their class; ``warning``
    is what the user should know (empty: nothing).
    """

    frame: pd.DataFrame
    what: str
    warning: str
    labelled: int
    metrics: Mapping[str, float]


def classify(model: Answering, examples: Any) -> Answers:
    """Return the classes and probabilities of examples.

    ``examples`` are a DataFrame with the columns of the training data (also a dict of columns, or a
    Series or dict of one row), a path or several, or an array (n, ...) of examples as they are
    stored, of texts (n,). The index is the DataFrame's, else
    the names of files and lines; windows with gaps are left out. Raise UserError if they are not
    what the model takes.
    """
    truth = Truth(reading_of(model.config), model.classes)
    if isinstance(examples, np.ndarray) and examples.dtype.kind in "OU":
        examples = _texts(model, examples)
    elif isinstance(examples, pd.Series | Mapping):
        examples = _frame(examples)
    names: list[str] = []
    logits = []
    pieces, files = _read(model, examples, truth)
    for these, stored in pieces:
        names += these
        logits.append(_logits(model, these, stored))
    lost = [f"{truth.left_out:,} windows with gaps are left out"] if truth.left_out else []
    lost += files.warnings() if files is not None else []
    if unseen := +truth.unseen:
        each = ", ".join(f"{column} ({count:,} rows)" for column, count in unseen.items())
        lost.append(f"values that were no category in training count as gaps: {each}")
    if not names:
        why = "; ".join(lost) or f"the files have no {'example' if files is None else 'image'}"
        raise UserError(f"examples: nothing to classify: {why}")
    answers, labels = torch.cat(logits).double(), torch.from_numpy(np.concatenate(truth.labels))
    framed = isinstance(examples, pd.DataFrame)
    index = examples.index[[int(name) for name in names]] if framed else names
    columns = [f"p_{name}" for name in model.classes]
    frame = pd.DataFrame(answers.softmax(dim=1).numpy(), index=index, columns=columns)
    frame.insert(0, "class", [model.classes[label] for label in answers.argmax(dim=1).tolist()])
    warnings = [f"no metrics: {truth.problem}"] if truth.problem else []
    known = labels >= 0
    found, labels = answers[known].log_softmax(dim=1), labels[known]
    accuracy = 100 * (found.argmax(dim=1) == labels).double().mean()
    metrics = {"accuracy": accuracy, **(metrics_of(found, labels) if len(labels) else {})}
    defined = {name: float(value) for name, value in metrics.items() if value.isfinite()}
    what = "examples" if files is None else "images"
    return Answers(frame, what, "; ".join([*warnings, *lost]), len(labels), defined)


def _read(
    model: Answering, examples: Any, truth: Truth
) -> tuple[Iterator[Batch], ImageFiles | None]:
    """Return batches of the examples, and the files if they are images."""
    form = reading_of(model.config).form
    if isinstance(examples, pd.DataFrame):
        if len(twice := examples.columns[examples.columns.duplicated()]):
            raise UserError(f"examples: column '{twice[0]}' is there twice")
        return of_frame(examples, model.inputs, Form(gaps=form.gaps), truth), None
    if isinstance(examples, np.ndarray | Tensor):
        return _array(model, torch.as_tensor(examples), truth), None
    places = [examples] if isinstance(examples, str | Path) else examples
    paths = [Path(place) for place in places]
    if model.inputs.kind == IMAGE:
        files = ImageFiles(paths, model.inputs, model.window())
        return files.batches(truth), files
    return batches(paths, model.inputs, form, truth), None


@torch.inference_mode()
def _logits(model: Answering, names: Sequence[str], examples: Tensor) -> Tensor:
    """Return logits (B, C) of examples (B, ...) as they are stored; UserError for infinite ones."""
    inputs = model.prepare(examples)
    # The arithmetic that the accuracies are of.
    with without_denormals(), autocast(model.config, inputs.device):
        logits: Tensor = model(inputs)
    bad = ~logits.isfinite().all(dim=1)
    if bad.any():
        raise UserError(
            f"'{one_line(names[int(bad.nonzero()[0])])}': the model's answer is not finite: check "
            "that the numbers are in the range of the training examples"
        )
    return logits


def _frame(examples: "pd.Series | Mapping[str, Any]") -> pd.DataFrame:
    """Return one row, or columns of a dict, as a DataFrame."""
    if isinstance(examples, pd.Series):
        return examples.to_frame().T
    several = any(isinstance(one, Sequence | np.ndarray | pd.Series) and not isinstance(one, str)
                  for one in examples.values())  # fmt: skip
    try:
        return pd.DataFrame(examples if several else [examples])
    except ValueError as error:
        raise UserError(f"examples: the columns of the dict differ in length: {error}") from error


def _texts(model: Answering, examples: Any) -> pd.DataFrame:
    """Return an array of text as the columns that the model takes."""
    columns = list(model.inputs.columns)
    if examples.size != len(examples) * len(columns):
        raise UserError(
            f"examples: an array of texts of shape {examples.shape}, but this model takes "
            f"{f'columns {columns}' if columns else 'numbers'}"
        )
    return pd.DataFrame(examples.reshape(len(examples), -1), columns=columns)


def _array(model: Answering, examples: Tensor, truth: Truth) -> Iterator[Batch]:
    """Yield names and pieces of an array of examples as they are stored."""
    like = torch.from_numpy(model.inputs.zeros(1))
    if examples.shape[1:] != like.shape[1:]:
        raise UserError(
            f"examples: an array of shape {tuple(examples.shape)}, but this model takes (n, "
            f"{', '.join(map(str, like.shape[1:]))}) {str(like.dtype).removeprefix('torch.')}"
        )
    truth.add(None, len(examples))
    for start in range(0, len(examples), EVALUATION_BATCH):
        piece = examples[start : start + EVALUATION_BATCH].to(like.dtype)
        yield [str(start + place) for place in range(len(piece))], piece

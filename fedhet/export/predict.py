"""``fedhet predict``: an exported model classifies files of its kind; a CSV of probabilities."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedhet.data.inputs import IMAGE
from fedhet.data.labels import Form, Reading
from fedhet.errors import UserError, one_line
from fedhet.export.examples import Truth, batches
from fedhet.export.images import ImageFiles, find_images
from fedhet.export.model import Personalised
from fedhet.export.save import open_model
from fedhet.files import csv_text, replacing
from fedhet.site.local_data import reading_of
from fedhet.training.loop import EVALUATION_BATCH, autocast, without_denormals
from fedhet.training.metrics import metrics_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Predicted:
    """How many examples were classified, and what the user should know (empty: nothing).

    ``metrics`` are those of the ``labelled`` examples, whose files name their class.
    """

    examples: int
    what: str
    warning: str
    labelled: int
    metrics: Mapping[str, float]


def predict(
    folder: Path, places: Sequence[Path], out: Path, *, best: bool = False, trust: bool = False
) -> Predicted:
    """Classify files and folders of images, or files of rows, signals or texts; replaces ``out``.

    ``folder`` is an exported model or a client's folder of states: see :func:`open_model`.
    One line per readable example, with columns ``path`` (as given; of a file of many
    ``<path>:<line or index>``), ``class`` (the predicted one), then ``p_<class>`` for every class.
    Raises UserError if the model, the paths or ``out`` cannot be used, or nothing can be read.
    """
    model = open_model(folder, best=best, trust=trust)
    out = out.expanduser()
    torch.set_num_threads(model.config.threads)  # as in the run: other threads, other last bits
    paths, images = [path.expanduser() for path in places], model.inputs.kind == IMAGE
    truth = Truth(reading_of(model.config), model.classes)
    found = batches(places, model.inputs, reading_of(model.config).form, truth)
    files: ImageFiles | None = None
    if images:
        files = ImageFiles(find_images(paths), model.inputs.image_shape, model.window())
        paths, found = [Path(path) for path in files.paths], _by_folder(files, truth)
    if out.exists() and any(path.exists() and path.samefile(out) for path in paths):
        raise UserError(f"out: '{out}' is one of the files to classify: choose another name")
    try:
        with replacing(out, private=True, shared=True) as temporary:
            logs = _write(model, found, temporary)
            if not logs and files is None:
                raise UserError("examples: nothing to classify: the files hold no example")
            if not logs and files is not None:
                reason = files.complaint() if files.unreadable else "the folders hold no image file"
                raise UserError(f"images: nothing to classify: {reason}")
    except OSError as error:
        raise UserError(f"out: '{out}' cannot be written: {error.strerror or error}") from error
    labels, answers = torch.from_numpy(np.concatenate(truth.labels)), torch.cat(logs)
    labelled = int((labels >= 0).sum())
    warnings = [f"no metrics: {truth.problem}"] if truth.problem else []
    if files is not None:
        warnings += [files.complaint()] if files.unreadable else []
        warnings += files.lost.lines(files.shape, scans=model.inputs.scan)
    return Predicted(
        len(answers), "images" if images else "examples", "; ".join(warnings), labelled,
        _metrics(answers[labels >= 0], labels[labels >= 0]) if labelled else {},
    )  # fmt: skip


def _by_folder(files: ImageFiles, truth: Truth) -> Iterator[tuple[list[str], Tensor]]:
    """Yield the batches of image files; an image in a folder called like a class is of it."""
    import pandas as pd  # noqa: PLC0415  (half a second)

    for paths, images in files.batches():
        folders = [Path(path).absolute().parent.name for path in paths]
        if truth.knows(folders):
            truth.add(pd.Series(folders, dtype="str"), len(paths))
        else:
            truth.add(None, len(paths))
        yield paths, images


def _metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics that are defined, accuracy first."""
    accuracy = 100 * (logits.argmax(dim=1) == labels).double().mean()
    found = {"accuracy": accuracy, **metrics_of(logits, labels)}
    return {name: float(value) for name, value in found.items() if value.isfinite()}


def _write(
    model: Personalised, found: Iterable[tuple[list[str], Tensor]], path: Path
) -> list[Tensor]:
    """Write the answers; return the logarithms of the probabilities, batch by batch."""
    logs = []
    # Names of files need not be UTF-8; they leave as the bytes that they came as.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(csv_text([["path", "class", *(f"p_{name}" for name in model.classes)]]))
        for paths, examples in found:
            labels, probabilities = classify(model, examples)
            bad = ~probabilities.isfinite().all(dim=1)
            if bad.any():
                name = paths[int(bad.nonzero()[0])]
                raise UserError(
                    f"'{one_line(name)}': the model has no finite answer to it; are its numbers of "
                    "the size that the model was trained on?"
                )
            rows = zip(paths, labels, probabilities.tolist(), strict=True)
            file.write(
                csv_text([n, model.classes[k], *(f"{p:.6g}" for p in r)] for n, k, r in rows)
            )
            logs.append(probabilities.log())
    return logs


def frame_of(model: Personalised, examples: Any) -> "DataFrame":
    """Classes and probabilities of examples: columns ``class`` and ``p_<class>``.

    ``examples`` are a DataFrame with the columns of the training data, a path or several, or an
    array (n, ...) of examples as they are stored, of texts (n,). The index is the DataFrame's, else
    the names of files and lines. UserError if they are not what the model takes.
    """
    import pandas as pd  # noqa: PLC0415  (half a second)

    index: Any = None
    form, truth = reading_of(model.config).form, Truth(Reading(), model.classes)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(examples, np.ndarray) and examples.dtype.kind in "OU":
            columns = list(model.inputs.columns)
            if examples.size != len(examples) * len(columns):
                raise UserError(
                    f"examples: an array of text of {examples.shape}, and this model takes "
                    f"{f'columns {columns}' if columns else 'numbers'}"
                )
            examples = pd.DataFrame(examples.reshape(len(examples), -1), columns=columns)
        if isinstance(examples, pd.DataFrame):
            index, path = examples.index, Path(folder) / "examples.csv"
            examples.to_csv(path, index=False)
            found = batches([path], model.inputs, Form(gaps=form.gaps), truth)
        elif isinstance(examples, np.ndarray | Tensor):
            found = _array_batches(model, torch.as_tensor(examples))
        else:
            places = [examples] if isinstance(examples, str | Path) else list(examples)
            paths = [Path(place).expanduser() for place in places]
            if model.inputs.kind == IMAGE:
                shape = model.inputs.image_shape
                found = ImageFiles(find_images(paths), shape, model.window()).batches()
            else:
                found = batches(paths, model.inputs, form, truth)
        names: list[str] = []
        labels: list[int] = []
        rows: list[list[float]] = []
        for these, stored in found:
            answers, probabilities = classify(model, stored)
            names += these
            labels += answers
            rows += probabilities.tolist()
    shown = [f"p_{name}" for name in model.classes]
    frame = pd.DataFrame(rows, columns=shown, index=names if index is None else index)
    frame.insert(0, "class", [model.classes[label] for label in labels])
    return frame


def _array_batches(model: Personalised, examples: Tensor) -> Iterator[tuple[list[str], Tensor]]:
    """Names and pieces of an array of examples as they are stored; UserError for another shape."""
    like = torch.from_numpy(model.inputs.zeros(1))
    if examples.shape[1:] != like.shape[1:]:
        raise UserError(
            f"examples: an array of {tuple(examples.shape)}, and this model takes (n, "
            f"{', '.join(map(str, like.shape[1:]))}) {str(like.dtype).removeprefix('torch.')}"
        )
    for start in range(0, len(examples), EVALUATION_BATCH):
        piece = examples[start : start + EVALUATION_BATCH].to(like.dtype)
        yield [str(start + place) for place in range(len(piece))], piece


@torch.inference_mode()
def classify(model: Personalised, examples: Tensor) -> tuple[list[int], Tensor]:
    """Labels and probabilities (B, C) float64 of examples (B, ...) as they are stored."""
    inputs = model.prepare(examples)
    # The arithmetic that the accuracies are of.
    with without_denormals(), autocast(model.config, inputs.device):
        logits = model(inputs)
    return logits.argmax(dim=1).tolist(), logits.double().softmax(dim=1)

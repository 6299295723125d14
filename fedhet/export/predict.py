"""``fedhet predict``: an exported model classifies files of its kind; a CSV of probabilities."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedhet.data.inputs import IMAGE
from fedhet.errors import UserError, one_line
from fedhet.export.examples import batches
from fedhet.export.images import ImageFiles, find_images
from fedhet.export.model import Personalised, load_model
from fedhet.files import csv_text, replacing
from fedhet.training.denormals import without_denormals
from fedhet.training.loop import autocast


@dataclass(frozen=True)
class Predicted:
    """How many examples were classified, and what the user should know (empty: nothing)."""

    examples: int
    what: str
    warning: str


def predict(
    model_folder: Path, places: Sequence[Path], out: Path, *, trust: bool = False
) -> Predicted:
    """Classify files and folders of images, or files of rows, signals or texts; replaces ``out``.

    One line per readable example, with columns ``path`` (as given; of a file of many
    ``<path>:<line or index>``), ``class`` (the predicted one), then ``p_<class>`` for every class.
    Raises UserError if the model, the paths or ``out`` cannot be used, or nothing can be read.
    """
    model, _ = load_model(model_folder.expanduser(), trust=trust)
    out = out.expanduser()
    torch.set_num_threads(model.config.threads)  # as in the run: other threads, other last bits
    if model.inputs.kind != IMAGE:
        _check_out(out, (path.expanduser() for path in places))
        try:
            with replacing(out, private=True, shared=True) as temporary:
                count = _write(model, batches(places, model.inputs), temporary)
                if not count:
                    raise UserError("examples: nothing to classify: the files hold no example")
                return Predicted(count, "examples", "")
        except OSError as error:
            raise UserError(f"out: '{out}' cannot be written: {error.strerror or error}") from error
    shape = model.inputs.image_shape
    files = ImageFiles(find_images(path.expanduser() for path in places), shape, model.window())
    _check_out(out, map(Path, files.paths))
    try:
        with replacing(out, private=True, shared=True) as temporary:
            count = _write(model, files.batches(), temporary)
            if not count:
                reason = files.complaint() if files.unreadable else "the folders hold no image file"
                raise UserError(f"images: nothing to classify: {reason}")
    except OSError as error:
        raise UserError(f"out: '{out}' cannot be written: {error.strerror or error}") from error
    lines = [
        *([files.complaint()] if files.unreadable else []),
        *files.lost.lines(shape, scans=model.inputs.scan),
    ]
    return Predicted(count, "images", "; ".join(lines))


def _check_out(out: Path, examples: Iterable[Path]) -> None:
    """UserError if the answers would take the place of what they are about."""
    if out.exists() and any(path.exists() and path.samefile(out) for path in examples):
        raise UserError(f"out: '{out}' is one of the files to classify: choose another name")


def _write(model: Personalised, found: Iterable[tuple[list[str], Tensor]], path: Path) -> int:
    count = 0
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
            count += len(paths)
    return count


@torch.inference_mode()
def classify(model: Personalised, examples: Tensor) -> tuple[list[int], Tensor]:
    """Labels and probabilities (B, C) float64 of examples (B, ...) as they are stored."""
    inputs = model.prepare(examples)
    # The arithmetic that the accuracies are of.
    with without_denormals(), autocast(model.config, inputs.device):
        logits = model(inputs)
    return logits.argmax(dim=1).tolist(), logits.double().softmax(dim=1)

"""``fedhet predict``: an exported model classifies image files; a CSV with probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedhet.errors import UserError
from fedhet.export.images import ImageFiles, find_images
from fedhet.export.model import Personalised, load_model
from fedhet.files import csv_text, replacing
from fedhet.training.denormals import without_denormals
from fedhet.training.loop import autocast, normalise


@dataclass(frozen=True)
class Predicted:
    """How many images were classified, and what the user should know (empty: nothing)."""

    images: int
    warning: str


def predict(
    model_folder: Path, places: Sequence[Path], out: Path, *, trust: bool = False
) -> Predicted:
    """Classify files and folders of images; replaces ``out`` with one line per readable image.

    Columns: ``path`` as given, ``class`` (the predicted one), then ``p_<class>`` for every class.
    Raises UserError if the model, the paths or ``out`` cannot be used, or no image can be read.
    """
    model, _ = load_model(model_folder.expanduser(), trust=trust)
    out = out.expanduser()
    torch.set_num_threads(model.config.threads)  # as in the run: other threads, other last bits
    files = ImageFiles(find_images(path.expanduser() for path in places), model.config.image_size)
    try:
        with replacing(out, private=True, shared=True) as temporary:
            count = _write(model, files, temporary)
            if not count:
                reason = files.complaint() if files.unreadable else "the folders hold no image file"
                raise UserError(f"images: nothing to classify: {reason}")
    except OSError as error:
        raise UserError(f"out: '{out}' cannot be written: {error.strerror or error}") from error
    return Predicted(count, files.complaint() if files.unreadable else "")


def _write(model: Personalised, files: ImageFiles, path: Path) -> int:
    count = 0
    # Names of files need not be UTF-8; they leave as the bytes that they came as.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(csv_text([["path", "class", *(f"p_{name}" for name in model.classes)]]))
        for paths, images in files.batches():
            labels, probabilities = classify(model, images)
            rows = zip(paths, labels, probabilities.tolist(), strict=True)
            file.write(
                csv_text([n, model.classes[k], *(f"{p:.6g}" for p in r)] for n, k, r in rows)
            )
            count += len(paths)
    return count


@torch.inference_mode()
def classify(model: Personalised, images: Tensor) -> tuple[list[int], Tensor]:
    """Labels and probabilities (B, C) float64 of uint8 images (B, s, s, 3)."""
    inputs = normalise(images)
    # The arithmetic that the accuracies are of.
    with without_denormals(), autocast(model.config, inputs.device):
        logits = model(inputs)
    return logits.argmax(dim=1).tolist(), logits.double().softmax(dim=1)

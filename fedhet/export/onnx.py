"""An exported model as ONNX, compared with torch before anybody relies on it (extra ``onnx``)."""
# ruff: noqa: PLC0415  (the extra is imported where it is used)

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Reading
from fedhet.errors import UserError
from fedhet.export.examples import ImageFiles, Truth
from fedhet.export.predict import Answering

NAME = "model.onnx"
SAMPLE = 64  # inputs of the comparison
TOLERANCE = 1e-4  # largest difference of two logits, relative to the largest logit
_NAMES = {IMAGE: "images", SIGNAL: "signals", TABLE: "rows", TOKENS: "tokens"}
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def require() -> None:
    """UserError if the extra is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"--onnx needs the extra: pip install 'fedhet[onnx]' ({', '.join(missing)} not found)"
        )


def write(model: Answering, folder: Path, places: Sequence[Path]) -> dict[str, Any]:
    """Write ``model.onnx`` and compare it with torch; returns what the card says about it.

    Float32 whatever the run's precision. Raises UserError if the two do not agree.
    """
    inputs, source = _inputs(model, places)
    name = _NAMES[model.inputs.kind]
    _convert(model, folder / NAME, inputs[:2], name)
    with torch.inference_mode():
        expected = model(inputs).numpy()
    got = _run(folder / NAME, inputs, name)
    difference = float(np.abs(got - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise UserError(f"--onnx: logits differ from torch's by {difference:.3g} on {source}")
    return {
        "file": NAME,
        "input": _NAMES[model.inputs.kind],
        "output": "logits",
        "precision": "fp32",
        "checked-on": source,
        "max-logit-difference": difference,
        "same-class": f"{int((got.argmax(1) == expected.argmax(1)).sum())} of {len(inputs)}",
    }


def _inputs(model: Answering, places: Sequence[Path]) -> tuple[Tensor, str]:
    """Return the inputs that both are compared on, and a description of them."""
    inputs = model.inputs
    if places and inputs.kind != IMAGE:
        raise UserError(f"--images is for images only, and this model's kind is {inputs.kind}")
    if places:
        files, named = (
            ImageFiles(places, inputs, model.window(), most=SAMPLE),
            ", ".join(map(str, places)),
        )
        for _, images in files.batches(Truth(Reading(), model.classes)):
            return model.prepare(images).contiguous(), f"{len(images)} images of {named}"
        raise UserError(f"--images: {named}: there is no readable image")
    rng, shape = np.random.default_rng(0), (SAMPLE, *inputs.shape)
    if inputs.kind == TOKENS:
        drawn = rng.integers(0, inputs.vocabulary, shape)
    elif inputs.kind == IMAGE:
        drawn = rng.uniform(-1, 1, size=shape).astype(np.float32)
    else:
        drawn = rng.normal(size=shape).astype(np.float32)
    return torch.from_numpy(drawn), f"{SAMPLE} random inputs"


def _convert(model: Any, path: Path, example: Tensor, name: str) -> None:
    """Write the file, without the converter's steps and its warnings about operators."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                cast("torch.nn.Module", model),
                (example,),
                path,
                input_names=[name],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                external_data=False,  # one file, that can be handed on
                dynamo=True,
            )
    finally:
        logging.disable(level)


def _run(path: Path, inputs: Tensor, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    logits: np.ndarray[Any, np.dtype[np.float32]]
    (logits,) = session.run(["logits"], {name: inputs.numpy()})
    return logits

"""Classify raw examples with a client's model: files of every kind, frames, arrays.

Files are read as a run reads them. What a model takes stands in its card (columns, categories,
length, scale), so that a file without classes and clients will do.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor, nn

from fedhet.clients.base import PREPARATION, MethodClient
from fedhet.data import rows, table
from fedhet.data.describe import need
from fedhet.data.formats import NPZ_SUFFIXES, holds
from fedhet.data.images import SCAN, decode_all, files_below, is_image, losses, to_pixels
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TOKENS, Inputs, Reading
from fedhet.data.preparation import preparation
from fedhet.data.rows import RowFile, Unclear, open_rows
from fedhet.data.sources import as_pixels
from fedhet.data.table import TARGETS, Classes, Npz, TableRows, token_ids
from fedhet.errors import UserError, brief, one_line
from fedhet.files import near
from fedhet.protocol.payload import Array
from fedhet.site.local_data import reading_of
from fedhet.training.loop import EVALUATION_BATCH, Examples, outputs_on, without_denormals
from fedhet.training.metrics import metrics_of

# Columns ``name`` and ``target`` (empty: unknown) of examples, and these (k, ...) as stored.
_Piece = tuple[pd.DataFrame, Array]


class Personalised(nn.Module):
    """What one client answers with: inputs (B, ...) as its models get them, to logits (B, C).

    ``prepare`` makes inputs of stored or raw examples. Logits, since equal probabilities may come
    of different ones, and give another class than the run's accuracy counted. It owns copies of
    those modules that the method declares for inference, and nothing else.
    """

    def __init__(self, client: MethodClient) -> None:
        super().__init__()
        needs, fitted = client.inference_needs(), [PREPARATION] * (PREPARATION in client.modules)
        names = [*needs.modules, *fitted]
        modules = copy.deepcopy({name: client.modules[name] for name in names})
        self.parts = nn.ModuleDict(modules)
        for path in needs.without:
            self.parts.set_submodule(path, nn.Identity())
        self.config = client.config
        self.classes = tuple(client.setup.classes)
        self.architecture = client.setup.model
        self.inputs = client.inputs
        self.encode = getattr(client.modules.get("model"), "encode", None)  # of its own tokenizer
        self._client = copy.copy(client)
        self._client.modules = dict(self.parts.items())
        self.requires_grad_(requires_grad=False)
        self.eval()

    def prepare(self, examples: Tensor) -> Tensor:
        """Return inputs (B, ...) of examples as they are stored, by what the client fitted."""
        fitted = self.parts[PREPARATION] if PREPARATION in self.parts else preparation(self.inputs)
        return cast("Tensor", fitted(examples))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, C)."""
        return self._client.infer(inputs)

    def predict(self, examples: Any) -> Any:
        """Return classes and probabilities of ``examples`` as a DataFrame; see :func:`classify`."""
        return classify(self, examples).frame


@dataclass(frozen=True)
class Answers:
    """What a model answered: columns ``class`` and ``p_<class>``, by the names of the examples.

    ``metrics`` are those of the ``labelled`` examples, whose files name their class.
    """

    frame: pd.DataFrame
    what: str
    warning: str
    labelled: int
    metrics: Mapping[str, float]


def classify(model: Personalised, examples: Any) -> Answers:
    """Return the classes and probabilities of examples.

    ``examples`` are a DataFrame with the columns of the training data (also a dict of columns, or a
    Series or dict of one row), a Series of texts, paths, or an array (n, ...) of examples as
    stored, images of any size, or texts (n,). The index is the DataFrame's, else names of files and
    lines; windows with gaps are left out. Raise UserError if they are not what the model takes.
    """
    examples = _framed(model, examples)
    source, parts, logits = _Source(model), [_about([])], list[Tensor]()
    for piece, stored in source.pieces(examples):
        signals = model.inputs.kind == SIGNAL
        kept = np.flatnonzero(table.finite(stored)) if signals else np.arange(len(piece))
        source.left_out += len(piece) - len(kept)
        parts.append(piece.iloc[kept])
        if len(kept):
            data = Examples(torch.from_numpy(stored[kept]), torch.from_numpy(kept), model.prepare)
            with without_denormals():  # the arithmetic that the accuracies are of
                logits.append(outputs_on(model, data, model.config))
    lost, about = source.lines(), pd.concat(parts, ignore_index=True)
    if about.empty:
        why = "; ".join(lost) or f"the files have no {source.what.removesuffix('s')}"
        raise UserError(f"examples: nothing to classify: {why}")
    answers, target = torch.cat(logits).double(), source.reading.target
    for bad in (~answers.isfinite().all(dim=1)).nonzero():
        what = "is not finite: check that the numbers are in the range of the training examples"
        raise UserError(f"'{one_line(about['name'][int(bad)])}': the model's answer {what}")
    known, metrics = np.zeros(len(about), dtype=bool), dict[str, Tensor]()
    try:
        labels = Classes(source.reading, model.classes).labels(
            about["target"], lambda _: f"target '{target}'"
        )
        known = labels >= 0
    except UserError as error:
        lost.insert(0, f"no metrics: {error}")
    if known.any():
        pair = answers[torch.from_numpy(known)], torch.from_numpy(labels[known])
        accuracy = 100 * (pair[0].argmax(dim=1) == pair[1]).double().mean()
        metrics = {"accuracy": accuracy, **metrics_of(*pair)}
    framed = isinstance(examples, pd.DataFrame)
    index = examples.index[about["name"].astype(int)] if framed else about["name"].tolist()
    columns = [f"p_{name}" for name in model.classes]
    frame = pd.DataFrame(answers.softmax(dim=1).numpy(), index=index, columns=columns)
    frame.insert(0, "class", [model.classes[label] for label in answers.argmax(dim=1).tolist()])
    defined = {name: float(value) for name, value in metrics.items() if value.isfinite()}
    return Answers(frame, source.what, "; ".join(lost), int(known.sum()), defined)


def _about(names: Sequence[object], targets: Iterable[object] = ()) -> pd.DataFrame:
    return pd.DataFrame({"name": names, "target": [*targets] or [""] * len(names)}, dtype=object)


def _framed(model: Personalised, examples: Any) -> Any:
    """Return one row, a dict, or an array of texts as a DataFrame; others as they are."""
    columns = list(model.inputs.columns)
    try:
        if isinstance(examples, pd.Series):
            texts = model.inputs.kind == TOKENS and {*columns}.isdisjoint(examples.index)
            return examples.to_frame(*columns) if texts else examples.to_frame().T
        if isinstance(examples, Mapping):
            several = any(map(np.ndim, examples.values()))
            return pd.DataFrame(examples if several else [examples])
        if isinstance(examples, np.ndarray) and examples.dtype.kind in "OU":
            return pd.DataFrame(examples.reshape(len(examples), -1), columns=columns)
    except ValueError as error:
        raise UserError(f"examples: {error}; this model takes {model.inputs}") from error
    return examples


class _Source:
    """Reads examples as a model wants them, and notes what is lost on the way."""

    def __init__(self, model: Personalised) -> None:
        self.inputs, self.classes, self._encode = model.inputs, model.classes, model.encode
        self.reading = reading_of(model.config)
        self.what = "images" if model.inputs.kind == IMAGE else "examples"
        self.left_out = 0  # windows with gaps, which no model takes
        self._unseen: Counter[str] = Counter()  # values of no known category, by column
        self._unreadable: list[str] = []
        self._flags: list[int] = []

    def lines(self) -> list[str]:
        lines = [f"{self.left_out:,} windows with gaps are left out"] if self.left_out else []
        if self.inputs.kind == IMAGE:
            lines += losses(self._flags, self.inputs, self._unreadable, 20)
        if unseen := +self._unseen:
            each = ", ".join(f"{column} ({count:,} rows)" for column, count in unseen.items())
            lines.append(f"values that were no category in training count as gaps: {each}")
        return lines

    def pieces(self, examples: Any) -> Iterator[_Piece]:
        """Yield examples of a frame, an array, or files, by ``<file>:<line>`` or ``:<index>``."""
        if isinstance(examples, pd.DataFrame):
            if len(twice := examples.columns[examples.columns.duplicated()]):
                raise UserError(f"examples: column '{twice[0]}' is there twice")
            return self._rows(rows.of_frame(examples, Reading(gaps=self.reading.gaps)))
        if isinstance(examples, np.ndarray | Tensor):
            stored = self._stored(np.asarray(examples))
            return iter([(_about([*map(str, range(len(stored)))]), stored)])
        places = [examples] if isinstance(examples, str | Path) else examples
        try:
            paths = {Path(one).expanduser(): str(one) for one in places}
            missing = [path for path in paths if not path.exists()]
        except (TypeError, OSError) as error:
            what = f"a {type(examples).__name__} is neither a DataFrame, an array, nor paths"
            raise UserError(f"examples: {what} ({brief(error)})") from error
        for path in missing:
            texts = "; texts are a Series, an array, or a column" * (self.inputs.kind == TOKENS)
            raise UserError(f"'{paths[path]}' does not exist{near(path)}{texts}")
        if self.inputs.kind == IMAGE:
            return self._images(paths)
        return chain.from_iterable(self._file(path, name) for path, name in paths.items())

    def _stored(self, examples: Array) -> Array:
        """Return an array as examples are stored; images of whole numbers may have any size."""
        like, shape = self.inputs.zeros(1), examples.shape
        if like.dtype == np.uint8:
            try:
                pictures = map(Image.fromarray, as_pixels(examples))
            except ValueError as error:
                raise UserError(f"examples: {error}") from error
            examples = np.stack([to_pixels(one, self.inputs) for one in pictures])
        if examples.shape[1:] != like.shape[1:]:
            takes = f"(n, {', '.join(map(str, like.shape[1:]))}) {like.dtype}"
            raise UserError(f"examples: an array of shape {shape}, but this model takes {takes}")
        return examples.astype(like.dtype)

    def _images(self, places: Iterable[Path]) -> Iterator[_Piece]:
        """Yield the readable images; one in a folder that is called like a class is of it."""
        paths: dict[str, None] = {}
        for place in places:
            below = filter(is_image, files_below(place, "images")) if place.is_dir() else [""]
            paths |= dict.fromkeys(str(place / one) for one in sorted(below))
        images = zip(paths, decode_all(Path(), [*paths], self.inputs), strict=True)
        while batch := list(islice(images, EVALUATION_BATCH)):
            self._unreadable += [path for path, one in batch if one.pixels is None]
            good = [(p, one.pixels, one.flags) for p, one in batch if one.pixels is not None]
            self._flags += [flags for _, _, flags in good]
            if flat := [p for p, _, flags in good if self.inputs.scan and not flags & SCAN]:
                what = "has 8 bits, and the images of training have more"
                raise UserError(f"'{flat[0]}' {what}: save all in one depth")
            folders = [Path(path).absolute().parent.name for path, _, _ in good]
            known = not {*folders}.isdisjoint(self.classes)
            if good:
                pixels = np.stack([one for _, one, _ in good])
                yield _about([p for p, _, _ in good], folders if known else ()), pixels

    def _file(self, path: Path, given: str) -> Iterator[_Piece]:
        kind, npz = self.inputs.kind, holds(path, NPZ_SUFFIXES)
        if path.is_dir() or (npz and kind != SIGNAL):
            what = "a folder" if path.is_dir() else "an NPZ of signals"
            raise UserError(f"'{given}' is {what}, but the model takes {PLURAL[kind]}: give those")
        pieces = self._windows(path) if npz else self._rows(self._opened(path, self.reading))
        for about, stored in pieces:
            yield about.assign(name=f"{given}:" + about["name"].astype("str")), stored

    def _opened(self, path: Path, form: Reading) -> RowFile:
        """Open a file of rows; one without a header has the model's columns, if it has as many."""
        try:
            return open_rows([path], form)
        except UserError as error:
            if isinstance(error, Unclear) and len(error.choices) == len(self.inputs.columns):
                return open_rows([path], form.changed(columns=self.inputs.columns))
            if not form.columns:  # names of the training file, which also had a target
                raise
            return self._opened(path, form.changed(columns=()))

    def _rows(self, file: RowFile) -> Iterator[_Piece]:
        """Yield rows, texts, or windows; names are lines, or numbers."""
        inputs, reading = self.inputs, self.reading
        windows, target = inputs.kind == SIGNAL, reading.target
        if not windows and not inputs.columns:  # ids that are not of texts
            raise UserError(f"{file.where}: the model takes {inputs}, not rows or texts")
        wanted = tuple(table.left_columns(file, reading)) if windows else inputs.columns
        labelled = [target] if target in file.columns and target not in wanted else []
        if windows and reading.time in wanted:
            yield from self._recordings(file, labelled)
            return
        if windows and len(wanted) != inputs.shape[0] * inputs.shape[1]:
            takes = f"{inputs.shape[0]} x {inputs.shape[1]} numbers per row"
            raise UserError(f"{file.where}: {len(wanted)} columns, but the model takes {takes}")
        need(file, wanted, "the model's columns")
        matrix = TableRows(Inputs.table(wanted) if windows else inputs, self._unseen)
        texts = wanted if inputs.kind == TOKENS else tuple(matrix.codes)
        lines, numbers = file.lines(), [name for name in wanted if name not in texts]
        for part, frame in file.chunks([*texts, *labelled], numbers):
            if inputs.kind == TOKENS:
                words = frame[wanted[0]].tolist()
                stored: Array = token_ids(words, inputs)
                if self._encode is not None:  # ids of its tokenizer stand behind those of the hash
                    stored = np.concatenate([stored, self._encode(words)], axis=1)
            else:
                stored = matrix.numbers(part, frame).reshape(-1, *inputs.stored)
            targets = frame[target] if labelled else ()
            yield _about([*islice(lines, len(frame))], targets), stored

    def _recordings(self, file: RowFile, labelled: Sequence[str]) -> Iterator[_Piece]:
        """Yield windows that are cut as the run cuts them; a name is that of the first row."""
        reading, (channels, steps) = self.reading, self.inputs.shape
        plain = tuple(n for n in table.left_columns(file, reading) if n != reading.time)
        names = reading.channels or plain
        if len(names) != channels:
            raise UserError(f"{file.where}: {len(names)} channels, but the model takes {channels}")
        keys = [n for n in (*reading.site, *reading.group) if n in file.columns]
        windows, first, *_ = table.cut_recordings(file, reading, names, [*labelled, *keys], steps)
        lines = list(islice(file.lines(), max(first.index, default=0) + 1))
        targets = first[reading.target] if labelled else ()
        yield _about([lines[row] for row in first.index], targets), windows

    def _windows(self, path: Path) -> Iterator[_Piece]:
        shape = self.inputs.shape
        files = [Npz(path, axes) for axes in table.AXES]
        file = next((one for one in files if one.windows.shape[1:] == shape), None)
        if file is None:
            own = Npz(path).windows.shape[1:]
            raise UserError(f"data-path {path}: windows are {own}, and the model takes {shape}")
        y = next((name for name in (self.reading.target, *TARGETS) if name in file.columns), "")
        targets = file.rows([y])[y] if y else ()
        yield _about(range(len(file.windows)), targets), table.small_numbers(file.windows)

"""Datasets ``table`` and ``texts``: rows of files as numbers, and texts as ids of tokens."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.describe import about_site, described, leaks, named_columns, site_like
from fedhet.data.inputs import TOKENS, Encoded, Inputs, Reading, Stream, canonical, listed, shown
from fedhet.data.keys import Keys, coded, places_of
from fedhet.data.rows import DATA_FRAME, RowFile, to_numbers
from fedhet.errors import UserError

_WORD = re.compile(r"\w+|[^\w\s]")
_SAMPLED = 2_000  # rows of a chunk by which leaks are looked for


# --- tables ----------------------------------------------------------------


class TableRows:
    """Rows as the numbers that inputs of a table say: a category is its place in its list."""

    def __init__(self, inputs: Inputs, unseen: Counter[str] | None = None) -> None:
        """``unseen`` counts values that are no category, by column; without it they are refused."""
        self.inputs, self._unseen = inputs, unseen
        self.codes = {n: places_of(some, f"categories '{n}'") for n, some in inputs.categories}
        self.plain = [name for name in inputs.columns if name not in self.codes]
        self.infinite: Counter[str] = Counter()  # numbers that count as gaps, by column

    def numbers(self, file: RowFile, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """Return float32 (k, f), NaN for a gap; raise UserError for what is no such value."""
        if bad := [name for name in self.plain if frame[name].dtype.kind not in "iuf"]:
            column = frame[bad[0]].dropna()
            word = column[to_numbers(column, file.form).isna()]
            pandas = ' (of a DataFrame pandas: decimal="," and na_values)'
            raise UserError(
                f"{file.at(word.index[0], bad[0])}: {shown(str(word.iloc[0]))} is not a number: "
                f"name columns of words ({listed(bad)}) in ignore, or those of a table in "
                "categories, each with its values; decimal and gaps say how numbers are written"
                f"{pandas if file.where == DATA_FRAME else ''}"
            )
        numbers = np.empty((len(frame), len(self.inputs.columns)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for place, name in enumerate(self.inputs.columns):
                column = frame[name]
                numbers[:, place] = self._coded(column, file) if name in self.codes else column
        infinite = np.isinf(numbers)
        counts = zip(self.inputs.columns, infinite.sum(axis=0).tolist(), strict=True)
        self.infinite.update({name: count for name, count in counts if count})
        numbers[infinite] = np.nan
        return numbers

    def _coded(self, column: pd.Series, file: RowFile) -> npt.NDArray[np.float64]:
        form, name, unknown = file.form, str(column.name), -2
        codes = self.codes[name]

        def code(value: str) -> int:
            plain = canonical(value)
            if plain not in codes:  # a number that the file writes in its own way
                plain = canonical(f"{to_numbers(pd.Series([value]), form).iloc[0]:.10g}")
            return codes.get(plain, -1 if canonical(value).lower() in form.missing else unknown)

        places = coded(column, code)
        if self._unseen is not None:
            self._unseen[name] += int((places == unknown).sum())
        for row, value in column[places == unknown].items() if self._unseen is None else ():
            raise UserError(
                f"{file.at(row, name)}: {shown(str(value))} is not one of its categories "
                f"({listed(list(codes))}): add it to categories, or correct the file"
            )
        return np.where(places < 0, np.nan, places)


def of_rows(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the rows of a file, in its order: the columns that are features."""
    reading, description = described(file, given)
    _check_categories(reading)
    lines = [f"target: '{reading.target}' by its name"] if not given.target else []
    features, categories = left_columns(file, reading), dict(reading.categories)
    if reading.numbers:
        features = [*reading.numbers, *categories]
        known = {*features, *reading.taken, *file.index}
        if other := [name for name in file.columns if name not in known]:
            lines.append(f"columns that no key names and no model sees: {listed(other)}")
    elif description is not None:
        if unusable := description.unusable():
            raise UserError(f"{file.where}: {'; '.join(unusable)}")
        features, categories = description.features, description.categories
        lines.append(description.line())
        if description.is_recording():
            lines.append("rows that follow each other are nearly alike, as steps of a recording")
    else:
        features.sort()  # by name: each node's file has an order of its own
    if not features:
        raise UserError(f"{file.where}: no column is left for the models: see site and ignore")
    lists = tuple((name, categories[name]) for name in features if name in categories)
    keys, rows = Keys(reading, classes), TableRows(Inputs.table(tuple(features), lists))
    texts, places, sampled, count = keys.columns(file, features), [], [], 0
    for part, frame in file.chunks([*texts, *rows.codes], rows.plain):
        numbers = rows.numbers(part, frame[keys.add(part, frame)])
        step = len(numbers) // _SAMPLED + 1
        places.append(np.arange(count, count + len(numbers), step))
        sampled.append(numbers[::step])
        count += len(numbers)
        yield numbers
    seen = np.concatenate(sampled)
    if not (reading.site or reading.declared or file.site is not None):
        pairs = zip(features, seen.T, strict=True)
        different = {n: len(np.unique(x[~np.isnan(x)])) for n, x in pairs if site_like(n)}
        likely = [name for name, many in different.items() if 2 <= many <= len(seen) // 10]  # noqa: PLR2004
        lines += [about_site(name) for name in likely[:1]]
    infinite = listed([f"{name} ({count:,})" for name, count in rows.infinite.items()])
    warning = infinite and f"infinite numbers count as gaps: {infinite}"
    content = keys.content(rows.inputs, [warning], [*lines, file.said])
    if reading.declared:
        return content
    leaking = leaks(features, seen, content.labels[np.concatenate(places)], reading.target)
    return replace(content, warnings=(*content.warnings, *leaking))


def _check_categories(reading: Reading) -> None:
    for name, values in reading.categories:
        if name in reading.taken:
            raise UserError(
                f"categories: column '{name}' is already target, site, group, split-by or ignored"
            )
        if reading.declared and not values:
            raise UserError(
                f"categories: '{name}' needs its values on a node, such as "
                f"categories={{{name}: [a, b]}}, since sites do not learn them from each other"
            )


def left_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return the columns that may be features: no key names them, and they are no index."""
    return [name for name in named_columns(file, reading) if name not in reading.taken]


# --- texts ----------------------------------------------------------------


def token_ids(texts: Sequence[str], inputs: Inputs) -> npt.NDArray[np.int32]:
    """Return int32 (k, l): of the first l words in lower case each 1 + CRC-32 mod (V - 1).

    A hash needs no vocabulary of all clients' texts. Id 0 is for padding.
    """
    ids = inputs.zeros(len(texts))
    for row, text in zip(ids, texts, strict=True):
        for place, word in zip(range(len(row)), _WORD.finditer(text.lower()), strict=False):
            row[place] = 1 + zlib.crc32(word[0].encode()) % (inputs.vocabulary - 1)
    if isinstance(inputs, Encoded):
        return np.concatenate([ids, inputs.encode(texts)], axis=1)
    return ids


def of_texts(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the texts of a file, in its order, with the target and the sites."""
    reading, _ = described(file, given, text=True)
    lines = [f"the texts are those of '{reading.text}'"] if not given.text else []
    used = {reading.text, *reading.taken, *file.index}
    if unused := [name for name in file.columns if name not in used]:
        lines.append(f"columns that are not read: {listed(unused)} (dataset=table reads them)")
    inputs = Inputs(TOKENS, (reading.length,), reading.vocabulary, (reading.text,))
    keys, empty, written = Keys(reading, classes), 0, list[str]()
    for part, frame in file.chunks([*keys.columns(file), reading.text], ()):
        texts = frame[keys.add(part, frame)][reading.text].tolist()
        written += texts
        ids = token_ids(texts, inputs)
        empty += int((ids[:, 0] == 0).sum())
        yield ids
    warnings = [f"{empty} texts have no word"] if empty else []
    content = keys.content(inputs, warnings, [*lines, file.said])
    return replace(content, texts=tuple(written))

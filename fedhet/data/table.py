"""Datasets ``table`` and ``texts``: rows of CSV or Parquet files."""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.inputs import (
    TOKENS,
    Inputs,
    Keys,
    Reading,
    Stream,
    canonical,
    coded,
    listed,
    need,
    places_of,
    present,
    shown,
    snake,
)
from fedhet.data.rows import DATA_FRAME, RowFile, to_numbers
from fedhet.errors import UserError

FEW = 50  # values of a column of texts that is taken for categories
COUNTED = 1000  # different values of a column that are counted
ROWS_OF_IDS = 20  # rows from which on a column that differs in all of them is no feature
SENTENCE = 4.0  # words in the mean from which on a column holds sentences
ABOUT = 6.0  # the same, for a file that is about its texts
CODES = 12  # values up to which numbers and words are those of a code such as 0, 1, 2, 3+
MANY = 20  # classes up to which the place of a column is enough to take it for the class
HOLES = 10  # different numbers up to which classes need not follow each other
_WORD = re.compile(r"\w+|[^\w\s]")
_ID = re.compile(
    r"(^|[^a-z])(id|ids|no|nr|num|number|index|idx|key|uuid|guid|mrn|pid|serial|row|record|case"
    r"|code|(pat|patient|pid|sub|subj|subject|study|case|record|obs)_?(id|no|nr|num|number)|rownames?|row_names?|unnamed|patient|subject|person|encounter|sample|instance)([^a-z]|$)"
)
_COMMA = re.compile(r"[+-]?[\d.]*,\d+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AP]M)?|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{2,4}.*"
    r"|[A-Za-z]{3,9} \d{1,2},? \d{4}.*",
    re.IGNORECASE,
)


# --- what a column holds ----------------------------------------------------------------


@dataclass
class Column:
    """What the values of a column are, as chunk after chunk is seen."""

    name: str
    rows: int = 0
    gaps: int = 0
    counts: dict[str, int] | None = field(default_factory=dict)  # None: more than are counted
    words: int = 0  # values that are no numbers
    word: str = ""  # the first of them
    at: str = ""  # where it stands
    dates: int = 0
    differs: bool = True  # in all rows of every chunk
    whole: bool = True
    low: float = np.inf
    high: float = -np.inf
    length: float = 0.0  # mean number of words of a text

    def add(self, values: pd.Series, file: RowFile) -> None:
        """See some more: float64, or texts with NaN for gaps."""
        known = values.dropna()
        self.gaps += len(values) - len(known)
        self.rows += len(values)
        numbers = known
        if values.dtype.kind != "f":
            numbers = to_numbers(known, file.form)
            if numbers.isna().any():
                self._words(known[numbers.isna()], file)
            numbers = numbers.dropna()
        if len(numbers):
            self.low, self.high = min(self.low, numbers.min()), max(self.high, numbers.max())
            self.whole = self.whole and bool((numbers == np.rint(numbers)).all())
        # A measurement that differs in all rows is a feature for all that.
        differs = self.differs and (self.whole or self.words > 0)
        self.differs = differs and len(known) == len(values) and known.is_unique
        self._count(known)

    def _count(self, known: pd.Series) -> None:
        counts = known.value_counts(sort=False) if self.counts is not None else known[:0]
        if self.counts is None or len(counts) > COUNTED:
            self.counts = None
            return
        for value, count in counts.items():
            plain = canonical(value if isinstance(value, str) else f"{value:.10g}")
            self.counts[plain] = self.counts.get(plain, 0) + int(count)
        if len(self.counts) > COUNTED:
            self.counts = None

    def _words(self, words: pd.Series, file: RowFile) -> None:
        """See some texts that are no numbers."""
        self.words += len(words)
        if not self.word:
            self.word = str(words.iloc[0])
            self.at = file.at(words.index[0], self.name)
        head = words.head(200)
        self.dates += int(head.str.fullmatch(_DATE.pattern, case=False).mean() * len(words))
        self.length = max(self.length, float(head.str.split().str.len().mean()))

    @property
    def known(self) -> int:
        """Return how many values are no gaps."""
        return self.rows - self.gaps

    @property
    def values(self) -> int:
        """Return how many different values there are, as far as they are counted."""
        return COUNTED + 1 if self.counts is None else len(self.counts)

    @property
    def many(self) -> str:
        """Return their number for a message."""
        return f"over {COUNTED:,} values" if self.counts is None else f"{self.values:,} values"

    @property
    def is_date(self) -> bool:
        """Return whether most values are dates or times."""
        return self.dates > 0.8 * max(1, self.known)

    @property
    def is_id(self) -> bool:
        """Return whether it only tells rows apart: texts, or numbers that count or are named so."""
        if not self.differs or self.rows < ROWS_OF_IDS:
            return False
        if self.words and 2 * self.words >= self.known:
            return True
        counts = self.high - self.low == self.rows - 1
        return self.whole and (counts or _ID.search(snake(self.name)) is not None)

    @property
    def is_class(self) -> bool:
        """Return whether its values may be classes: few of them, and numbers only without holes."""
        if not 2 <= self.values <= min(100, self.known // 5 + 2):
            return False
        if self.words:
            sentences = self.length >= SENTENCE and self.values > self.known // 20
            return not sentences and not self.is_date
        return self.whole and (self.values <= HOLES or not self.has_holes)

    @property
    def has_holes(self) -> bool:
        """Return whether its numbers do not follow each other."""
        return not self.words and self.high - self.low + 1 != self.values

    @property
    def fate(self) -> str:
        """Return what becomes of it where no key says: one of those of :class:`Plan`."""
        few = self.values <= min(FEW, max(2, self.known // 2))
        different_sentences = self.length >= SENTENCE and self.values > self.known // 5
        fates = {
            "empty": not self.known,
            "number": not self.words and not self.is_id,
            "date": self.is_date,
            "comma": self.values > CODES and _COMMA.fullmatch(self.word) is not None,
            "id": self.is_id,
            "mixed": 2 * self.words < self.known and self.values > CODES,
            "category": few and not different_sentences,
            "many": True,
        }
        return next(fate for fate, so in fates.items() if so)


def look(file: RowFile, names: Sequence[str]) -> dict[str, Column]:
    """Return what these columns hold, from all rows."""
    found = {name: Column(name) for name in names}
    for part, frame in file.chunks((), names):
        for name, column in found.items():
            column.add(frame[name], part)
    return found


LEFT_OUT = {  # fates of columns that are no features, and why
    "id": "with a different value in every row", "empty": "without a value", "date": "dates",
    "many": "sentences, or too many values for categories", "mixed": "numbers and words",
    "comma": "numbers with a comma (decimal=, or thousands=, reads them)",
}  # fmt: skip


class Plan:
    """What becomes of the columns that no key names: features, or left out, or refused.

    ``fates`` of columns are number, category and those of ``LEFT_OUT``, of which date, comma, many
    and mixed are refused where nobody looks at a preset.
    """

    def __init__(self, columns: Mapping[str, Column], reading: Reading) -> None:
        declared = dict(reading.categories)
        self.columns = columns
        self.fates = {n: "category" if n in declared else c.fate for n, c in columns.items()}
        if set(self.fates.values()) == {"id"}:  # better than nothing
            self.fates = {n: "id" if c.words else "number" for n, c in columns.items()}
        self.categories = {n: declared.get(n) or self._values(n) for n in self.of("category")}
        self.features = self.of("number", "category")

    def of(self, *fates: str) -> list[str]:
        """Return the columns of these fates, in their order."""
        return [name for name, fate in self.fates.items() if fate in fates]

    def _values(self, name: str) -> tuple[str, ...]:
        column = self.columns[name]
        if column.counts is None:
            at = column.at or name
            raise UserError(f"{at}: over {COUNTED:,} categories: set ignore")
        return tuple(column.counts)

    def refuse(self, where: str) -> None:
        """Raise UserError, one line for all columns that cannot be features, with what to do."""
        parts = [
            f"{one.at}: {shown(one.word)} is not a number ({one.words:,} of {one.known:,} values "
            f"are not): gaps={one.word} makes it a missing value"
            for one in map(self.columns.__getitem__, self.of("mixed"))
        ]
        if dates := self.of("date"):
            parts.append(
                f"columns of dates are not numbers: {listed(dates)}: leave them out with "
                f"ignore={','.join(dates)}, and add numbers instead, such as an age in years"
            )
        if many := self.of("many"):
            counts = [f"{name} ({self.columns[name].many})" for name in many]
            names = ",".join(many)
            parts.append(
                f"columns of words with too many values for categories: {', '.join(counts)}: "
                f"ignore={names} leaves them out, categories={names} takes each value as a column "
                "of its own"
            )
        if commas := self.of("comma"):
            parts.append(
                f"columns of {LEFT_OUT['comma']}: {listed(commas)}; ignore={','.join(commas)} "
                "leaves them out"
            )
        if parts:
            raise UserError(f"{where}: {'; '.join(parts)}")

    def said(self) -> str:
        """Return one line: the features, those that are categories, and those that are left out."""
        plain = self.of("number")
        each = [
            f"{name}: {' '.join(some[:4])}" + (f" ... {len(some)} values" if len(some) > 4 else "")
            for name, some in self.categories.items()
        ]
        ids = [n for n in plain for c in [self.columns[n]] if c.differs and c.whole and c.rows > 50]
        parts = [
            (plain, f"{len(plain)} column(s) of numbers: {listed(plain, 6)}"),
            (each, f"{len(each)} column(s) of categories: {listed(each, 6)}"),
            *(
                (self.of(fate), f"left out, {LEFT_OUT[fate]}: {listed(self.of(fate))}{key}")
                for fate, key in (("id", " (key `categories` keeps one)"), ("empty", ""))
            ),
            (ids, f"whole numbers that differ in every row: {listed(ids)} (`ignore` drops one)"),
        ]
        return "; ".join(text for names, text in parts if names)


# --- what nobody names ----------------------------------------------------------------

_TARGETS = (  # names of classes, the surest first; each is a part of a column's name
    "target", "label", "labels", "y", "outcome", "diagnosis", "survived", "died", "death", "dead",
    "churn", "fraud", "default", "deny", "vote", "sentiment", "species", "class", "classes",
    "event", "num", "status", "stat", "fustat", "pgstat", "cens", "censor", "censored", "censors",
    "arrest", "lfp", "case", "choice", "low", "lbw", "ill", "disease", "survival", "response",
    "resp", "result", "r", "category", "classification", "type", "quality", "variety", "output",
    "sp", "income", "mode", "grade",
)  # fmt: skip
_NO_TARGET = re.compile(  # what describes an example rather than its class
    r"(^|_)(treat\w*|trt|arms?|rx|therapy|drug|dose|group|sex|gender|race|eth\w*|region|country"
    r"|state|city|year|month|week|day|date|time|hour|age\w*|visit|period|wave|size|weight|income"
    r"|education|married|smok\w*|child\w*|name|fold|split|batch)(_|$)"
)
_SITES = (  # the surest first
    re.compile(
        r"(^|_)(site|hospital|hopital|clinic|klinik|krankenhaus|spital|klinikum|centre|center"
        r"|institution)(_?id|_?code)?(_|$)"
    ),
    re.compile(
        r"(^|_)(ward|device|subject|person|participant|user|client|branch|factory|machine|station)"
        r"(_?id|_?code)?(_|$)|(^|_)school_?(id|code|name)"
    ),
)


def guess_target(columns: Mapping[str, Column], reading: Reading) -> str:
    """Return the column that is the class: by its name, or the last or first of few values.

    Raise UserError with the columns that may be it where none is likely.
    """
    names = list(columns)
    if len(names) < 2:
        raise UserError(
            f"target: the file has one column, {listed(names)}: give separator=SIGN; save "
            "a file with fixed widths as CSV"
        )
    taken = reading.taken | {reading.text}
    may = [name for name, one in columns.items() if name not in taken and one.is_class]
    plain = {name: re.sub(r"[^a-z0-9]+", "_", snake(name)).strip("_") for name in may}
    for whole in (True, False):
        for word in _TARGETS:
            parts = {name: [one] if whole else one.split("_") for name, one in plain.items()}
            if found := [name for name in may if word in parts[name]]:
                return found[-1]
    first = columns[names[0]]
    for name in [names[-1], *(names[:1] if first.words or reading.form.columns else [])]:
        if name not in may or columns[name].has_holes or columns[name].values > MANY:
            continue
        if not _NO_TARGET.search(plain[name]) and not _ID.search(plain[name]):
            return name
    if may:
        each = [f"{name} ({columns[name].many})" for name in may]
        raise UserError(f"target: which column is the class? target=COLUMN, such as {listed(each)}")
    advice = ""
    if last := next((one for one in [*columns.values()][::-1] if one.low < one.high), None):
        middle = (last.low + last.high) / 2
        half = np.format_float_positional(middle, 3, unique=False, fractional=False, trim="-")
        advice = (
            f"; divide a measurement with labels, such as target={last.name} "
            f'labels="{{low: ..{half}, high: {half}..}}"'
        )
    raise UserError(
        f"target: no column looks like a class: give target=COLUMN, one of {listed(names)}{advice}"
    )


def guess_site(columns: Mapping[str, Column], reading: Reading) -> str:
    """Return the column that names whose a row is, by its name and values; empty for none."""
    for name in sorted(filter(site_words, columns), key=site_words, reverse=True):
        free = name not in {reading.target, *reading.ignore, *dict(reading.categories)}
        if free and 2 <= columns[name].values <= min(COUNTED, columns[name].known // 20):
            return name
    return ""


def site_words(name: str) -> int:
    """Return how surely a column's name says whose an example is; 0: not at all."""
    plain = snake(name).replace(" ", "_").replace("ô", "o")
    return next((len(_SITES) - k for k, one in enumerate(_SITES) if one.search(plain)), 0)


def guess_text(columns: Mapping[str, Column], reading: Reading, *, alone: bool = False) -> str:
    """Return the column of the longest texts; ``alone``: empty unless the file is about it."""
    texts = {n: one.length for n, one in columns.items() if n != reading.target and one.words}
    best = max(texts, key=lambda name: texts[name], default="")
    if alone and best:
        numbers = sum(not one.words and not one.is_id for one in columns.values())
        many = columns[best].values > FEW and texts[best] >= ABOUT
        return best if many and numbers <= 2 and len(columns) <= 6 else ""
    return best


def guess(
    file: RowFile, reading: Reading, *, text: bool = False, site: bool = False
) -> tuple[Reading, dict[str, Column], list[str]]:
    """Return the reading with what nobody names, the columns that it was guessed from, and lines.

    ``text``: the column of the text is needed, too; ``site``: the one of the site is looked for.
    """
    if reading.target and not (text and not reading.text) and not site:
        return reading, {}, []
    if reading.declared:
        raise UserError("target: '' is not allowed on a network: name the column of the class")
    need(file, [reading.target] if reading.target else [], "target")
    columns, lines = look(file, named_columns(file, reading)), []
    steps: Sequence[tuple[str, str, bool, Callable[[Mapping[str, Column], Reading], str]]] = (
        ("target", "the class", not reading.target, guess_target),
        ("site", "the site of a row", site, guess_site),
        ("text", "the text", text and not reading.text, guess_text),
    )
    for key, what, wanted, guessed in steps:
        if wanted and (name := guessed(columns, reading)):
            value: Any = (name,) if key == "site" else name
            reading = replace(reading, **{key: value})
            none = "; site= says that there is none" if key == "site" else ""
            lines.append(f"{key}: '{name}' is used as {what} ({key}=COLUMN names another{none})")
    return reading, columns, lines


# --- tables ----------------------------------------------------------------


class TableRows:
    """Rows as the numbers that inputs of a table say: a category is its place in its list."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.codes = {n: places_of(some, f"categories '{n}'") for n, some in inputs.categories}
        self.plain = [name for name in inputs.columns if name not in self.codes]
        self._infinite = np.zeros(len(inputs.columns), dtype=np.int64)

    def numbers(self, file: RowFile, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """Return float32 (k, f), NaN for a gap; raise UserError for what is no such value."""
        if bad := [name for name in self.plain if frame[name].dtype.kind != "f"]:
            column = frame[bad[0]].dropna()
            word = column[to_numbers(column, file.form).isna()]
            what = (
                f"name columns of words ({listed(bad)}) in ignore, or those of a table in "
                "categories, each with its values"
            )
            if file.where == DATA_FRAME:
                what = (
                    'the model was trained on numbers there: read the file with decimal="," if '
                    "it has decimal commas, and with na_values=[...] for its marks of a gap"
                )
            raise UserError(
                f"{file.at(word.index[0], bad[0])}: {shown(str(word.iloc[0]))} is not a "
                f"number: {what}"
            )
        found = np.empty((len(frame), len(self.inputs.columns)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for place, name in enumerate(self.inputs.columns):
                column = frame[name]
                found[:, place] = self._coded(column, file) if name in self.codes else column
        infinite = np.isinf(found)
        self._infinite += infinite.sum(axis=0)
        found[infinite] = np.nan
        return found

    def about_infinite(self) -> str:
        """Return one line: how many infinite numbers count as gaps, and in which columns."""
        pairs = zip(self.inputs.columns, self._infinite, strict=True)
        each = [f"{name} ({count:,})" for name, count in pairs if count]
        return f"infinite numbers count as gaps: {listed(each)}" if each else ""

    def _coded(self, column: pd.Series, file: RowFile) -> npt.NDArray[np.float64]:
        form, codes, unknown = file.form, self.codes[column.name], -2

        def code(value: str) -> int:
            plain = canonical(value)
            if plain not in codes:  # a number that the file writes in its own way
                plain = canonical(f"{to_numbers(pd.Series([value]), form).iloc[0]:.10g}")
            return codes.get(plain, -1 if canonical(value).lower() in form.missing else unknown)

        found = coded(column, code)
        for row, value in column[found == unknown].items():
            where = file.at(row, str(column.name))
            raise UserError(
                f"{where}: {shown(str(value))} is not one of its categories "
                f"({listed(list(codes))}): add it to categories, or correct the file"
            )
        return np.where(found < 0, np.nan, found)


def of_rows(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the rows of a file, in its order: what is neither target nor site nor ignored."""
    reading, columns, said = guess(file, given)
    keys = Keys(reading, classes)
    check_columns(file, reading)
    features, categories = left_columns(file, reading), dict(reading.categories)
    if not reading.declared:
        columns = columns or look(file, features)
        plan = Plan({name: columns[name] for name in features}, reading)
        plan.refuse(file.where)
        said.append(plan.said())
        features, categories = plan.features, plan.categories
    if not features:
        raise UserError(f"{file.where}: no column is left for the models: see site and ignore")
    texts = keys.columns(file, features)
    lists = tuple((name, categories[name]) for name in features if name in categories)
    rows = TableRows(Inputs.table(tuple(features), lists))
    for part, frame in file.chunks([*texts, *rows.codes], rows.plain):
        yield rows.numbers(part, frame[keys.add(part, frame)])
    return keys.content(rows.inputs, [rows.about_infinite()], [*said, file.said])


def check_columns(file: RowFile, reading: Reading) -> None:
    """Raise UserError for columns that keys name and that are not there, or are taken."""
    present(file, reading)
    if not reading.declared:  # a node's own file may be without them
        need(file, reading.ignore, "ignore")
    need(file, dict(reading.categories), "categories")
    taken = reading.taken
    for name, values in reading.categories:
        places_of(values, f"categories '{name}'")
        if name in taken:
            raise UserError(
                f"categories: column '{name}' is already target, site, group, split-by or ignored"
            )
        if reading.declared and not values:
            raise UserError(
                f"categories: '{name}' needs its values on a node, such as "
                f"categories={{{name}: [a, b]}}, since sites do not learn them from each other"
            )


def named_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return all columns but those that number the rows, unless a key names them."""
    keys = (reading.taken - set(reading.ignore)) | {*dict(reading.categories)}
    return [name for name in file.columns if name in keys or name not in file.index]


def left_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return the columns that may be features: no key names them, and they are no index."""
    return [name for name in named_columns(file, reading) if name not in reading.taken]


# --- texts ----------------------------------------------------------------


def token_ids(texts: Sequence[str], inputs: Inputs) -> npt.NDArray[np.int32]:
    """Return int32 (k, l): of the first l words in lower case each 1 + CRC-32 mod (V - 1).

    A hash needs no vocabulary of all clients' texts. Id 0 is for padding.
    """
    found = inputs.zeros(len(texts))
    for row, text in zip(found, texts, strict=True):
        for place, word in zip(range(len(row)), _WORD.finditer(text.lower()), strict=False):
            row[place] = 1 + zlib.crc32(word[0].encode()) % (inputs.vocabulary - 1)
    return found


def of_texts(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the texts of a file, in its order, with the target and the sites."""
    reading, _, said = guess(file, given, text=True)
    need(file, [reading.text], "text")
    inputs = Inputs(TOKENS, (reading.length,), reading.vocabulary, (reading.text,))
    keys, empty = Keys(reading, classes), 0
    for part, frame in file.chunks([*keys.columns(file), reading.text], ()):
        found = token_ids(frame[keys.add(part, frame)][reading.text].tolist(), inputs)
        empty += int((found[:, 0] == 0).sum())
        yield found
    warnings = [f"{empty} texts have no word"] if empty else []
    return keys.content(inputs, warnings, [*said, file.said])

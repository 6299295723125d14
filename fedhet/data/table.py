"""Datasets ``table`` and ``texts``: rows of CSV or Parquet files."""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.inputs import TOKENS, Inputs
from fedhet.data.labels import (
    Content,
    Examples,
    Keys,
    Reading,
    Stream,
    canonical,
    each_value,
    listed,
    need,
    places_of,
    shown,
)
from fedhet.data.rows import Chunk, RowFile, to_numbers
from fedhet.errors import UserError

FEW = 50  # values of a column of texts that is taken for categories
COUNTED = 1000  # different values of a column that are counted
LOOKED = 1 << 17  # rows of a column that are held against each other
ROWS_OF_IDS = 20  # rows from which on a column that differs in all of them is no feature
SENTENCE = 4.0  # words in the mean from which on a column holds sentences
ABOUT = 6.0  # the same, for a file that is about its texts
MANY = 20  # classes up to which the place of a column is enough to take it for the class
HOLES = 10  # different numbers up to which classes need not follow each other
_WORD = re.compile(r"\w+|[^\w\s]")
_ID = re.compile(
    r"(^|[^a-z])(id|ids|no|nr|num|number|index|idx|key|uuid|guid|mrn|pid|serial|row|record|case"
    r"|code|(pat|patient|pid|sub|subj|subject|study|case|record|obs)_?(id|no|nr|num|number)|rownames?|row_names?|unnamed|patient|subject|person|encounter|sample|instance)([^a-z]|$)"
)
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
    differs: bool = True  # in all rows so far
    whole: bool = True
    low: float = np.inf
    high: float = -np.inf
    length: float = 0.0  # mean number of words of a text
    _seen: set[object] = field(default_factory=set)

    def add(self, values: pd.Series, chunk: Chunk) -> None:
        """See some more: float64, or texts with NaN for gaps."""
        known = values.dropna()
        self.gaps += len(values) - len(known)
        self.rows += len(values)
        if values.dtype.kind == "f":
            self._numbers(known)
        else:
            self._texts(known, values, chunk)
        if self.is_number and not self.whole:
            self.differs = False  # measured, and no feature for all that
        if self.differs and len(self._seen) < LOOKED:
            new = set(known)
            self.differs = len(new) == len(values) and not new & self._seen
            self._seen |= new
        counts = known.value_counts(sort=False) if self.counts is not None else known[:0]
        if self.counts is not None and len(counts) <= COUNTED:
            for value, count in counts.items():
                plain = canonical(value if isinstance(value, str) else f"{value:.10g}")
                self.counts[plain] = self.counts.get(plain, 0) + int(count)
        if len(counts) > COUNTED or len(self.counts or ()) > COUNTED:
            self.counts = None

    def _numbers(self, known: pd.Series) -> None:
        if len(known):
            self.low, self.high = min(self.low, known.min()), max(self.high, known.max())
            self.whole = self.whole and bool((known == np.rint(known)).all())

    def _texts(self, known: pd.Series, values: pd.Series, chunk: Chunk) -> None:
        numbers = to_numbers(known, chunk.file.form)
        self._numbers(numbers.dropna())
        bad = known[numbers.isna()]
        self.words += len(bad)
        if not len(bad):
            return
        if not self.word:
            self.word = str(bad.iloc[0])
            self.at = chunk.at(int(values.index.get_loc(bad.index[0])), self.name)
        head = bad.head(200)
        dates = head.str.fullmatch(_DATE.pattern, case=False).sum()
        self.dates += int(dates * len(bad) / len(head))
        self.length = max(self.length, float(head.str.split().str.len().mean()))

    @property
    def known(self) -> int:
        """Return how many values are no gaps."""
        return self.rows - self.gaps

    @property
    def is_number(self) -> bool:
        """Return whether all values are numbers."""
        return not self.words

    @property
    def is_date(self) -> bool:
        """Return whether most values are dates or times."""
        return self.dates > 0.8 * max(1, self.known)

    @property
    def is_id(self) -> bool:
        """Return whether it only tells rows apart: texts, or numbers that count or are named so."""
        if not self.differs or self.rows < ROWS_OF_IDS:
            return False
        if not self.is_number:
            return True
        counts = self.whole and self.high - self.low == self.rows - 1
        return self.whole and (counts or _ID.search(snake(self.name)) is not None)

    @property
    def is_few(self) -> bool:
        """Return whether its texts are few enough for categories, and not sentences that differ."""
        if self.counts is None or len(self.counts) > min(FEW, max(2, self.known // 2)):
            return False
        return self.length < SENTENCE or len(self.counts) <= self.known // 5

    @property
    def is_class(self) -> bool:
        """Return whether its values may be classes: few of them, and numbers only without holes."""
        if self.counts is None or not 2 <= len(self.counts) <= min(100, self.known // 5 + 2):
            return False
        if not self.is_number:
            sentences = self.length >= SENTENCE and len(self.counts) > self.known // 20
            return not sentences and not self.is_date
        whole = self.whole and len(self.counts) <= self.known // 5 + 2
        holes = self.high - self.low + 1 - len(self.counts)
        return whole and (len(self.counts) <= HOLES or holes == 0)


def snake(name: str) -> str:
    """Return ``PatientID`` as ``patient_id``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def look(file: RowFile, names: Sequence[str]) -> dict[str, Column]:
    """Return what these columns hold, from all rows."""
    found = {name: Column(name) for name in names}
    for chunk in file.chunks((), names):
        for name, column in found.items():
            column.add(chunk.frame[name], chunk)
    return found


@dataclass(frozen=True)
class Plan:
    """What becomes of the columns that no key names."""

    features: tuple[str, ...]
    categories: tuple[tuple[str, tuple[str, ...]], ...]
    left_out: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    many: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


def plan(columns: dict[str, Column], reading: Reading) -> Plan:
    """Sort columns into numbers, categories, those left out and those that cannot be read."""
    features, categories = [], []
    groups: dict[str, list[str]] = {"left_out": [], "dates": [], "many": [], "mixed": []}
    declared = dict(reading.categories)
    for name, column in columns.items():
        if declared.get(name):
            features.append(name)
            categories.append((name, declared[name]))
        elif name in declared:
            features.append(name)
            categories.append((name, _values(column)))
        elif column.is_number and not column.is_id:
            features.append(name)
        elif column.is_date:
            groups["dates"].append(name)
        elif column.is_id:
            groups["left_out"].append(name)
        elif 2 * column.words < column.known and len(column.counts or ()) != len(_few(column)):
            groups["mixed"].append(name)
        elif column.is_few:
            features.append(name)
            categories.append((name, _values(column)))
        else:
            groups["many"].append(name)
    if not features and not any(groups[name] for name in ("dates", "many", "mixed")):
        features = [name for name in groups["left_out"] if columns[name].is_number]
        groups["left_out"] = [name for name in groups["left_out"] if name not in features]
    return Plan(tuple(features), tuple(categories), **{k: tuple(v) for k, v in groups.items()})


def _few(column: Column) -> Sequence[str]:
    """Return the values, if they are as few as those of a code such as ``0, 1, 2, 3+``."""
    counts = list(column.counts or ())
    return counts if len(counts) <= 12 else []


def _values(column: Column) -> tuple[str, ...]:
    if column.counts is None:
        raise UserError(f"{column.at or column.name}: over {COUNTED:,} categories: set ignore")
    return tuple(column.counts)


def refuse(found: Plan, columns: dict[str, Column], where: str) -> None:
    """Raise UserError, one line for all columns that cannot be features, with what to do."""
    parts = []
    for name in found.mixed:
        column = columns[name]
        parts.append(
            f"{column.at}: {shown(column.word)} is not a number ({column.words:,} of "
            f"{column.known:,} values are not): gaps={column.word or '?'} makes it a missing value"
        )
    if found.dates:
        parts.append(
            f"columns of dates are not numbers: {listed(found.dates)}: leave them out with "
            f"ignore={','.join(found.dates)}, and add numbers instead, such as an age in years"
        )
    if found.many:
        counts = [_count(columns[name]) for name in found.many]
        parts.append(
            f"columns of words with too many values for categories: "
            f"{', '.join(counts)}: ignore={','.join(found.many)} leaves them out, "
            f"categories={','.join(found.many)} takes each value as a column of its own"
        )
    if parts:
        raise UserError(f"{where}: {'; '.join(parts)}")


def _count(column: Column) -> str:
    many = f"over {COUNTED:,}" if column.counts is None else f"{len(column.counts):,}"
    return f"{column.name} ({many} values)"


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
_SITES = re.compile(
    r"(^|_)(site|hospital|centre|center|clinic|institution|ward|device|subject|person|participant"
    r"|user|client|branch|factory|machine|station)(_?id|_?code)?(_|$)|(^|_)school_?(id|code|name)"
)


def guess_target(columns: Mapping[str, Column], reading: Reading) -> str:
    """Return the column that is the class: by its name, or the last or first of few values.

    Raise UserError with the columns that may be it where none is likely.
    """
    if len(columns) < 2:
        raise UserError(
            f"target: the file has one column, {listed(list(columns))}: give separator=SIGN; save "
            "a file with fixed widths as CSV"
        )
    taken = {*reading.site, *reading.ignore, reading.text}
    may = [name for name, one in columns.items() if name not in taken and one.is_class]
    plain = {name: re.sub(r"[^a-z0-9]+", "_", snake(name)).strip("_") for name in may}
    for whole in (True, False):
        for word in _TARGETS:
            found = [
                name for name in may
                if word == plain[name] or (not whole and word in plain[name].split("_"))
            ]  # fmt: skip
            if found:
                return found[-1]
    last, first = list(columns)[-1], next(iter(columns))
    for name, sure in ((last, True), (first, bool(columns[first].words or reading.form.columns))):
        one = columns[name]
        holes = not one.words and one.high - one.low + 1 != len(one.counts or ())
        other = _NO_TARGET.search(plain.get(name, "")) or _ID.search(plain.get(name, ""))
        if name in may and sure and not holes and not other and len(one.counts or ()) <= MANY:
            return name
    if may:
        each = [f"{name} ({len(columns[name].counts or ())} values)" for name in may]
        raise UserError(f"target: which column is the class? target=COLUMN, such as {listed(each)}")
    middle = next((n for n in reversed(list(columns)) if columns[n].is_number), last)
    raise UserError(
        f"target: no column looks like a class: give target=COLUMN, one of "
        f"{listed(list(columns))}; divide a measurement with labels, such as target={middle} "
        f"labels={{low: ..5, high: 5..}}"
    )


def guess_site(columns: Mapping[str, Column], reading: Reading) -> str:
    """Return the column that names whose a row is, by its name and values; empty for none."""
    for name, one in columns.items():
        if name == reading.target or name in reading.ignore or not is_site(name):
            continue
        if one.counts and 2 <= len(one.counts) <= one.known // 20:
            return name
    return ""


def is_site(name: str) -> bool:
    """Return whether a column is called like whose an example is."""
    return _SITES.search(snake(name).replace(" ", "_")) is not None


def guess_text(columns: Mapping[str, Column], reading: Reading, *, alone: bool = False) -> str:
    """Return the column of the longest texts; ``alone``: empty unless the file is about it."""
    texts = {n: one.length for n, one in columns.items() if n != reading.target and one.words}
    best = max(texts, key=lambda name: texts[name], default="")
    if alone:
        numbers = sum(one.is_number and not one.is_id for one in columns.values())
        many = best and (columns[best].counts is None or len(columns[best].counts or ()) > FEW)
        return best if many and texts[best] >= ABOUT and numbers <= 2 and len(columns) <= 6 else ""
    return best


# --- tables ----------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become numbers: a category's is its place in its list."""

    features: tuple[str, ...]
    codes: dict[str, dict[str, int]]
    infinite: npt.NDArray[np.int64]  # (f,) numbers of each that were made gaps

    @staticmethod
    def of(features: Sequence[str], categories: Sequence[tuple[str, Sequence[str]]]) -> "Columns":
        """Return those features, of which some are categories."""
        codes = {name: places_of(values, f"categories '{name}'") for name, values in categories}
        return Columns(tuple(features), codes, np.zeros(len(features), dtype=np.int64))

    @property
    def plain(self) -> list[str]:
        """Return those that are numbers."""
        return [name for name in self.features if name not in self.codes]

    def numbers(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Return float32 (k, f), NaN for a gap; raise UserError for what is no such value."""
        bad = [name for name in self.plain if chunk.frame[name].dtype.kind != "f"]
        if bad:
            self._refuse(bad, chunk)
        found = np.empty((len(chunk), len(self.features)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for place, name in enumerate(self.features):
                column = chunk.frame[name]
                found[:, place] = column if name not in self.codes else self._coded(name, chunk)
        infinite = np.isinf(found)
        self.infinite[:] += infinite.sum(axis=0)
        found[infinite] = np.nan
        return found

    def about_infinite(self) -> list[str]:
        """Return one line: how many infinite numbers count as gaps, and in which columns."""
        each = [f"{n} ({k:,})" for n, k in zip(self.features, self.infinite, strict=True) if k]
        return [f"infinite numbers count as gaps: {listed(each)}"] if each else []

    def _coded(self, name: str, chunk: Chunk) -> npt.NDArray[np.float32]:
        form, codes = chunk.file.form, self.codes[name]

        def code(value: str, index: Callable[[], int]) -> int:
            place = codes.get(canonical(value))
            if place is None:  # a number that the file writes in its own way
                number = to_numbers(pd.Series([value]), form).iloc[0]
                place = codes.get(canonical(f"{number:.10g}"))
            if place is None and canonical(value).lower() not in form.missing:
                at = chunk.at(index(), name)
                raise UserError(f"{at}: {shown(value)} is not one of its categories")
            return -1 if place is None else place

        found = each_value(chunk.frame[name], code).astype(np.float32)
        found[found < 0] = np.nan
        return found

    def _refuse(self, names: Sequence[str], chunk: Chunk) -> None:
        column = chunk.frame[names[0]]
        numbers = to_numbers(column.dropna(), chunk.file.form)
        word = column.dropna()[numbers.isna()]
        at = chunk.at(int(column.index.get_loc(word.index[0])), names[0])
        raise UserError(
            f"{at}: {shown(str(word.iloc[0]))} is not a number: name columns of words "
            f"({listed(names)}) in categories, each with its values, or in ignore"
        )

    def inputs(self) -> Inputs:
        """Return what the rows are; categories in the order of the features."""
        categories = tuple(
            (name, tuple(self.codes[name])) for name in self.features if name in self.codes
        )
        return Inputs.table(self.features, categories)


def of_rows(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the rows of a file, in its order: what is neither target nor site nor ignored."""
    reading, columns, said = guess(file, given)
    check_columns(file, reading)
    features = left_columns(file, reading)
    made = Plan(tuple(features), reading.categories)
    if not reading.declared:
        columns = columns or look(file, features)
        made = plan({name: columns[name] for name in features}, reading)
        refuse(made, columns, file.where)
        said += about_columns(made, columns)
    if not made.features:
        raise UserError(f"{file.where}: no column is left for the models: see site and ignore")
    coded = Columns.of(made.features, made.categories)
    keys = Keys(reading, classes)
    texts = [name for name in made.features if name in coded.codes]

    def chunks() -> Iterator[Examples]:
        for chunk in file.chunks(keys.columns(*texts), coded.plain):
            kept = keys.add(chunk)
            if kept.any():
                yield coded.numbers(chunk if kept.all() else chunk.take(kept))

    return Stream(
        chunks(),
        lambda _: keys.content(coded.inputs(), coded.about_infinite(), [*said, *about_file(file)]),
    )


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
    need(file.columns, [reading.target] if reading.target else [], "target", file.where)
    columns = look(file, named_columns(file, reading))
    lines = []
    if not reading.target:
        reading = replace(reading, target=guess_target(columns, reading))
        named = f"target: '{reading.target}' is used as the class"
        lines.append(f"{named} (target=COLUMN names another)")
    if site and (found := guess_site(columns, reading)):
        reading = replace(reading, site=(found,))
        lines.append(f"site: '{found}' is used as the site of a row (site=COLUMN names another)")
    if text and not reading.text:
        reading = replace(reading, text=guess_text(columns, reading))
        lines.append(f"text: '{reading.text}' is used as the text (text=COLUMN names another)")
    return reading, columns, lines


def check_columns(file: RowFile, reading: Reading) -> None:
    """Raise UserError for a key that names a column that is not there or another key's."""
    need(file.columns, [reading.target], "target", file.where)
    need(file.columns, reading.site, "site", file.where)
    need(file.columns, reading.ignore, "ignore", file.where)
    need(file.columns, [name for name, _ in reading.categories], "categories", file.where)
    taken = {reading.target, *reading.site, *reading.ignore}
    for name, values in reading.categories:
        places_of(values, f"categories '{name}'")
        if name in taken:
            raise UserError(f"categories: column '{name}' is already target, site or ignored")
        if reading.declared and not values:
            raise UserError(
                f"categories: '{name}' needs its values on a node, such as "
                f"categories={{{name}: [a, b]}}, since sites do not learn them from each other"
            )


def named_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return all columns but those that number the rows, unless a key names them."""
    keys = {reading.target, *reading.site, *(name for name, _ in reading.categories)}
    return [name for name in file.columns if name in keys or name not in file.index]


def left_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return the columns that may be features: no key names them, and they are no index."""
    others = {reading.target, *reading.site, *reading.ignore}
    return [name for name in named_columns(file, reading) if name not in others]


def about_columns(found: Plan, columns: dict[str, Column]) -> list[str]:
    """Return one line: the features, those that are categories, and those that are left out."""
    coded = dict(found.categories)
    plain = [name for name in found.features if name not in coded]
    parts = []
    if plain:
        parts.append(f"{len(plain)} column(s) of numbers: {listed(plain, 6)}")
    if coded:
        each = [f"{name}: {' '.join(values[:4])}"
            + (f" ... {len(values)} values" if len(values) > 4 else "")
                for name, values in coded.items()]  # fmt: skip
        parts.append(f"{len(coded)} column(s) of categories: {listed(each, 6)}")
    if found.left_out:
        parts.append(
            f"left out, with a different value in every row: {listed(found.left_out)} "
            "(key `categories` keeps one)"
        )
    ids = [n for n in plain if columns[n].differs and columns[n].whole and columns[n].rows > 50]
    if ids:
        parts.append(f"whole numbers that differ in every row: {listed(ids)} (`ignore` drops one)")
    return ["; ".join(parts)] if parts else []


def about_file(file: RowFile) -> list[str]:
    """Return one line: what was found out of how the file is written."""
    return ["; ".join(file.found)] if file.found else []


# --- texts ----------------------------------------------------------------


def token_ids(texts: Sequence[str], inputs: Inputs) -> npt.NDArray[np.int32]:
    """Return int32 (k, l): of the first l words in lower case each 1 + CRC-32 mod (V - 1).

    A hash needs no vocabulary of all clients' texts. Id 0 is for padding.
    """
    found = inputs.zeros(len(texts))
    length = inputs.shape[0]
    for row, text in zip(found, texts, strict=True):
        for place, word in enumerate(_WORD.finditer(text.lower())):
            if place == length:
                break
            row[place] = 1 + zlib.crc32(word[0].encode()) % (inputs.vocabulary - 1)
    return found


def of_texts(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the texts of a file, in its order, with the target and the sites."""
    reading, _, guessed = guess(file, given, text=True)
    need(file.columns, [reading.text], "text", file.where)
    need(file.columns, [reading.target], "target", file.where)
    need(file.columns, reading.site, "site", file.where)
    inputs = Inputs(TOKENS, (reading.length,), reading.vocabulary, (reading.text,))
    keys, empty = Keys(reading, classes), []

    def chunks() -> Iterator[Examples]:
        for chunk in file.chunks(keys.columns(reading.text), ()):
            kept = keys.add(chunk)
            found = token_ids(chunk.frame[reading.text][kept].tolist(), inputs)
            empty.append(int((found[:, 0] == 0).sum()))
            if len(found):
                yield found

    def content(_: Examples) -> Content:
        count = sum(empty)
        warnings = (f"{count} texts have no word",) if count else ()
        return keys.content(inputs, warnings, [*guessed, *about_file(file)])

    return Stream(chunks(), content)

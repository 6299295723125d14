"""What the columns of a file hold and what each is for: one description for every command."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.inputs import Indices, Reading, canonical, listed, shown
from fedhet.data.keys import need, present, snake
from fedhet.data.rows import RowFile, to_numbers
from fedhet.errors import UserError

CLASS, SITE, GROUP, IDENTIFIER, IMAGE_FILE = "class", "site", "group", "identifier", "image"
NUMBER, CATEGORY, TEXT, DATE, UNUSED = "number", "category", "text", "date", "not used"
FEW = 50  # values of a column of texts that is taken for categories
COUNTED = 1000  # different values of a column that are counted one by one
ROWS_OF_IDS = 20  # rows from which on a column that differs in all of them is no feature
SENTENCE = 4.0  # words in the mean from which on a column holds sentences
CODES = 12  # values up to which numbers and words are those of a code such as 0, 1, 2, 3+
HOLES = 10  # different numbers up to which classes need not follow each other
CLASSES = 20  # values up to which a column may be the class
_SAMPLE = 10_000  # rows by which leaks are looked for
_CELLS = 4_000_000  # the same for wide tables
_LEAK = 0.05  # of the errors of always naming the commonest class: a column with fewer tells it
_SMOOTH = 0.05  # of what it is for rows in any order: steps between rows of a recording
_HELD_OUT = 50  # rows from which on that is told from chance


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Exact names, in snake case.
_TARGETS = _words(
    "target label labels class classes outcome diagnosis y died death dead deceased survived event "
    "status ill disease result churn fraud sentiment species default relapse mortality activity"
)
_SITES = _words(
    "site sites site_id site_name hospital hospital_id hospital_name clinic clinic_id center "
    "centre center_id centre_id institution institution_id institute inst facility facility_id "
    "hopital klinik klinikum krankenhaus spital site_code hospital_code center_code centre_code"
)
_SITE_WORDS = _words(
    "ward device machine factory plant station branch department dept scanner lab laboratory "
    "school store region country provider practice surgeon physician cohort source site hospital "
    "clinic center centre person subject user participant"
)
_PERSON = re.compile(
    r"(\w+_)?(patient|pat|person|subject|subj|sub|participant|individual|animal|mouse|rat|donor|child"
    r"|infant|mother|family|household|recording|record|scan|slide|lesion|case|volunteer|proband"
    r"|specimen|sample|user|client|customer|speaker|writer|session|trip|eye|encounter|hadm|stay|unit|engine)"
    r"_?(id|ids|no|nr|nbr|num|number|code|key|uid|uuid|name)?|pid|mrn|ptid|rid|id|nr|ident|subid|usubjid"
)
_SERIAL = re.compile(r"(sample|row|obs|observation|serial|seq|sequence)_")
_NUMBERED = re.compile(r"\w*_(id|ids|nr|nbr|uid|uuid|guid|pk)")
_ID = re.compile(
    r"(^|[^a-z])(id|ids|no|nr|nbr|num|number|index|idx|key|uuid|guid|mrn|pid|serial|row|record|case"
    r"|code|(pat|patient|pid|sub|subj|subject|study|case|record|obs)_?(id|no|nr|num|number)"
    r"|rownames?|row_names?|unnamed|patient|subject|person|encounter|sample|instance)([^a-z]|$)"
)
_CODED = re.compile(r"[A-Za-z]{0,8}[-_ ]?\d{2,}[\w-]*")
_DESCRIBES = re.compile(  # an example rather than its class
    r"(^|_)(treat\w*|trt|arms?|rx|therapy|drug|dose|group|sex|gender|race|eth\w*|region|country"
    r"|state|city|year|month|week|day|days|date|time|hour|age\w*|visit|period|wave|size|weight"
    r"|education|married|smok\w*|child\w*|name|fold|split|batch|num|number|count|n)(_|$)"
)
_EVENTS = re.compile(
    r"^e_|(^|_)(status|f?u?stat|event\w*|death|dead|died|deceased|cens\w*|relapse\w*|recur\w*"
    r"|failure|arrest|churn|surviv\w*|mortality|dfs|pfs|os)(_|$|\d)"
)
_TIMES = re.compile(
    r"(f|fu|s|d|obs|surv|survival|event|follow_?up|life)?_?t(ime)?s?\d?|t_\w+|len_?fol\w*|tte|duration|(survival|overall_)"
    r"\w*|(os|pfs|dfs|rfs)_?(time|days|months|years)?|days|weeks|months|t?stop|futime|lifetime|tenure"
    r"|(time|days|weeks|months|years)_(to|until|of|in)_\w+|\w*(follow_?up|survtime|survival_?time)"
    r"\w*|\w+_(time|days|months)_to_\w+"
)
_LATER = re.compile(
    r"(^|_)(discharge\w*|cause_of_death|death\w*|dod|autopsy|los|length_of_stay|time_in_hospital"
    r"|days_in_\w+|post_?op\w*|follow_?up\w*|readmi\w+|expire\w*|mortality|survival|died|deceased"
    r"|complications?|outcomes?|recurrence|relapse)(_|$)"
)
_COMMA = re.compile(r"[+-]?[\d.]*,\d+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AP]M)?|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{2,4}.*"
    r"|[A-Za-z]{3,9} \d{1,2},? \d{4}.*",
    re.IGNORECASE,
)


def site_like(name: str) -> bool:
    """Return whether a column's name may be that of a site, a person or a device."""
    plain = snake(name)
    other = _DESCRIBES.search(plain) or _LATER.search(plain)
    return not other and bool(_SITE_WORDS & {*plain.split("_")})


def about_site(name: str) -> str:
    """Return one line about a column that may be the site, where no key names one."""
    return f"no site: site={name} would make each value of '{name}' a client"


class Unclear(UserError):
    """A key that a person must give: its name, and the columns that it may be."""

    def __init__(self, key: str, text: str, choices: Sequence[str]) -> None:
        super().__init__(f"{key}: {text}")
        self.key, self.choices = key, choices


# --- one column ----------------------------------------------------------------


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
    nested: bool = False  # bytes, lists, structs
    whole: bool = True
    low: float = np.inf
    high: float = -np.inf
    length: float = 0.0  # mean number of words of a text
    blocks: int = 0  # of equal values that follow each other
    steps: float = 0.0  # squared differences of values that follow each other
    sums: tuple[float, float, int] = (0.0, 0.0, 0)  # of values and their squares, and how many
    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    examples: tuple[str, ...] = ()

    def add(self, values: pd.Series, file: RowFile) -> None:
        """See some more: numbers, or texts with NaN for gaps."""
        if values.dtype.kind not in "iuf":
            values = values.mask(values.str.lower().isin(list(file.form.missing)))
        known = values.dropna()
        self.gaps += len(values) - len(known)
        self.rows += len(values)
        numbers = known
        if values.dtype.kind not in "iuf":
            numbers = to_numbers(known, file.form)
            if numbers.isna().any():
                self._add_words(known[numbers.isna()], file)
            numbers = numbers.dropna()
        if len(numbers):
            self.low, self.high = min(self.low, numbers.min()), max(self.high, numbers.max())
            self.whole = self.whole and bool((numbers == np.rint(numbers)).all())
            plain = numbers.to_numpy(np.float64)[np.isfinite(numbers)]
            self.steps += float(np.square(np.diff(plain)).sum())
            total, squares, count = self.sums
            self.sums = (total + plain.sum(), squares + np.square(plain).sum(), count + len(plain))
        if self.whole or self.words:
            codes = pd.util.hash_array(known.to_numpy())
            self.blocks += int((codes[1:] != codes[:-1]).sum()) + (len(codes) > 0)
            self.hashes = np.union1d(self.hashes, codes)
        self._count(known)

    def _count(self, known: pd.Series) -> None:
        counts = known.value_counts(sort=False) if self.counts is not None else known[:0]
        if len(self.examples) < 3:  # noqa: PLR2004
            first = (one if isinstance(one, str) else f"{one:.10g}" for one in known.head(50))
            self.examples = tuple(dict.fromkeys((*self.examples, *first)))[:3]
        if self.counts is None or len(counts) > COUNTED:
            self.counts = None
            return
        for value, count in counts.items():
            text = value if isinstance(value, str) else f"{value:.10g}"
            plain = canonical(str(value) if isinstance(value, int) else text)
            self.counts[plain] = self.counts.get(plain, 0) + int(count)
        if len(self.counts) > COUNTED:
            self.counts = None

    def _add_words(self, words: pd.Series, file: RowFile) -> None:
        """See some texts that are no numbers."""
        self.words += len(words)
        if not self.word:
            self.word = str(words.iloc[0])
            self.at = file.at(words.index[0], self.name)
            self.nested = re.match(r"b['\"]|[\[{]", self.word) is not None
        head = words.head(200)
        self.dates += int(head.str.fullmatch(_DATE.pattern, case=False).mean() * len(words))
        self.length = max(self.length, float(head.str.split().str.len().mean()))

    @property
    def known(self) -> int:
        """Return how many values are no gaps."""
        return self.rows - self.gaps

    @property
    def values(self) -> int:
        """Return how many different values there are; of measurements as far as counted."""
        if self.counts is not None:
            return len(self.counts)
        return max(COUNTED + 1, len(self.hashes) if self.whole or self.words else 0)

    @property
    def many(self) -> str:
        """Return their number for a message."""
        rough = self.counts is None and not self.whole and not self.words
        return f"over {COUNTED:,} values" if rough else f"{self.values:,} values"

    @property
    def is_smooth(self) -> bool:
        """Return whether rows that follow each other have nearly the same number."""
        total, squares, count = self.sums
        spread = squares - total * total / max(1, count)
        return count > 2 * ROWS_OF_IDS and 0 < self.steps < _SMOOTH * 2 * spread

    @property
    def kind(self) -> str:
        """Return what its values are, for people."""
        if not self.known:
            return "empty"
        if self.nested:
            return "bytes or lists"
        if not self.words:
            return "whole numbers" if self.whole else "numbers"
        if self.is_date:
            return "dates"
        if 2 * self.words < self.known:
            return "numbers and words"
        return "sentences" if self.length >= SENTENCE else "words"

    @property
    def is_date(self) -> bool:
        """Return whether most values are dates or times."""
        return self.dates > 0.8 * max(1, self.known)

    @property
    def is_discrete(self) -> bool:
        """Return whether its values may name something: words or whole numbers."""
        return bool(self.known) and (self.whole or 2 * self.words >= self.known)

    @property
    def is_unique(self) -> bool:
        """Return whether it differs in (nearly) every row, which a measurement may for all that."""
        return (
            self.is_discrete
            and self.rows >= ROWS_OF_IDS
            and (
                not self.gaps
                and len(self.hashes) == self.known
                or _ID.search(snake(self.name)) is not None
                and len(self.hashes) >= 0.95 * self.rows
            )
        )

    @property
    def is_id(self) -> bool:
        """Return whether it only tells rows apart: texts, or numbers that count or are named so."""
        if not self.is_unique or self.is_date or (self.words and self.length >= SENTENCE):
            return False
        if self.words and 2 * self.words >= self.known:
            return True
        counts = self.high - self.low == self.rows - 1
        return self.whole and (counts or _ID.search(snake(self.name)) is not None)

    @property
    def is_group(self) -> bool:
        """Return whether it names persons or the like that have several rows each."""
        name, different = snake(self.name), len(self.hashes)
        if not self.is_discrete or self.is_date or self.length >= SENTENCE:
            return False
        share = self.known / max(1, different)
        if not share > 1 or different < 5 or self.is_unique:  # noqa: PLR2004
            return False
        if _PERSON.fullmatch(name):
            return share <= 200 and (different > CODES or share <= CODES)  # noqa: PLR2004
        if different <= CLASSES or share > FEW or name in _SITES:
            return False
        if _NUMBERED.fullmatch(name):
            return True
        whole = self.whole and not self.words and self.blocks == different
        counts = whole and self.low in (0, 1) and not self.has_holes
        numbered = counts or (whole and not self.gaps and share.is_integer())
        numbered = numbered and not _DESCRIBES.search(name)
        coded = 2 * self.words >= self.known and all(map(_CODED.fullmatch, self.examples))
        return (numbered or coded) and share >= 1.2  # noqa: PLR2004

    @property
    def is_class(self) -> bool:
        """Return whether its values may be classes: few of them, and numbers only without holes."""
        if not 2 <= self.values <= min(100, self.known // 5 + 2) or self.nested:
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
    def role(self) -> tuple[str, str]:
        """Return what becomes of it where no key says, and why."""
        few = self.values <= min(FEW, max(2, self.known // 2))
        different_sentences = self.length >= SENTENCE and self.values > self.known // 5
        comma = self.values > CODES and _COMMA.fullmatch(self.word) is not None
        roles: Sequence[tuple[bool, str, str]] = (
            (not self.known, UNUSED, "without a value"),
            (self.nested, UNUSED, "bytes or lists"),
            (comma, UNUSED, "numbers with a comma (decimal=, or thousands=, reads them)"),
            (self.is_group, IDENTIFIER, f"{len(self.hashes):,} values repeat"),
            (self.is_id, IDENTIFIER, "a different value in every row"),
            (not self.words, NUMBER, ""),
            (self.is_date, DATE, "dates are no numbers"),
            (2 * self.words < self.known and self.values > CODES, UNUSED, "numbers and words"),
            (few and not different_sentences, CATEGORY, ""),
            (True, TEXT, "sentences, or too many values for categories"),
        )
        return next((what, why) for fits, what, why in roles if fits)


# --- all columns ----------------------------------------------------------------


@dataclass(frozen=True)
class Role:
    """What a column is for, and why."""

    what: str
    why: str = ""


class Description:
    """The columns of a file and their roles; ``reading`` has what was proposed beside the keys.

    ``propose``: site and group are looked for as well, for a preset that a person reads.
    """

    def __init__(
        self, columns: Mapping[str, Column], reading: Reading, propose: Collection[str] = ()
    ) -> None:
        self.columns = columns
        if not reading.target:
            reading = replace(reading, target=_one_named(columns, reading, _TARGETS, "is_class"))
        if "site" in propose and not reading.site:
            name = _one_named(columns, reading, _SITES, "is_discrete")
            if name and 2 <= columns[name].values <= columns[name].known // 5:
                reading = replace(reading, site=(name,))
        if "group" in propose and not reading.group and (name := likely_group(columns, reading)):
            reading = replace(reading, group=(name,))
        self.reading = reading
        self.roles = {name: self._role(name) for name in columns}
        if not self.of(NUMBER, CATEGORY) and not propose:  # better than nothing
            for name in self.of(IDENTIFIER):
                if not columns[name].words and not columns[name].is_group:
                    self.roles[name] = Role(NUMBER, "there is no other column")
        self.categories = {name: self._values(name) for name in self.of(CATEGORY)}

    def _role(self, name: str) -> Role:
        column, reading = self.columns[name], self.reading
        keyed: Sequence[tuple[bool, str, str]] = (
            (name == reading.target, CLASS, column.many),
            (name in reading.site, SITE, column.many),
            (name in reading.group, GROUP, f"{column.many}, each in one split of one client"),
            (name in reading.when, UNUSED, "split-by: the latest rows are the test"),
            (name in reading.ignore, UNUSED, "ignore"),
            (name == reading.text, TEXT, "text"),
            (name == reading.image, IMAGE_FILE, "image"),
            (name in reading.numbers, NUMBER, "numbers"),
            (name in dict(reading.categories), CATEGORY, "categories"),
        )
        return next((Role(what, why) for fits, what, why in keyed if fits), Role(*column.role))

    def of(self, *whats: str) -> list[str]:
        """Return the columns of these roles, in their order."""
        return [name for name, role in self.roles.items() if role.what in whats]

    @property
    def features(self) -> list[str]:
        """Return the columns that models see."""
        return self.of(NUMBER, CATEGORY)

    def _values(self, name: str) -> tuple[str, ...]:
        column = self.columns[name]
        if given := dict(self.reading.categories).get(name):
            return given
        if column.counts is None:
            at = column.at or name
            raise UserError(f"{at}: over {COUNTED:,} categories: set ignore")
        return tuple(column.counts)

    def need_target(self) -> None:
        """Raise Unclear where no key and no name says which column is the class."""
        if self.reading.target:
            return
        names = list(self.columns)
        if len(names) < 2:  # noqa: PLR2004
            raise UserError(
                f"target: the file has one column, {listed(names)}: give separator=SIGN; save "
                "a file with fixed widths as CSV"
            )
        taken = self.reading.taken
        may = [n for n, one in self.columns.items() if n not in taken and one.is_class]
        if not may:
            raise UserError(f"target: no column looks like a class: {self._no_class(names)}")

        def order(name: str) -> tuple[bool, bool, bool, int]:
            one, plain = self.columns[name], snake(name)
            few = one.values <= CLASSES and (bool(one.words) or one.values == 2)  # noqa: PLR2004
            other = _DESCRIBES.search(plain) is not None or site_like(name) or one.is_group
            last = name == names[-1]
            return other, plain not in _TARGETS, not (few or last), -names.index(name)

        may = [n for n in may if self.columns[n].values <= CLASSES] or may
        may.sort(key=order)
        each = listed([f"{name} ({self.columns[name].many})" for name in may])
        text = f"which column is the class? target=COLUMN, such as {each}"
        raise Unclear("target", text, may)

    def _no_class(self, names: Sequence[str]) -> str:
        columns = [*self.columns.values()]
        words = [one for one in columns if one.words and one.is_unique and not one.is_date]
        numbers = [one for one in columns if not one.words]
        if len(words) == 1 and len(numbers) == len(columns) - 1 > 1:
            return (
                f"each row seems to be a measurement ('{words[0].name}' names them) and each column"
                " an example: transpose the file, such as pandas.read_csv(...).T.to_csv(...), and "
                "add a column of the class"
            )
        advice = f"give target=COLUMN, one of {listed(names)}"
        if last := next((one for one in columns[::-1] if one.low < one.high), None):
            middle = (last.low + last.high) / 2
            half = np.format_float_positional(middle, 3, unique=False, fractional=False, trim="-")
            advice += (
                f"; divide a measurement with labels, such as target={last.name} "
                f'labels="{{low: ..{half}, high: {half}..}}"'
            )
        return advice

    def gap_words(self) -> list[str]:
        """Return the words that mean a gap, the only ones among numbers; those are numbers then."""
        words = []
        for name in self.of(UNUSED):
            column = self.columns[name]
            once = column.words == (column.counts or {}).get(column.word.strip(), 0)
            if once and 2 * column.words < column.known:
                words.append(column.word)
                self.roles[name] = Role(NUMBER, f"'{column.word}' is a gap")
        return words

    def leave_out(self, why: str) -> None:
        """Make what would be features columns that are not used."""
        for name in self.of(NUMBER, CATEGORY, TEXT, DATE, IDENTIFIER):
            if name != self.reading.text:
                self.roles[name] = Role(UNUSED, why)

    def likely_sites(self) -> list[str]:
        """Return columns that may be the site, by a word of their names and their values."""
        return [
            name for name in self.of(CATEGORY, NUMBER, IDENTIFIER) for one in [self.columns[name]]
            if site_like(name) and one.is_discrete
            and 2 <= one.values <= one.known // 10
        ]  # fmt: skip

    def refuse(self, where: str) -> None:
        """Raise UserError, one line for all columns that cannot be features, with what to do."""
        unused = {name: self.roles[name].why for name in self.of(UNUSED)}
        mixed = [self.columns[n] for n, why in unused.items() if why == "numbers and words"]
        parts = [
            f"{one.at}: {shown(one.word)} is not a number ({one.words:,} of {one.known:,} values "
            f"are not): gaps={one.word} makes it a missing value"
            for one in mixed
        ]
        if dates := self.of(DATE):
            parts.append(
                f"columns of dates are not numbers: {listed(dates)}: leave them out with "
                f"ignore={','.join(dates)}, and add numbers instead, such as an age in years"
            )
        nested = [name for name, why in unused.items() if why == "bytes or lists"]
        if nested:
            parts.append(
                f"columns of bytes or lists: {listed(nested)}: ignore={','.join(nested)} leaves "
                f"them out; dataset=image-folder image={nested[0]} reads images"
            )
        if many := self.of(TEXT):
            counts = [f"{name} ({self.columns[name].many})" for name in many]
            names = ",".join(many)
            parts.append(
                f"columns of words with too many values for categories: {', '.join(counts)}: "
                f"ignore={names} leaves them out, categories={names} takes each value as a column "
                "of its own"
            )
        if commas := [name for name, why in unused.items() if "comma" in why]:
            parts.append(
                f"columns of {unused[commas[0]]}: {listed(commas)}; ignore={','.join(commas)} "
                "leaves them out"
            )
        if parts:
            raise UserError(f"{where}: {'; '.join(parts)}")

    def line(self) -> str:
        """Return one line: the features, those that are categories, and those that are left out."""
        numbers = self.of(NUMBER)
        each = [
            f"{name}: {' '.join(some[:4])}" + (f" ... {len(some)} values" if len(some) > 4 else "")  # noqa: PLR2004
            for name, some in self.categories.items()
        ]
        ids = self.of(IDENTIFIER)
        empty = [name for name in self.of(UNUSED) if not self.columns[name].known]
        alike = [n for n in numbers if self.columns[n].is_unique and self.columns[n].rows > FEW]
        parts = [
            (numbers, f"{len(numbers)} column(s) of numbers: {listed(numbers, 6)}"),
            (each, f"{len(each)} column(s) of categories: {listed(each, 6)}"),
            (
                ids,
                f"left out, identifiers: {listed(ids)} (key `categories` or `numbers` keeps one)",
            ),
            (empty, f"left out, without a value: {listed(empty)}"),
            (
                alike,
                f"whole numbers that differ in every row: {listed(alike)} (`ignore` drops one)",
            ),
        ]
        return "; ".join(text for names, text in parts if names)

    def is_recording(self) -> bool:
        """Return whether most features change little from row to row, as steps of time do."""
        numbers = [self.columns[name] for name in self.of(NUMBER)]
        return 2 * sum(one.is_smooth for one in numbers) > len(numbers) > 0

    def later(self) -> list[str]:
        """Return features that by their names are known only after the class."""
        target = snake(self.reading.target)
        event = _EVENTS.search(target) is not None
        return [
            name for name in self.features for plain in [snake(name)]
            if _LATER.search(plain) or (event and _TIMES.fullmatch(plain))
        ]  # fmt: skip


def _one_named(
    columns: Mapping[str, Column], reading: Reading, names: frozenset[str], fits: str
) -> str:
    """Return the one free column of such a name whose values fit; empty for none or several."""
    taken = reading.taken | {reading.text}
    taken |= {*dict(reading.categories), *reading.numbers}
    free = [name for name in columns if name not in taken and snake(name) in names]
    fitting = [name for name in free if getattr(columns[name], fits)]
    rivals = [
        name for name, one in columns.items()
        if fits == "is_class" and name not in taken and name not in fitting
        and one.is_class and one.values <= 4 and _EVENTS.search(snake(name))  # noqa: PLR2004
    ]  # fmt: skip
    return fitting[0] if len(fitting) == 1 and not rivals else ""


def likely_group(columns: Mapping[str, Column], reading: Reading) -> str:
    """Return the column of persons, recordings or the like with the fewest values, or empty."""
    taken = reading.taken | {*reading.numbers, *dict(reading.categories), reading.image}
    taken |= {reading.time}
    names = [
        name for name, one in columns.items()
        if name not in taken and one.is_group and not _SERIAL.match(snake(name))
    ]  # fmt: skip
    return min(names, key=lambda name: columns[name].values, default="")


def look(file: RowFile, names: Sequence[str]) -> dict[str, Column]:
    """Return what these columns hold, from all rows."""
    columns = {name: Column(name) for name in names}
    written = [name for name in names if name in file.written]
    for part, frame in file.chunks(written, [name for name in names if name not in written]):
        for name, column in columns.items():
            column.add(frame[name], part)
    return columns


def describe(file: RowFile, reading: Reading, propose: Collection[str] = ()) -> Description:
    """Return what the columns of a file hold and are for."""
    if reading.target:
        present(file, reading)
    need(file, reading.ignore, "ignore")
    need(file, reading.numbers, "numbers")
    return Description(look(file, named_columns(file, reading)), reading, propose)


def named_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return all columns but those that number the rows, unless a key names them."""
    keys = reading.taken - {*reading.ignore} | {reading.text, reading.image, reading.time}
    keys |= {*dict(reading.categories), *reading.numbers}
    return [name for name in file.columns if name in keys or name not in file.index]


# --- leaks ----------------------------------------------------------------


def leaks(names: Sequence[str], x: npt.NDArray[Any], labels: Indices, target: str) -> Iterator[str]:
    """Yield a line for each column that alone gives the class on held-out rows.

    ``x`` (n, f) are features as stored, or a sample. Two rules are fitted on one half of the rows
    and tested on the other: a tree of one cut a class, and a table of the commonest class of each
    value.
    """
    from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415  (a second at import)

    order = np.random.default_rng(0).permutation(len(labels))[: _CELLS // max(1, len(names))]
    fit, test = order[: len(order) // 2][:_SAMPLE], order[len(order) // 2 :][:_SAMPLE]
    if len(test) < _HELD_OUT or len(np.unique(labels[fit])) < 2:  # noqa: PLR2004
        return
    commonest = np.bincount(labels[fit]).argmax()
    others = (labels[test] != commonest).sum()
    if others < len(np.unique(labels)):  # too few to tell
        return
    tree = DecisionTreeClassifier(max_leaf_nodes=min(CLASSES, labels.max() + 1), random_state=0)
    for name, column in zip(names, x.T, strict=True):
        values = np.where(np.isnan(column), np.float32(-1e30), column)[:, None]
        wrong = (tree.fit(values[fit], labels[fit]).predict(values[test]) != labels[test]).sum()
        codes = pd.Series(labels[fit]).groupby(values[fit, 0]).agg(lambda one: one.mode()[0])
        known = pd.Series(values[test, 0]).map(codes).fillna(commonest)
        wrong = min(wrong, (known.to_numpy() != labels[test]).sum())
        if wrong <= _LEAK * others:
            yield (
                f"column '{name}' alone gives '{target}' in {1 - wrong / len(test):.1%} of "
                f"held-out rows: if it is known only after '{target}', leave it out with "
                f"ignore={name}"
            )

"""What the columns of a file hold and what each is for: one description for every command."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.inputs import Indices, Reading, canonical, listed, shown
from fedhet.data.rows import RowFile, Unclear, to_numbers
from fedhet.errors import UserError, nearest

CLASS, SITE, GROUP, IDENTIFIER, IMAGE_FILE = "class", "site", "group", "identifier", "image"
NUMBER, CATEGORY, TEXT, DATE, UNUSED = "number", "category", "text", "date", "not used"
LEFT = (IDENTIFIER, DATE, TEXT, UNUSED)  # what models of a table do not see
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


# Exact names, in snake case.
_TARGETS = re.compile(
    "target|labels?|class(es)?|outcome|diagnosis|y|died|death|dead|deceased|survived|event|status"
    "|ill|disease|result|churn|fraud|sentiment|species|default|relapse|mortality|activity"
)
_SITES = re.compile(
    r"(site|hospital|clinic|cent(er|re)|institution|institute|facility)s?(_(id|name|code))?|inst"
    r"|hopital|klinik(um)?|krankenhaus|spital|zentrum|standort|centro|etablissement"
)
_SITE_WORDS = re.compile(
    "(^|_)(ward|device|machine|factory|plant|station|branch|department|dept|scanner|lab|laboratory"
    "|school|store|region|country|provider|practice|surgeon|physician|cohort|source|site|hospital"
    "|clinic|center|centre|person|subject|user|participant|zentrum|standort|abteilung|centro)(_|$)"
)
_PERSON = re.compile(  # names of columns that say whose a row is, or of what it was cut
    r"(?!(len|length|time|days|duration)_)(\w+_)?(patient(en)?|pat|proband(en)?|versuchsperson"
    r"|versicherten|paciente|sujeto?|dossier|pseudonym|person|subject|subj|sub|participant|individual|animal"
    r"|mouse|rat|donor|child|infant|mother|family|household|recording|record|scan|slide|lesion|case"
    r"|volunteer|specimen|sample|user|client|customer|speaker|writer|session|trip|eye|encounter|hadm"
    r"|stay|unit|engine|study|series|stratum|pair|litter|cluster|herd|cage|twin)s?_?"
    r"(id|ids|no|nr|nbr|num|number|nummer|numero|code|key|uid|uuid|name|kennung)?"
    r"|(sur|last_?|full_?|nach)?name|(fall|kind|tier|akten?|vp)_?(id|nr|nummer)"
    r"|pid|mrn|ptid|rid|id|ids|uuid|guid|nr|ident|subid|usubjid"
)
_SERIAL = re.compile(r"(sample|row|obs|observation|serial|seq|sequence)_")
_NUMBERED = re.compile(r"\w*_(id|ids|nr|nbr|uid|uuid|guid|pk)")
_ID = re.compile(
    r"(^|[^a-z])(id|ids|no|nr|nbr|num|number|index|idx|key|uuid|guid|mrn|pid|serial|row|record|case"
    r"|code|(pat|patient|pid|sub|subj|subject|study|case|record|obs)_?(id|no|nr|num|number)"
    r"|rownames?|row_names?|unnamed|patient|subject|person|encounter|sample|instance)([^a-z]|$)"
)
_PERSON_ALONE = re.compile(  # no count: also where few have many rows, as in studies of sensors
    r"(subject|patient|person|participant|proband(en)?|volunteer|versuchsperson|animal)_?"
    r"(id|no|nr|num|number|code|nummer)?"
)
_CODED = re.compile(r"[A-Za-z]{0,8}[-_ ]?\d{2,}[\w-]*")
_DESCRIBES = re.compile(  # an example rather than its class
    r"(^|_)(treat\w*|trt|arms?|rx|therapy|drug|dose|group|sex|gender|race|eth\w*|region|country"
    r"|state|city|year|month|week|day|days|date|time|hour|age\w*|visit|period|wave|size|weight"
    r"|education|married|smok\w*|child\w*|name|fold|split|batch|num|number|count|n)(_|$)"
)
_EVENTS = re.compile(
    r"^e(_|$)|(^|_)(observed|progression|gestorben|verstorben|tod|ereignis|deces|evenement|muerte"
    r"|fallecid[oa]|evento|status|f?u?stat|event\w*|death|dead|died|deceased|cens\w*|relapse\w*|recur\w*"
    r"|failure|arrest|churn|surviv\w*|mortality|dfs|pfs|os)(_|$|\d)"
)
_TIMES = re.compile(
    r"(f|fu|s|d|obs|surv|survival|event|follow_?up|life|rec|rel)?_?t(ime)?s?(_\w)?\d?|t_\w+"
    r"|len_?fol\w*|tte|(diff|delta)_?(time|days|months|years)|r?cens\w*"
    r"|duration|(survival|overall_)\w*|(os|pfs|dfs|rfs)_?(time|days|months|years)?|days|weeks"
    r"|months|t?stop|futime|lifetime|tenure|(time|days|weeks|months|years)_(to|until|of|in)_\w+"
    r"|\w*(follow_?up|survtime|survival_?time)\w*|\w+_(time|days|months)_to_\w+|t2e"
    r"|(\w+_)?(zeit|dauer|ueberleben\w*|tage_bis\w*|temps|duree|suivi|survie|tiempo|seguimiento)"
    r"(_\w+)?"
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
# Why a column is no feature, and what may be done, with {names} and the {first} of them.
_ADVICE = {
    "bytes or lists": "dataset=image-folder image={first} reads images",
    "numbers with a comma": "decimal=, or thousands=, reads them",
    "dates are no numbers": "add numbers instead, such as an age in years",
    "numbers and words": "gaps=WORD makes a word a missing value",
    "sentences, or too many values for categories": "categories={names} takes each value as a "
    "column of its own; dataset=texts text={first} reads texts (from Python text= alone)",
}
_NESTED, _COMMAS, _DATES, _MIXED, _MANY = _ADVICE
# What a column is for by the first key that names it, and why.
_ROLES = {
    "target": (CLASS, "{many}"), "site": (SITE, "{many}"),
    "group": (GROUP, "{many}, each in one split of one client"),
    "split-by": (UNUSED, "split-by: the latest rows are the test"), "ignore": (UNUSED, "ignore"),
    "text": (TEXT, "text"), "image": (IMAGE_FILE, "image"), "numbers": (NUMBER, "numbers"),
    "categories": (CATEGORY, "categories"),
}  # fmt: skip


def snake(name: str) -> str:
    """Return ``PatientID`` as ``patient_id``."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("ô", "o")
    return re.sub(r"[^a-z0-9]+", "_", parted).strip("_")


def is_person(name: str) -> bool:
    """Return whether a column's name may say whose a row is, or of what it was cut."""
    return _PERSON.fullmatch(snake(name)) is not None


def cut_labels(middle: float) -> str:
    """Return the key that divides a measurement into two classes."""
    half = np.format_float_positional(middle, 3, unique=False, fractional=False, trim="-")
    return f'labels="{{low: ..{half}, high: {half}..}}"'


def need(file: RowFile, wanted: Iterable[str], key: str) -> None:
    """Raise UserError for a column that a key names and the file has not."""
    for name in wanted:
        if name not in file.columns:
            has = f"{nearest(name, file.columns)}; it has {listed(file.columns)}"
            text = f"{key}: {file.where} has no column {name!r}{has}"
            raise UserError(text, about=f"{key}: column {name!r}")


def present(file: RowFile, reading: Reading) -> Reading:
    """Return the reading, on a node without sites that its file has not: all rows are its own.

    Raise UserError for a column that is not there; a node may be without those of ``ignore``.
    """
    if reading.declared:
        reading = reading.changed(site=tuple(n for n in reading.site if n in file.columns))
    for key, names in reading.named.items():
        need(file, () if key == "ignore" and reading.declared else names, key)
    return reading


def site_like(name: str) -> bool:
    """Return whether a column's name may be that of a site, a person or a device."""
    plain = snake(name)
    other = _DESCRIBES.search(plain) or _LATER.search(plain)
    return not other and _SITE_WORDS.search(plain) is not None


def about_site(name: str) -> str:
    """Return one line about a column that may be the site, where no key names one."""
    return f"no site: site={name} would make each value of '{name}' a client"


class Column:
    """What the values of a column are: all of them are added, then :meth:`decide` is called."""

    def __init__(self, name: str) -> None:
        self.name, self.plain, self.rows, self.known = name, snake(name), 0, 0
        self.counts: Counter[str] | None = Counter()  # None: more than are counted
        self.words, self.word, self.at = 0, "", ""  # values that are no numbers; where the first is
        self.dates, self.length = 0, 0.0  # length: mean number of words of a text
        self.low, self.high, self.whole = np.inf, -np.inf, True
        self.blocks = 0  # of equal values that follow each other
        self.is_smooth = False  # rows that follow each other have nearly the same number
        self.hashes = np.zeros(0, dtype=np.uint64)
        self.examples: list[str] = []

    def add(self, values: pd.Series, file: RowFile) -> None:
        """See some more: numbers, or texts with NaN for gaps."""
        if values.dtype.kind not in "iuf":
            values = values.mask(values.str.lower().isin(list(file.form.missing)))
        known = values.dropna()
        numbers = to_numbers(known, file.form)
        if (words := known[numbers.isna()]).size:
            if not self.words:
                self.word, self.at = str(words.iloc[0]), file.at(words.index[0], self.name)
            self.words += len(words)
            head = words.head(200)
            self.dates += int(head.str.fullmatch(_DATE.pattern, case=False).mean() * len(words))
            self.length = max(self.length, float(head.str.split().str.len().mean()))
        if (numbers := numbers.dropna()).size:
            self.low, self.high = min(self.low, numbers.min()), max(self.high, numbers.max())
            self.whole = self.whole and bool((numbers == np.rint(numbers)).all())
            if not self.rows and len(numbers) > 2 * ROWS_OF_IDS and np.isfinite(numbers).all():
                steps = float(np.square(np.diff(numbers)).mean())
                self.is_smooth = 0 < steps < _SMOOTH * 2 * float(numbers.var())
        self.known, self.rows = self.known + len(known), self.rows + len(values)
        if self.whole or self.words:
            codes = pd.util.hash_array(known.to_numpy())
            self.blocks += int((codes[1:] != codes[:-1]).sum()) + (len(codes) > 0)
            self.hashes = np.union1d(self.hashes, codes)
        self.examples = self.examples or [*dict.fromkeys(map(_text, known.head(50)))][:3]
        if self.counts is not None:
            each = known.value_counts(sort=False).head(COUNTED + 1)
            for value, number in each.items():
                self.counts[canonical(_text(value))] += number
            if max(len(each), len(self.counts)) > COUNTED:
                self.counts = None

    def decide(self) -> None:
        """Decide what the values are and may be for; ``role`` is for a column that no key names."""
        different, known = len(self.hashes), self.known
        self.values = max(COUNTED + 1, different) if self.counts is None else len(self.counts)
        self.many = f"{self.values:,} values"
        nested, sentences = re.match(r"b['\"]|[\[{]", self.word), self.length >= SENTENCE
        worded = bool(self.words) and 2 * self.words >= known  # at least half are no numbers
        self.is_date = self.dates > 0.8 * max(1, known)
        # Values may name something. They may all differ, as those of a measurement do, too.
        self.is_discrete = bool(known) and (self.whole or worded)
        named = _ID.search(self.plain) is not None
        self.is_unique = self.is_discrete and self.rows >= ROWS_OF_IDS and (
            (named and different >= 0.95 * self.rows) or different == self.rows
        )  # fmt: skip
        names_rows = worded or (self.whole and (named or self.high - self.low == self.rows - 1))
        is_id = names_rows and self.is_unique and not (self.is_date or (self.words and sentences))
        holes = not self.words and self.high - self.low + 1 != self.values
        self.is_group = (
            self.is_discrete and not (self.is_unique or self.is_date or sentences)
            and self._is_repeated(holes=holes, worded=worded)
        )  # fmt: skip
        self.is_class = bool(2 <= self.values <= min(100, known // 5 + 2) and not nested and (
            (not sentences or self.values <= known // 20) and not self.is_date
            if self.words else self.whole and (self.values <= HOLES or not holes)
        ))  # fmt: skip
        few = self.values <= min(FEW, max(2, known // 2))
        long = sentences and self.values > known // 5
        comma = self.values > CODES and _COMMA.fullmatch(self.word)
        # What fits; what the values are, for people; what becomes of them, and why.
        table: tuple[tuple[Any, str, str, str], ...] = (
            (not known, "empty", UNUSED, "without a value"),
            (nested, "bytes or lists", UNUSED, _NESTED),
            (comma, "", UNUSED, _COMMAS),
            (self.is_group, "", IDENTIFIER, f"{different:,} values repeat"),
            (is_id, "", IDENTIFIER, "a different value in every row"),
            (not self.words, "whole numbers" if self.whole else "numbers", NUMBER, ""),
            (self.is_date, "dates", DATE, _DATES),
            (not worded, "numbers and words", UNUSED if self.values > CODES else "", _MIXED),
            (sentences, "sentences", "", ""),
            (few and not long, "", CATEGORY, ""),
            (True, "words", TEXT, _MANY),
        )
        self.kind = next(kind for fits, kind, _, _ in table if fits and kind)
        self.role = next((role, why) for fits, _, role, why in table if fits and role)

    def _is_repeated(self, *, holes: bool, worded: bool) -> bool:
        """Return whether values name persons or the like that have several rows each."""
        different, name = len(self.hashes), self.plain
        share = self.known / max(1, different)
        if share <= 1 or different < 5:  # noqa: PLR2004
            return False
        if _PERSON.fullmatch(name):
            return different > CODES or share <= CODES or bool(_PERSON_ALONE.fullmatch(name))
        if different <= CLASSES or share > CLASSES or _SITES.fullmatch(name):
            return False
        # By its values: numbers that count blocks of rows, or codes such as S-001.
        whole = self.whole and not self.words and self.blocks == different
        counts = (self.low in (0, 1) and not holes) or (self.known == self.rows and share % 1 == 0)
        counts = whole and counts and (name == "group" or not _DESCRIBES.search(name))
        coded = worded and all(map(_CODED.fullmatch, self.examples))
        return bool(_NUMBERED.fullmatch(name)) or ((counts or coded) and share >= 1.2)  # noqa: PLR2004


def _text(value: Any) -> str:
    return str(value) if isinstance(value, int | str) else f"{value:.10g}"


class Description:
    """The columns of a file and their roles; ``reading`` has what was proposed beside the keys.

    ``roles`` says what each column is for, and why. ``propose`` has site and group, if looked for.
    """

    def __init__(
        self, columns: Mapping[str, Column], reading: Reading, propose: Collection[str] = ()
    ) -> None:
        self.columns, self.reading, self._propose = columns, reading, propose
        free = [one for name, one in columns.items() if name not in reading.keyed]
        if not reading.target:
            classes = [one for one in free if one.is_class]
            fits = [one for one in classes if _TARGETS.fullmatch(one.plain)]
            events = [one for one in classes if one.values <= 4 and _EVENTS.search(one.plain)]  # noqa: PLR2004
            if len(fits) == 1 and {*events} <= {*fits}:
                self.reading = self.reading.changed(target=fits[0].name)
        if "site" in propose and not reading.site:
            sites = [one for one in free if one.is_discrete and _SITES.fullmatch(one.plain)]
            if len(sites) == 1 and 2 <= sites[0].values <= sites[0].known // 5:
                self.reading = self.reading.changed(site=(sites[0].name,))
        if "group" in propose and not reading.group:
            self.reading = self.reading.changed(group=self._groups())
        self.roles = {name: one.role for name, one in columns.items()}
        for key, names in reversed(self.reading.named.items()):  # the first key counts
            what, why = _ROLES.get(key, ("", ""))
            for name in columns.keys() & names if what else ():
                self.roles[name] = what, why.format(many=columns[name].many)
        if not self.features and not propose:  # better than nothing
            for name in self.of(IDENTIFIER):
                if not columns[name].words and not columns[name].is_group:
                    self.roles[name] = (NUMBER, "there is no other column")
        of_preset, self.categories = dict(reading.categories), dict[str, tuple[str, ...]]()
        for name in self.of(CATEGORY):
            if (values := of_preset.get(name) or columns[name].counts) is None:
                raise UserError(f"categories: '{name}' has over {COUNTED:,} values: set ignore")
            self.categories[name] = (*values,)

    def _groups(self) -> tuple[str, ...]:
        """Return the column of the largest groups that may be, or numbers that sites give anew."""
        reading, keyed = self.reading, self.reading.keyed
        free = [one for name, one in self.columns.items() if name not in keyed]
        groups = [one for one in free if one.is_group and not _SERIAL.match(one.plain)]
        if groups:
            return (min(groups, key=lambda one: one.values).name,)
        sites = math.prod(self.columns[name].values for name in reading.site)
        persons = [one for one in free if reading.site and _PERSON.fullmatch(one.plain)]
        likely = [one.name for one in persons if 5 <= one.values <= one.known / sites]  # noqa: PLR2004
        return (*reading.site, likely[0]) if likely else ()

    def of(self, *whats: str) -> list[str]:
        """Return the columns of these roles, in their order."""
        return [name for name, (what, _) in self.roles.items() if what in whats]

    @property
    def features(self) -> list[str]:
        """Return the columns that models see."""
        return self.of(NUMBER, CATEGORY)

    def need_target(self) -> None:
        """Raise Unclear where no key and no name says which column is the class."""
        if self.reading.target:
            return
        columns, names = [*self.columns.values()], listed([*self.columns])
        if len(columns) < 2:  # noqa: PLR2004
            raise UserError(f"target: there is one column, {names}: give separator=SIGN")
        may = [one for one in columns if one.name not in self.reading.taken and one.is_class]
        if not may:
            words = [one for one in columns if one.words and one.is_unique and not one.is_date]
            advice = f"give target=COLUMN, one of {names}"
            if len(words) == 1 and sum(not one.words for one in columns) == len(columns) - 1 > 1:
                rows = f"each row seems to be a measurement ('{words[0].name}' names them)"
                advice = f"{rows} and each column an example: transpose the file, and add the class"
            elif last := next((one for one in columns[::-1] if one.low < one.high), None):
                middle = cut_labels((last.low + last.high) / 2)
                advice += f"; divide a measurement with labels, such as target={last.name} {middle}"
            raise UserError(f"target: no column looks like a class: {advice}")

        def unlikely(one: Column) -> tuple[bool, bool, bool]:
            few = one.values <= CLASSES and (bool(one.words) or one.values == 2)  # noqa: PLR2004
            other = _DESCRIBES.search(one.plain) is not None or site_like(one.name) or one.is_group
            return other, not _TARGETS.fullmatch(one.plain), not (few or one is columns[-1])

        may = sorted(([one for one in may if one.values <= CLASSES] or may)[::-1], key=unlikely)
        each = listed([f"{one.name} ({one.many})" for one in may])
        text = f"which column is the class? target=COLUMN, such as {each}"
        raise Unclear("target", text, [one.name for one in may])

    def gap_words(self) -> list[str]:
        """Return the words that mean a gap: the only ones of their columns, among numbers."""
        mixed = (self.columns[name] for name, (_, why) in self.roles.items() if why == _MIXED)
        return [c.word for c in mixed if c.counts and c.words == c.counts[c.word.strip()]]

    def likely_sites(self) -> list[str]:
        """Return columns that may be the site, by a word of their names, where none is given."""
        if "site" not in self._propose or self.reading.site:
            return []
        columns = [self.columns[name] for name in self.of(CATEGORY, NUMBER, IDENTIFIER)]
        likely = [one for one in columns if site_like(one.name) and one.is_discrete]
        return [one.name for one in likely if 2 <= one.values <= one.known // 10]  # noqa: PLR2004

    def unusable(self) -> list[str]:
        """Return lines about all columns that cannot be features, with what to do."""
        lines = []
        for why, advice in _ADVICE.items():
            if columns := [c for name, c in self.columns.items() if self.roles[name][1] == why]:
                names = ",".join(one.name for one in columns)
                where = "; {0} at {1}" if why == _MIXED else ""
                each = [f"{c.name} ({c.many}{where.format(shown(c.word), c.at)})" for c in columns]
                hint = advice.format(names=names, first=columns[0].name)
                lines.append(f"{why}: {listed(each)}: ignore={names} leaves them out; {hint}")
        return lines

    def line(self) -> str:
        """Return one line: the features, those that are categories, and those that are left out."""
        numbers, ids = self.of(NUMBER), self.of(IDENTIFIER)
        each = [
            f"{name}: {' '.join(values[:4])}" + f" ... {len(values)} values" * (len(values) > 4)  # noqa: PLR2004
            for name, values in self.categories.items()
        ]
        empty = [name for name in self.of(UNUSED) if not self.columns[name].known]
        alike = [n for n in numbers if self.columns[n].is_unique and self.columns[n].rows > FEW]
        lists = {
            f"{len(numbers)} column(s) of numbers": numbers,
            f"{len(each)} column(s) of categories": each,
            "left out, identifiers (`categories` or `numbers` keeps one)": ids,
            "left out, without a value": empty,
            "numbers that differ in every row (`ignore` drops one)": alike,
        }
        return "; ".join(f"{what}: {listed(names, 6)}" for what, names in lists.items() if names)

    def is_recording(self) -> bool:
        """Return whether most features change little from row to row, as steps of time do."""
        numbers = [self.columns[name] for name in self.of(NUMBER)]
        return 2 * sum(one.is_smooth for one in numbers) > len(numbers) > 0

    def later(self) -> list[str]:
        """Return features that by their names are known only after the class."""
        target = snake(self.reading.target)
        event = _EVENTS.search(target) is not None
        about = re.sub(r"_?(status|stat|event|cens|ind)$", "", target)  # pgtime beside pgstat
        times = {f"{about}time", f"{about}_time", f"time_to_{about}", "survtime"}
        times |= {f"{name}{n}" for n in re.findall(r"\d$", target) for name in ("t", "time")}
        return [
            name for name in self.features for plain in [snake(name)]
            if _LATER.search(plain) or plain in times or (event and _TIMES.fullmatch(plain))
        ]  # fmt: skip


def describe(file: RowFile, reading: Reading, propose: Collection[str] = ()) -> Description:
    """Return what the columns of a file hold and are for, from all rows."""
    present(file, reading)
    columns = {name: Column(name) for name in named_columns(file, reading)}
    for part, frame in file.chunks([*columns.keys() & file.written], [*columns]):
        for name, column in columns.items():
            column.add(frame[name], part)
    for column in columns.values():
        column.decide()
    return Description(columns, reading, propose)


def described(
    file: RowFile, reading: Reading, needed: str = "numbers"
) -> tuple[Reading, Description | None]:
    """Return the reading with target and text, and what is known of the columns, or raise.

    No row is read where keys say all: the target, and the ``needed`` columns.
    """
    if reading.declared and not reading.target:
        raise UserError("target: '' is not allowed on a network: name the column of the class")
    declared = reading.declared and needed == "numbers"
    if reading.target and (declared or getattr(reading, needed)):
        return reading, None
    description = describe(file, reading)
    description.need_target()
    reading = description.reading
    if needed == "text" and not reading.text:
        columns = description.columns.values()
        if not (texts := [one for one in columns if one.words and one.name != reading.target]):
            raise UserError(f"text: {file.where} has no column of texts")
        reading = reading.changed(text=max(texts, key=lambda one: one.length).name)
    return reading, description


def named_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return all columns but those that number the rows, unless a key names them."""
    keys = reading.keyed - {*reading.ignore}
    return [name for name in file.columns if name in keys or name not in file.index]


def leaks(names: Sequence[str], x: npt.NDArray[Any], labels: Indices, target: str) -> Iterator[str]:
    """Yield a line for each column of ``x`` (n, f) that alone gives the class on held-out rows.

    Two rules are fitted on one half of the rows and tested on the other: a tree of one cut a class,
    and a table of the commonest class of each value.
    """
    from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415  (a second at import)

    rows = min(2 * _SAMPLE, _CELLS // max(1, len(names)))
    fit, test = np.array_split(np.random.default_rng(0).permutation(len(labels))[:rows], 2)
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
            alone = f"column '{name}' alone gives '{target}' in {1 - wrong / len(test):.1%} of"
            out = f"if it is known only after '{target}', leave it out with ignore={name}"
            yield f"{alone} held-out rows: {out}"
    ill = labels == 1  # of a class that is one column of several, as 0 and 1
    flags = np.isin(x, (0, 1)).all(axis=0) & x.any(axis=0) & ~x[ill].any(axis=0)
    if labels.max() == 1 < flags.sum() and (x[:, flags].sum(axis=1) == ~ill).all():
        beside = [name for name, flag in zip(names, flags, strict=True) if flag]
        several = f"columns {listed(beside)} and '{target}' are one class in several columns"
        yield f"{several}: leave them out with ignore={','.join(beside)}"

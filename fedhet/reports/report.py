"""``fedhet report``: runs become one page that needs nothing else, tables and figures.

The same runs give the same bytes: nothing here knows the date, the machine or a path.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Environment

from fedhet.data.inputs import noun
from fedhet.errors import UserError
from fedhet.files import plain_path
from fedhet.reports import figures, model_figures, tables
from fedhet.reports.comparison import BASELINE, Comparison
from fedhet.reports.figures import Picture
from fedhet.reports.frame import Runs
from fedhet.reports.reading import numbered, pack, read_runs, sweep_indexes
from fedhet.reports.settings import method_name
from fedhet.reports.tables import Table, escaped, to_csv, to_latex, to_markdown

FORMATS = ("md", "csv", "latex", "svg", "parquet")
USUAL = FORMATS[:-1]
PAGE_LIMIT = 2_000_000  # bytes of report.html; figures beyond it are linked
_MADE = (("tables", {".csv", ".tex"}), ("figures", {".svg"}))
_BESIDE = ("tables.md", "runs.csv", "runs.parquet")


@dataclass(frozen=True)
class Section:
    """A part of the page and of ``tables.md``: one setting, or what is said of all."""

    name: str
    title: str
    note: str = ""
    commands: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Report:
    """Everything that is written down: what all settings say, then the details of each."""

    def __init__(self, runs: Runs, title: str, notes: Sequence[str], *, models: bool, trust: bool):
        self.runs, self.title = runs, title
        comparisons = runs.comparisons
        nouns = {noun(str(one.setting.keys["dataset"])) for one in comparisons}
        what = nouns.pop() if len(nouns) == 1 else "examples"
        self.lead = " ".join(
            [f"Every client's own model on its own test {what}, right after its local training, "
             "averaged over all clients.", *(f"{note}." for note in notes)]
        )  # fmt: skip
        self.whole = _whole(comparisons)
        self.sections = [_section(one) for one in comparisons]
        drawn = [model_figures.t_sne(runs.placed, wanted=models, trust=trust)]
        self.sections.append(Section("models", "Representations", figures=drawn))
        self.sections.append(_about(runs))

    @cached_property
    def tables(self) -> list[Table]:
        """Of all sections."""
        return [table for one in (self.whole, *self.sections) for table in one.tables]

    @cached_property
    def figures(self) -> list[Picture]:
        """Of all sections."""
        return [figure for one in (self.whole, *self.sections) for figure in one.figures]

    @property
    def absent(self) -> dict[str, str]:
        """Figures that could not be drawn, and why."""
        return {figure.title: figure.absent for figure in self.figures if figure.absent}


def report(  # noqa: PLR0913
    places: Sequence[Path],
    out: Path,
    *,
    formats: Collection[str] = USUAL,
    baseline: str = "",
    title: str = "fedhet report",
    records: Path | None = None,
    models: bool = True,
    trust: bool = False,
) -> Report:
    """Read runs, compare them, write the folder ``out``; return what was written.

    Beside the page stands what ``formats`` names (of :data:`FORMATS`). ``records`` asks for packed
    records of the runs in that folder. ``models`` False leaves out the figures that load the
    clients' models; ``trust`` imports code of others that those need. Raises UserError before
    anything is written if there is nothing to report.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise UserError(f"--format: '{unknown[0]}' is not allowed: {', '.join(FORMATS)}")
    _check_apart(out, places)
    runs = Runs(*read_runs(places), baseline)
    notes = [
        f"{index['sweep']}: {index['note']}"
        for place in places for index in sweep_indexes(place) if index["note"]
    ]  # fmt: skip
    made = Report(runs, title, list(dict.fromkeys(notes)), models=models, trust=trust)
    content = _content(made, formats)
    for folder in (out / "tables", out / "figures", *([records] if records else [])):
        with _writing(folder):  # all of them, before anything is written into one
            folder.mkdir(parents=True, exist_ok=True)
    if records is not None:
        with _writing(records):
            for run in numbered([one.run for one in runs.placed]):
                pack(run, records)
    with _writing(out):
        _place(content, out)
    return made


def _whole(comparisons: Sequence[Comparison]) -> Section:
    made = [tables.overview(comparisons)]
    if len(comparisons) > 1 and len(across := tables.across_settings(comparisons)):
        made.append(across)
    drawn = [figures.differences(comparisons), figures.traffic(comparisons)]
    drawn += figures.curves(comparisons)
    return Section("all", "All settings", tables=made, figures=drawn)


def _section(one: Comparison) -> Section:
    setting = one.setting
    return Section(
        setting.slug, setting.title, f"{setting.conditions}.", setting.commands,
        tables.of_setting(one), figures.of_setting(one),
    )  # fmt: skip


def _about(runs: Runs) -> Section:
    frame = runs.frame()
    bases = {one.baseline for one in runs.comparisons if one.baseline}
    environments = [one.run.environment for one in runs.placed]
    missing = Table(
        "left-out", "Runs that are left out", "", [one.name for one in runs.left_out], "run"
    )
    missing.add_text("why it is left out", "first reason", [one.reason for one in runs.left_out])
    missing.about["run"] = "name of the run folder or record"
    facts = {
        "runs": f"{len(frame)}, a line each in runs.csv, with their hashes",
        "baseline": ", ".join(sorted(bases)) or f"none: {method_name(BASELINE)} was not run",
        "fedhet": _some(frame["fedhet_version"]), "torch": _some(frame["torch_version"]),
        "commits": _some(frame["git_commit"]), "processors": _some(frame["processor"]),
        "GPUs": _some(gpu for one in environments for gpu in one.get("cuda") or ["none"]),
    }  # fmt: skip
    return Section(
        "about", "About these figures", tables=[missing] * bool(len(missing)), facts=facts
    )


def _some(values: Any) -> str:
    return "; ".join(sorted({v for v in values if isinstance(v, str) and v})) or "not recorded"


# --- page ----------------------------------------------------------------------------------------


def to_page(made: Report) -> str:
    """The page; figures that would make it larger than :data:`PAGE_LIMIT` are linked."""
    room = (
        PAGE_LIMIT
        - 60_000
        - 200 * sum(len(table) * len(table.shown.columns) for table in made.tables)
    )
    inline: set[str] = set()
    ordered = sorted(
        made.figures, key=lambda figure: (figure not in made.whole.figures, _size(figure))
    )
    for figure in ordered:
        if (room := room - _size(figure)) > 0:
            inline.add(figure.name)
    source = files("fedhet.reports").joinpath("templates/report.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    data = made.runs.frame()[["run", "setting_id", "arm", "block", "accuracy"]]
    rows = json.dumps(json.loads(data.to_json(orient="split", index=False, double_precision=2)))
    return environment.from_string(source).render(
        made=made, inline=inline, data=rows.replace("<", "\\u003c"), verdict=made.runs.verdict
    )


def _size(figure: Picture) -> int:
    return sum(len(svg.encode()) for _, svg in figure.panels)


def to_text(made: Report) -> str:
    """Verdict and tables as Markdown with stable anchors, and which figures are absent and why."""
    parts = [f"- {escaped(sentence)}" for sentence in made.runs.verdict]
    parts += ["", escaped(made.lead), ""]
    for section in (made.whole, *made.sections):
        if not section.tables and not section.facts:
            continue
        parts += [f'## {escaped(section.title)} <a id="{section.name}"></a>', ""]
        parts += [escaped(section.note), ""] if section.note else []
        parts += [*(f"    {one}" for one in section.commands), ""] if section.commands else []
        parts += [to_markdown(table) for table in section.tables]
        parts += [f"- {escaped(f'{name}: {value}')}" for name, value in section.facts.items()]
    if made.absent:
        missing = (f"- {escaped(f'{title}: {why}.')}" for title, why in made.absent.items())
        parts += ["", "Figures that are absent:", "", *missing, ""]
    return "\n".join(parts).rstrip() + "\n"


# --- files ---------------------------------------------------------------------------------------


def _check_apart(out: Path, places: Sequence[Path]) -> None:
    """Raise UserError if the report would lie among what it reads, or in another run's folder."""
    names = ("config.yaml", "*/config.yaml", "sweeps/*/sweep.json")
    holds_runs = any(any(out.glob(name)) for name in names)
    if holds_runs or plain_path(out).resolve() in {plain_path(one).resolve() for one in places}:
        raise UserError(f"--out: '{out}' is a folder of runs: give the report a folder of its own")


def _content(made: Report, formats: Collection[str]) -> dict[str, str | bytes]:
    """The files of a report. Every name is made by :func:`fedhet.reports.settings.file_name`."""
    content: dict[str, str | bytes] = {"report.html": to_page(made)}
    for figure in made.figures:
        if "svg" in formats or f"figures/{figure.name}" in str(content["report.html"]):
            content |= {f"figures/{name}.svg": svg for name, svg in figure.files().items()}
    for table in made.tables:
        if "csv" in formats:
            content[f"tables/{table.name}.csv"] = to_csv(table.data)
        if "latex" in formats:
            content[f"tables/{table.name}.tex"] = to_latex(table)
    frame = made.runs.frame()
    if "md" in formats:
        content["tables.md"] = f"# {escaped(made.title)}\n\n{to_text(made)}"
    if "csv" in formats:
        content["runs.csv"] = to_csv(frame)
    if "parquet" in formats:
        content["runs.parquet"] = _parquet(frame)
    return content


def _parquet(frame: Any) -> bytes:
    for name in frame.columns:  # Parquet has one kind of value a column
        if frame[name].dtype == object and len({type(v) for v in frame[name].dropna()}) > 1:
            frame[name] = frame[name].map(str, na_action="ignore")
    file = BytesIO()
    try:
        frame.to_parquet(file, index=False)
    except ImportError as error:
        raise UserError("--format parquet needs pyarrow: pip install 'fedhet[parquet]'") from error
    return file.getvalue()


def _place(content: Mapping[str, str | bytes], out: Path) -> None:
    """Replace the tables, figures and page of an earlier report, all or, on a full disk, none."""
    earlier = (out / "report.html").exists()
    with TemporaryDirectory(dir=out, prefix=".new-") as new:
        for name, value in content.items():
            path = Path(new, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(value.encode() if isinstance(value, str) else value)
        for name in content:
            Path(new, name).replace(out / name)
    if not earlier:
        return
    for folder, kinds in _MADE:
        for path in (out / folder).iterdir():
            if path.suffix in kinds and f"{folder}/{path.name}" not in content:
                path.unlink()
    for name in _BESIDE:
        if name not in content:
            (out / name).unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(f"'{where}' cannot be written: {error.strerror or error}") from error

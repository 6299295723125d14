"""What a report says: runs read, compared and put into sections; nothing is written here."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhet.config import method_name
from fedhet.data.inputs import noun
from fedhet.errors import UserError
from fedhet.reports import curves, figures, overview, tables
from fedhet.reports.comparison import BASELINE, Comparison, compare, final
from fedhet.reports.drawing import Colours, Picture
from fedhet.reports.markup import Cell, Column, Table, number, text
from fedhet.reports.model_figures import of_models
from fedhet.reports.reading import read_runs, sweep_notes
from fedhet.reports.runs import LeftOut, Run
from fedhet.reports.settings import arrange


@dataclass(frozen=True)
class Section:
    """A part of the page and of ``tables.md``."""

    name: str
    title: str
    note: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()
    facts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is written down."""

    title: str
    lead: str
    sections: Sequence[Section]
    data: Mapping[str, Any]
    runs: Sequence[Run] = field(repr=False)
    left_out: Sequence[LeftOut] = ()
    refused: Sequence[str] = ()  # code that runs name and that was not imported

    def tables(self) -> list[Table]:
        """Of all sections."""
        return [table for section in self.sections for table in section.tables]

    def figures(self) -> list[Picture]:
        """Of all sections."""
        return [figure for section in self.sections for figure in section.figures]


def build(
    places: Sequence[Path], *, baseline: str = "", title: str = "fedhet report",
    models: bool = True,
) -> Report:  # fmt: skip
    """Read and compare; draws everything and writes nothing."""
    runs, left_out = read_runs(places)
    if not runs:
        first = "; ".join(f"{one.name}: {one.reason}" for one in left_out[:3])
        raise UserError(f"there is no finished run to report: {first}")
    settings = arrange(runs, left_out)
    comparisons = compare(settings, method_name(baseline) if baseline else "")
    used = [run for one in comparisons for arm in one.arms for run in arm.ordered()]
    notes = "".join(f" {note}." for note in sweep_notes(places))
    colours = {name: i for i, name in enumerate(overview.arm_names(comparisons))}
    methods = {arm.method for one in comparisons for arm in one.arms}
    sections = [_section(one, colours) for one in comparisons]
    sections.insert(0 if len(comparisons) > 1 else 1, _overview(comparisons, colours))
    sections.append(_modelled(comparisons, models=models))
    sections.append(_about(used, left_out, _baselines(comparisons)))
    lead = (
        f"{_count(used, 'run')} of {_count(methods, 'method')} in "
        f"{_count(comparisons, 'setting')}. "
        f"Accuracy is every client's own model on its own test {_noun(comparisons)}, right after "
        "its local "
        f"training, averaged over all clients.{notes}"
    )
    kept = [section for section in sections if _full(section)]
    return Report(title, lead, kept, _data(comparisons), used, left_out)


def _noun(comparisons: Sequence[Comparison]) -> str:
    """Images where all data sets are of images."""
    found = {noun(str(one.setting.keys["dataset"])) for one in comparisons}
    return "images" if found == {"images"} else "examples"


def _count(things: Collection[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _full(section: Section) -> bool:
    return bool(section.tables or section.figures or section.facts)


def _overview(comparisons: Sequence[Comparison], colours: Colours) -> Section:
    drawn = [*curves.over_settings(comparisons, colours), curves.privacy(comparisons, colours)]
    return Section("all", "All settings", "", overview.tables(comparisons), drawn)


def _section(one: Comparison, colours: Colours) -> Section:
    drawn = [*figures.of_setting(one, colours), *curves.over_own_keys(one, colours)]
    return Section(one.setting.slug, one.setting.title, "", tables.of_setting(one), drawn)


def _modelled(comparisons: Sequence[Comparison], *, models: bool) -> Section:
    return Section(
        "models",
        f"Representations and {_noun(comparisons)}",
        "",
        (),
        of_models(comparisons, wanted=models),
    )


def _about(runs: Sequence[Run], left_out: Sequence[LeftOut], baseline: str) -> Section:
    columns = [
        Column("run", "name of the run folder or record", False),
        Column("why it is left out", "the first reason", False),
    ]
    rows = [[text(one.name), text(one.reason)] for one in left_out]
    missing = [Table("left-out", "Runs that are left out", "", columns, rows)] if rows else []
    return Section("about", "About these figures", "", [_runs(runs), *missing], (), [
        ("baseline", baseline),
        ("fedhet", _versions(runs, "fedhet")),
        ("torch", _versions(runs, "torch")),
        ("commits", _some(run.environment.get("git_commit") for run in runs)),
        ("processors", _some(run.environment.get("processor") for run in runs)),
        ("GPUs", _some(gpu for run in runs for gpu in run.environment.get("cuda") or ["none"])),
    ])  # fmt: skip


def _baselines(comparisons: Sequence[Comparison]) -> str:
    names = {one.baseline.name for one in comparisons if one.baseline is not None}
    return ", ".join(sorted(names)) or f"none: {BASELINE} was not run"


def _versions(runs: Sequence[Run], package: str) -> str:
    return _some((run.environment.get("versions") or {}).get(package) for run in runs)


def _some(values: Any) -> str:
    return "; ".join(sorted({str(value) for value in values if value})) or "not recorded"


def _runs(runs: Sequence[Run]) -> Table:
    columns = [
        Column("run", "name of the run folder or record", False),
        Column("seed", "of everything, and of the partition where it has no seed of its own"),
        Column("accuracy", "mean over all clients after the last round, percent"),
        Column("hours", "wall time of the rounds, on whatever machine it was"),
        Column("failures", "replies that were left out"),
        Column("run_sha256", "last link of the hash chain", False),
    ]
    rows = [
        [
            text(run.name), Cell(str(run.config.get("seed", 0)), int(run.config.get("seed", 0))),
            number(final(run)),
            number((run.summary.get("wall_seconds") or 0) / 3600),
            number(float(len(run.summary.get("failures") or [])), 0),
            text(str(run.summary.get("run_sha256"))[:16]),
        ]
        for run in runs
    ]  # fmt: skip
    return Table("runs", "Runs", "", columns, rows)


def _data(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What the page embeds for programs: every setting's runs and their accuracies by round."""
    return {
        "settings": [
            {
                "name": one.setting.slug,
                "title": one.setting.title,
                "keys": dict(one.setting.keys),
                "arms": [
                    {
                        "name": arm.name,
                        "method": arm.method,
                        "keys": dict(arm.keys),
                        "blocks": [
                            {
                                "partition-seed": block[0],
                                "seed": block[1],
                                "rounds": [r["round"] for r in run.evaluated],
                                "accuracy": [
                                    round(r["test_accuracy_mean"], 2) for r in run.evaluated
                                ],
                                "clients": {s.client: _points(s.test) for s in run.clients},
                            }
                            for block, run in zip(arm.blocks, arm.ordered(), strict=True)
                        ],
                    }
                    for arm in one.arms
                ],
            }
            for one in comparisons
        ]
    }


def _points(value: float | None) -> float | None:
    return None if value is None else round(value, 2)

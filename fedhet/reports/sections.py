"""What a report says: runs read, compared and put into sections; nothing is written here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhet.config.load import method_name
from fedhet.data.inputs import noun
from fedhet.errors import UserError
from fedhet.reports import curves, figures, overview, panels, tables
from fedhet.reports.comparison import BASELINE, Comparison, compare
from fedhet.reports.drawing import Colours, Picture
from fedhet.reports.markup import Column, Table, text
from fedhet.reports.model_gate import modelled
from fedhet.reports.reading import read_runs, sweep_notes
from fedhet.reports.runs import LeftOut, Run
from fedhet.reports.settings import arrange
from fedhet.reports.titles import name_all
from fedhet.reports.verdict import sentences


@dataclass(frozen=True)
class Section:
    """A part of the page and of ``tables.md``."""

    name: str
    title: str
    note: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()
    facts: Sequence[tuple[str, str]] = ()
    commands: Sequence[str] = ()

    def full(self) -> bool:
        """Whether anything is in it."""
        drawn = any(figure.panels for figure in self.figures)
        return bool(self.tables or drawn or self.facts)


@dataclass(frozen=True)
class Report:
    """Everything that is written down: what all settings say, then the details of each."""

    title: str
    lead: str
    verdict: Sequence[str]
    whole: Section
    sections: Sequence[Section]
    data: Mapping[str, Any]
    comparisons: Sequence[Comparison] = field(repr=False)
    runs: Sequence[Run] = field(repr=False)
    left_out: Sequence[LeftOut] = ()
    refused: Sequence[str] = ()  # code that runs name and that was not imported

    def tables(self) -> list[Table]:
        """Of all sections."""
        return [table for section in (self.whole, *self.sections) for table in section.tables]

    def figures(self) -> list[Picture]:
        """Of all sections."""
        return [figure for section in (self.whole, *self.sections) for figure in section.figures]


def compared(
    places: Sequence[Path], baseline: str = ""
) -> tuple[list[Comparison], list[Run], list[LeftOut]]:
    """Settings compared and named, the runs they are of, and what was left out, with reasons."""
    runs, left_out = read_runs(places)
    if not runs:
        first = "; ".join(f"{one.name}: {one.reason}" for one in left_out[:3])
        raise UserError(f"there is no finished run to report: {first}")
    settings = arrange(runs, left_out)
    name_all(settings)
    comparisons = compare(settings, method_name(baseline) if baseline else "")
    used = {  # not by name: runs of several folders may share one
        id(run)
        for one in comparisons
        for setting in (one.setting, *one.setting.variants)
        for arm in setting.arms
        for run in arm.ordered()
    }
    return comparisons, [run for run in runs if id(run) in used], left_out


def build(
    places: Sequence[Path], *, baseline: str = "", title: str = "fedhet report",
    models: bool = True,
) -> Report:  # fmt: skip
    """Read and compare; draws everything and writes nothing."""
    comparisons, used, left_out = compared(places, baseline)
    notes = "".join(f" {note}." for note in sweep_notes(places))
    colours = {name: i for i, name in enumerate(overview.arm_names(comparisons))}
    sections = [_section(one, colours) for one in comparisons]
    sections.append(_modelled(comparisons, models=models))
    sections.append(_about(used, left_out, _baselines(comparisons)))
    lead = (
        f"Accuracy is every client's own model on its own test {_noun(comparisons)}, right after "
        f"its local training, averaged over all clients.{notes}"
    )
    kept = [section for section in sections if section.full() or section.figures]
    return Report(
        title, lead, sentences(comparisons, len(used)), _whole(comparisons, colours), kept,
        _data(comparisons), comparisons, used, left_out,
    )  # fmt: skip


def _noun(comparisons: Sequence[Comparison]) -> str:
    """Images where all data sets are of images."""
    found = {noun(str(one.setting.keys["dataset"])) for one in comparisons}
    return "images" if found == {"images"} else "examples"


def _whole(comparisons: Sequence[Comparison], colours: Colours) -> Section:
    drawn = [panels.differences(comparisons), panels.traffic(comparisons)]
    drawn += [*curves.over_settings(comparisons, colours), *curves.privacy(comparisons, colours)]
    return Section("all", "All settings", "", overview.tables(comparisons), drawn)


def _section(one: Comparison, colours: Colours) -> Section:
    drawn = [*figures.of_setting(one, colours), *curves.over_own_keys(one, colours)]
    made = [*tables.of_setting(one), overview.precision(one)]
    return Section(
        one.setting.slug, one.setting.title, f"{one.setting.conditions}.",
        [table for table in made if table.rows], drawn, (), one.setting.commands,
    )  # fmt: skip


def _modelled(comparisons: Sequence[Comparison], *, models: bool) -> Section:
    title = f"Representations and {_noun(comparisons)}"
    return Section("models", title, figures=modelled(comparisons, wanted=models))


def _about(runs: Sequence[Run], left_out: Sequence[LeftOut], baseline: str) -> Section:
    columns = [
        Column("run", "name of the run folder or record", False),
        Column("why it is left out", "the first reason", False),
    ]
    rows = [[text(one.name), text(one.reason)] for one in left_out]
    missing = [Table("left-out", "Runs that are left out", "", columns, rows)] if rows else []
    return Section("about", "About these figures", "", missing, (), [
        ("runs", f"{len(runs)}, a line each in runs.csv, with their hashes"),
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

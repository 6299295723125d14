"""``fedhet report``: runs as DataFrames, and one self-contained page, tables and figures of them.

``fedhet.load_sweep(DIR)`` reads runs as the command does: a line a run, a line a round, a line a
client. The columns are described in docs/reference/report.md.

The same runs give the same bytes: no output has a date, a machine's name or a path.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader

from fedhet.config.registry import method_name as known_as
from fedhet.config.schema import MAJORITY, METRICS
from fedhet.errors import UserError
from fedhet.files import plain_path
from fedhet.records.summary import participants, participants_mean
from fedhet.reports import figures, tables
from fedhet.reports.comparison import PARTICIPANTS, Comparison, compare, sentences
from fedhet.reports.figures import Picture
from fedhet.reports.reading import LeftOut, RunRecord, arrange, pack, plain, read_runs
from fedhet.reports.tables import ReportTable, escaped, to_csv, to_latex, to_markdown

_MADE = ("tables/*.csv", "tables/*.tex", "figures/*.svg", "tables.md", "runs.csv")
_PLACE = ["number", "run", "setting_id", "variant", "method", "block", "compared"]


class Runs:
    """Finished runs, compared as ``fedhet report`` does."""

    def __init__(
        self, runs: Sequence[RunRecord], left_out: Iterable[LeftOut] = (), baseline: str = ""
    ):
        """``baseline``: the method that others are compared with; raises UserError without it."""
        self.left_out = list(left_out)
        self.placed = arrange(runs, self.left_out)
        if not self.placed:
            first = "; ".join(f"{one.name}: {one.reason}" for one in self.left_out[:3])
            raise UserError(f"no run is finished, so there is nothing to report: {first}")
        self._runs = pd.DataFrame([_row(number, run) for number, run in enumerate(self.placed)])
        tables = [run.rounds for run in self.placed], [run.clients for run in self.placed]
        self._rounds, self._clients = (
            self._runs[_PLACE].merge(pd.concat(frames, keys=self._runs["number"], names=["number"])
                                     .reset_index("number"))
            for frames in tables
        )  # fmt: skip
        frames = self._runs, self._rounds, self._clients
        self.comparisons = compare(self.placed, *frames, known_as(baseline) if baseline else "")
        for one in self.comparisons:
            places = one.runs.set_index(["variant", "block"]).index
            gaps = one.gaps(one.baseline).groupby("block").mean().unstack()
            self._runs.loc[one.runs.index, "difference"] = gaps.reindex(places).to_numpy()

    @cached_property
    def verdict(self) -> list[str]:
        """The sentences that a report opens with."""
        return sentences(self.comparisons)

    def frame(self, what: str = "runs") -> pd.DataFrame:
        """Return a frame with a line a run (``runs``), a round (``rounds``) or a client.

        That of runs has a column a figure and, in snake case, a column a key of the configuration.
        """
        frames = {"runs": self._runs, "rounds": self._rounds, "clients": self._clients}
        if what not in frames:
            raise UserError(f"frame: '{what}' is not allowed: runs, rounds, clients")
        return frames[what].drop(columns="number").reset_index(drop=True)


def load_sweep(
    *places: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], baseline: str = ""
) -> Runs:
    """Read and compare finished runs of sweeps, run folders or packed records.

    ``places`` are their folders or files, or lists of them, ``baseline`` the method that others are
    compared with, Standalone where it was run. Raises UserError if nothing finished is there.
    """
    listed = ([one] if isinstance(one, str | os.PathLike) else one for one in places)
    return Runs(*read_runs(Path(one) for ones in listed for one in ones), baseline)


def _row(number: int, run: RunRecord) -> dict[str, Any]:
    """Return the figures of a run, then those keys of its configuration that have other names."""
    rounds, clients, config = run.rounds, run.clients, run.config
    last = rounds[rounds["test_accuracy_mean"].notna()].iloc[-1]
    replies = max(1.0, rounds["replied"].sum())
    versions, privacy = run.environment.get("versions") or {}, run.summary.get("privacy") or {}
    metric, known = config.get("metric", "accuracy"), int(run.summary.get("clients") or 0)
    means = rounds.get(participants_mean(metric), rounds["round"] * np.nan)
    trained = participants(
        zip(rounds["round"], rounds["replied"], means, strict=True),
        METRICS.get(metric, METRICS["accuracy"]), int(config.get("evaluate-every", 1)),
    )  # fmt: skip
    sampled = clients.loc[clients["generation"] > 0, "test_accuracy"]
    never = (clients["generation"] == 0).sum()
    if not config.get("evaluate-all", True):
        never += max(0, known - len(clients))
    row = {
        "number": number, "method": run.method, "run": run.name, "setting": run.setting.title,
        "setting_id": run.setting.slug, "variant": run.variant,
        "block": f"{run.block[0]}/{run.block[1]}", "compared": run.compared,
        **{name: last.get(f"test_{name}_mean", np.nan) for name in (*METRICS, MAJORITY)},
        "accuracy_best_validation": run.summary.get("best_validation_test_accuracy_mean"),
        "best_validation": run.summary.get(f"best_validation_test_{metric}_mean"),
        **{name: trained.get(name.removeprefix("participants_"), np.nan) for name in PARTICIPANTS},
        "accuracy_sampled": sampled.mean(), "accuracy_std": sampled.std(ddof=0),
        "accuracy_p10": sampled.quantile(0.1), "accuracy_worst": sampled.min(),
        "difference": np.nan, "never_sampled": np.nan if run.means_alone else never,
        "federation": known or len(clients),
        "floats_up": rounds["uplink_floats"].sum() / replies,
        "floats_down": rounds["downlink_floats"].sum() / replies,
        "gflops": rounds["train_flops"].sum(min_count=1) / replies / 1e9,
        "epsilon": privacy.get("epsilon_spent_max") or np.nan, "noise_of": privacy.get("noise_of"),
        "wall_seconds": run.summary.get("wall_seconds"),
        "failures": len(run.summary.get("failures") or []),
        "run_sha256": run.summary.get("run_sha256"), "fedhet_version": versions.get("fedhet"),
        "torch_version": versions.get("torch"), "git_commit": run.environment.get("git_commit"),
        "processor": run.environment.get("processor"),
    }  # fmt: skip
    own_metrics = config.get("metrics") or ()  # functions of the user's
    row |= {f"test_{name}": last.get(f"test_{name}_mean", np.nan) for name in own_metrics}
    cells = {
        key.replace("-", "_"): plain(value) if isinstance(value, list | dict) else value
        for key, value in {"metric": "accuracy", "precision": run.precision, **config}.items()
    }
    return row | {key: value for key, value in cells.items() if key not in row}


Section = Mapping[str, Any]  # name, title, note, command, tables, figures, facts: what it has


class Report:
    """The content of a report: all settings together, then the details of each.

    A section is a part of the page and of ``tables.md``.
    """

    def __init__(self, runs: Runs, title: str, *, models: bool, trust: bool):
        self.runs, self.title = runs, title
        comparisons = runs.comparisons
        self.lead = (
            "Every client's own model on its own test examples, right after its local training, "
            "averaged over all clients."
        )
        self.whole: Section = {
            "name": "all", "title": "All settings", "tables": [tables.overview(comparisons)],
            "figures": [figures.differences(comparisons)],
        }  # fmt: skip
        drawn = figures.t_sne(runs.placed, wanted=models, trust=trust)
        models_: Section = {"name": "models", "title": "Representations", "figures": [drawn]}
        self.sections = [*map(_section, comparisons), models_, _about(runs)]
        every = self.whole, *self.sections
        self.tables: list[ReportTable] = [one for part in every for one in part.get("tables", ())]
        self.figures: list[Picture] = [one for part in every for one in part.get("figures", ())]
        self.absent = {figure.title: figure.absent for figure in self.figures if figure.absent}


def report(  # noqa: PLR0913
    places: Sequence[Path], out: Path, *, baseline: str = "", title: str = "fedhet report",
    records: Path | None = None, models: bool = True, trust: bool = False,
) -> Report:  # fmt: skip
    """Read runs, compare them, write the folder ``out``; return what was written.

    ``records`` asks for packed records of the runs in that folder. ``models`` False leaves out the
    figures that load the clients' models; ``trust`` imports code of others that those need. Raise
    UserError before anything is written if there is nothing to report.
    """
    _check_apart(out, places)
    runs = Runs(*read_runs(places), baseline)
    result = Report(runs, title, models=models, trust=trust)
    try:
        _place(_content(result), out)
        if records is not None:
            records.mkdir(parents=True, exist_ok=True)
            pack(runs.placed, records)
    except OSError as error:
        where = error.filename or out
        raise UserError(f"'{where}' cannot be written: {error.strerror or error}") from error
    return result


def _section(one: Comparison) -> Section:
    setting, first = one.setting, one.runs.iloc[0]
    return {
        "name": setting.slug, "title": setting.title, "note": f"{setting.conditions}.",
        "command": setting.command(first["method"], first["block"]),
        "tables": tables.of_setting(one), "figures": figures.of_setting(one),
    }  # fmt: skip


def _about(runs: Runs) -> Section:
    frame, environments = runs.frame(), [run.environment for run in runs.placed]
    names, head = [one.name for one in runs.left_out], "run folder or record"
    missing = ReportTable("left-out", "Runs that are left out", "", names, head)
    missing.add_text("why it is left out", "first reason", [one.reason for one in runs.left_out])
    bases = _some((one.baseline for one in runs.comparisons), "none: Standalone was not run")
    facts = {
        "runs": f"{len(frame)}, a line each in runs.csv, with their hashes", "baseline": bases,
        "fedhet": _some(frame["fedhet_version"]), "torch": _some(frame["torch_version"]),
        "commits": _some(frame["git_commit"]), "processors": _some(frame["processor"]),
        "GPUs": _some(gpu for one in environments for gpu in one.get("cuda") or ["none"]),
    }  # fmt: skip
    about = {"name": "about", "title": "About these figures", "facts": facts}
    return about | {"tables": [missing] * bool(names)}


def _some(values: Iterable[object], otherwise: str = "not recorded") -> str:
    return "; ".join(sorted({v for v in values if isinstance(v, str) and v})) or otherwise


def _check_apart(out: Path, places: Sequence[Path]) -> None:
    """Raise UserError if the report would lie in a folder of runs, or in a file."""
    if out.is_file():
        raise UserError(f"--out: '{out}' is a file: choose a folder for the report")
    names = ("config.yaml", "*/config.yaml", "sweeps/*/sweep.json")
    holds_runs = any(any(out.glob(name)) for name in names)
    if holds_runs or plain_path(out).resolve() in {plain_path(one).resolve() for one in places}:
        raise UserError(f"--out: '{out}' is a folder of runs: choose another folder for the report")


def _content(made: Report) -> dict[str, str]:
    """Return the files of a report, named by kinds of tables and :attr:`Setting.slug`."""
    content = {"runs.csv": to_csv(made.runs.frame())}
    for name in ("report.html", "tables.md"):
        pages = Environment(
            autoescape=name == "report.html", trim_blocks=True, lstrip_blocks=True,
            loader=PackageLoader("fedhet.reports"),
        )  # fmt: skip
        pages.filters |= {"md": escaped, "table": to_markdown}
        content[name] = pages.get_template(name).render(made=made, verdict=made.runs.verdict)
    content["tables.md"] = re.sub(r"\n{3,}", "\n\n", content["tables.md"]).rstrip() + "\n"
    for figure in made.figures:
        content |= {f"figures/{name}.svg": svg for name, svg in figure.files().items()}
    for table in made.tables:
        content[f"tables/{table.name}.csv"] = to_csv(table.data)
        content[f"tables/{table.name}.tex"] = to_latex(table)
    return content


def _place(content: Mapping[str, str], out: Path) -> None:
    """Replace the files of an earlier report, all or, on a full disk, none."""
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    earlier = {
        path for pattern in _MADE for path in out.glob(pattern) if (out / "report.html").exists()
    }
    with TemporaryDirectory(dir=out, prefix=".new-") as new:
        for name, text in content.items():
            path = Path(new, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name in content:
            Path(new, name).replace(out / name)
    for path in earlier - {out / name for name in content}:
        path.unlink()

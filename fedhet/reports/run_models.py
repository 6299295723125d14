"""Run folders that still have their clients' states and examples, opened for figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet.config.load import build_config
from fedhet.config.schema import RunConfig
from fedhet.errors import UserError, VerifyError
from fedhet.reading.structured import read_yaml
from fedhet.records.run_folder import RunFolder
from fedhet.reports.comparison import Comparison
from fedhet.reports.model_gate import NO_STATES
from fedhet.reports.runs import Run
from fedhet.reports.settings import Arm, known_keys
from fedhet.site.local_data import load_partition
from fedhet.site.state import DESCRIPTION, FileStore

Labels = NDArray[np.int64]


class Missing(Exception):
    """Why a figure cannot be drawn."""


@dataclass(frozen=True)
class Opened:
    """A run folder with its states, and the examples that its clients were tested on."""

    arm: Arm
    run: Run
    config: RunConfig
    states: dict[str, Path]


def open_runs(one: Comparison) -> list[Opened]:
    """The arms of a setting that have a run with states, in the setting's order."""
    found = []
    for arm in one.arms:
        for run in arm.ordered():
            opened = _open(arm, run)
            if opened is not None:
                found.append(opened)
                break
    if not found:
        raise Missing(NO_STATES)
    return found


def _open(arm: Arm, run: Run) -> Opened | None:
    if run.folder is None or not (run.folder / "checkpoint" / "run.json").exists():
        return None
    try:
        values = read_yaml(run.folder / "config.yaml")
        config = build_config({k: v for k, v in values.items() if known_keys(k, arm.method)})
        folder = RunFolder(run.folder)
        states = folder.states(config)
    except (UserError, VerifyError, OSError, ValueError, KeyError):
        return None
    there = {path.parent.name: path.parent for path in states.glob(f"*/{DESCRIPTION}")}
    if not any(FileStore(path, sync=False).generations() for path in there.values()):
        return None
    return Opened(arm, run, config, there)


def examples_of(opened: Opened, clients: Sequence[str], each: int) -> list[tuple[Tensor, Labels]]:
    """At most ``each`` test examples (n, ...) and labels of every client, evenly spread."""
    try:
        if opened.run.folder is not None:
            RunFolder(opened.run.folder).check_reach(opened.config)
        dataset, partition = load_partition(opened.config, opened.run.federation)
    except (UserError, VerifyError, OSError) as error:
        raise Missing(f"the data of '{opened.run.name}' cannot be read: {error}") from error
    found = []
    for client in clients:
        if client not in partition.ids:
            raise Missing(f"client '{client}' has its data elsewhere")
        test = partition.clients[partition.ids.index(client)].test
        chosen = test[np.linspace(0, len(test) - 1, min(each, len(test))).round().astype(int)]
        examples = torch.from_numpy(np.ascontiguousarray(dataset.examples[chosen]))
        found.append((examples, dataset.labels[chosen]))
    return found

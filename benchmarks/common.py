"""What the benchmarks share: the line they print, the settings they measure, running fedhet."""

import json
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedhet.config.load import load_config
from fedhet.config.schema import RunConfig
from fedhet.engines.system import script
from fedhet.files import read_jsonl
from fedhet.records.run_folder import processor

SETTINGS: dict[str, list[str]] = {
    "n10": ["clients=10", "fraction=1.0", "local-epochs=1"],
    "n100": ["clients=100", "fraction=0.1", "local-epochs=10"],
}
COMMON = ["method=fedssa", "batch-size=64", "lr=0.01", "momentum=0.9", "evaluate-every=1"]


def settings(name: str, cifar10: str, *more: str) -> list[str]:
    """Return a setting's overrides on CIFAR-10 (image folder) or synthetic data of its size."""
    data = (
        ["dataset=image-folder", f"data-path={cifar10}"] if cifar10 else ["dataset=synthetic:60000"]
    )
    return [*COMMON, *SETTINGS[name], *data, *more]


def config_of(overrides: Sequence[str]) -> RunConfig:
    """Return the configuration that ``fedhet run`` would make of these overrides."""
    return load_config(None, overrides)


def command(out: Path, overrides: Sequence[str], name: str = "run") -> list[str]:
    """``fedhet run`` of an empty preset with these overrides, into the run folder ``out/name``."""
    preset = out / "benchmark.yaml"
    preset.write_text("dataset: digits\n")
    where = ["--out", str(out), "--name", name]
    return [script("fedhet"), "run", str(preset), *overrides, *where]


def run_fedhet(overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Run ``fedhet run`` in a process of its own; returns the lines of ``rounds.jsonl``."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            command(Path(out), overrides), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr}")
        return read_jsonl(Path(out) / "run" / "rounds.jsonl")


def median(values: Sequence[float]) -> float:
    """Return the median, rounded to a tenth of a millisecond."""
    return round(statistics.median(values), 4)


def emit(benchmark: str, **figures: Any) -> None:
    """Print the one line, with what is needed to read it later."""
    where = {
        "cores": os.cpu_count(),
        "processor": processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    print(json.dumps({"benchmark": benchmark, **figures, **where}), flush=True)

"""A table of one's own, `dataset=own_table:load`: rows with NaN for gaps, and whose each one is.

A category is its place in the list of its column.
"""

import csv
from pathlib import Path

import numpy as np

from fedhet import Data

SMOKES = ("never", "once", "daily")


def load(data_path: str) -> Data:
    """Return a CSV `clinic,age,pressure,smokes,outcome`; without a `data-path` an invented one."""
    if not data_path:
        found = invented()
    else:
        with Path(data_path).expanduser().open(newline="") as file:
            found = list(csv.DictReader(file))
    rows = [[float(r["age"] or "nan"), float(r["pressure"] or "nan"), SMOKES.index(r["smokes"])]
            for r in found]  # fmt: skip
    return Data(
        np.array(rows), [int(r["outcome"] == "ill") for r in found], ("well", "ill"),
        clients=[r["clinic"] for r in found], columns=("age", "pressure", "smokes"),
        categories={"smokes": SMOKES},
    )  # fmt: skip


def invented() -> list[dict[str, str]]:
    """240 patients of three clinics; who smokes and is old is ill more often."""
    rng = np.random.default_rng(7)
    ages, smokes = rng.normal(50, 12, 240).round(), rng.integers(3, size=240)
    ill = ages + 12 * smokes + rng.normal(0, 8, 240) > 62
    return [{"clinic": "abc"[k % 3], "age": str(ages[k]), "smokes": SMOKES[smokes[k]],
             "pressure": "" if k % 7 == 0 else "120", "outcome": "ill" if ill[k] else "well"}
            for k in range(240)]  # fmt: skip

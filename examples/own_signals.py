"""Signals of one's own: `dataset=own_signals:load`, as windows of a longer recording.

`load(data_path)` returns a `fedhet.Data`: windows (n, channels, time), labels from 0, class names,
and whose every window is. Means and deviations are not its business: each client standardises by
its own train split.
"""

import numpy as np
from numpy.typing import NDArray

from fedhet import Data

CLASSES, STEPS, WINDOWS = ("idle", "slow", "fast"), 64, 30


def load(data_path: str) -> Data:
    """Two sensors at six machines; `data-path` is not needed, as the recordings are invented."""
    del data_path
    windows, labels, machines = [], [], []
    for machine in range(6):
        rng = np.random.default_rng(machine)
        for label in range(len(CLASSES)):
            recording = record(rng, label, STEPS * WINDOWS)
            windows.append(recording.reshape(2, WINDOWS, STEPS).transpose(1, 0, 2))
            labels += [label] * WINDOWS
            machines += [f"machine-{machine}"] * WINDOWS
    return Data(np.concatenate(windows), labels, CLASSES, clients=machines)


def record(rng: np.random.Generator, label: int, steps: int) -> NDArray[np.float64]:
    """(2, steps): a vibration whose pitch is the class's, with the machine's own loudness."""
    time = np.arange(steps) / STEPS
    turns = np.sin(2 * np.pi * (0, 2, 5)[label] * time + rng.uniform(0, 6))
    noise: NDArray[np.float64] = 0.4 * rng.normal(size=(2, steps))
    return rng.uniform(0.5, 2, (2, 1)) * turns + noise

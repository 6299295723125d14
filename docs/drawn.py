"""Print a record's mean of all clients, and the best of 500 means of ten of them, drawn 100 times.

python docs/drawn.py docs/data/cifar100-n100-t500/standalone.run
"""

import sys
from pathlib import Path

import numpy as np

from fedhet.reports.reading import read_run

last = read_run(Path(sys.argv[1])).clients["test_accuracy"].to_numpy(float)
rng = np.random.default_rng(0)
draws = [
    rng.permuted(np.tile(last, (500, 1)), axis=1)[:, :10].mean(axis=1).max() for _ in range(100)
]
print(f"{last.mean():.1f} {np.mean(draws):.1f}")

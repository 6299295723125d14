"""A run of objects from Python beside the same by name: processor time; memory of all processes.

python -m benchmarks.objects [--repeats 5]

Times are medians of whole programs by turns, of one round of two clients with a small table on the
inline engine. Memory is the largest PSS of a program and its workers together, in a round of 100
clients of 500, and of 10, CIFAR-sized images as tensors; a copy a worker would add 146 MiB each.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import emit, median
from benchmarks.memory import peak

MODULE = """
import sys, numpy as np, torch, fedhet
y = np.arange(600) % 3
x = (np.random.default_rng(0).normal(size=(600, 8)) + y[:, None]).astype("float32")
class Net(torch.nn.Sequential):
    def __init__(self, classes, inputs):
        width = inputs.shape[0]
        super().__init__(torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, classes))
def load(data_path=""):
    return fedhet.Data(x, y, ["0", "1", "2"], clients=["n"] * 300 + ["s"] * 300)
def images(count):
    draws = torch.Generator().manual_seed(0)
    own = lambda *size, top: torch.randint(0, top, size, generator=draws, dtype=torch.uint8)
    return {f"c{k}": (own(count, 3, 32, 32, top=256), own(count, top=10)) for k in range(100)}
sites = {"n": (x[:300], y[:300]), "s": (x[300:], y[300:])}
objects = dict(models=lambda classes, inputs: Net(classes, inputs), data=sites)
names = dict(models="mine:Net", dataset="mine:load", partition="natural")
if __name__ == "__main__":
    keys = eval(sys.argv[2])
    fedhet.run(rounds=1, local_steps=9, out=sys.argv[1], **{"engine": "inline"} | keys)
"""


def program(folder: str, keys: str) -> list[str]:
    """Return a command that runs MODULE, ``mine``, with these keys."""
    Path(folder, "mine.py").write_text(MODULE)
    return [sys.executable, str(Path(folder, "mine.py")), folder, keys]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {"objects": [], "names": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(2 * repeats + 2):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            keys = list(times)[turn % 2]
            subprocess.run(program(folder, keys), check=True, cwd=folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            times[keys] += [spent] * (turn > 1)
        emit("objects", **{f"seconds_{key}": round(median(t), 2) for key, t in times.items()})
        for engine in ("processes", "inline"):
            for count in (500, 10):
                keys = f"dict(models='cnn-5', data=images({count}), engine='{engine}', actors=2)"
                mebibytes = round(peak(program(folder, keys)) / 2**20)
                emit("objects", engine=engine, images_a_client=count, mebibytes=mebibytes)


if __name__ == "__main__":
    main()

"""Time and peak memory of opening a generated file for the first time, and of opening it again.

python -m benchmarks.open_file [--format csv|parquet|texts|npz] [--rows 1000000] [--columns 30]
[--folder FOLDER] [--hold GIB] [--beside TREE PYTHON]

The file is generated in FOLDER (a temporary one), opened in a process of its own, and deleted.
Peaks are of that process, beside what it has after its imports. `--hold 1` lets it have so many
GiB of data beside its imports (RLIMIT_DATA). `--beside` opens the same file with the code of
another checkout and its Python, too: a line for each. Files of 2 GB in bounded memory:

python -m benchmarks.open_file --rows 8000000 --hold 1
python -m benchmarks.open_file --format npz --rows 8000000 --columns 64 --hold 1
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.common import emit
from fedhet.data.cache import open_dataset
from fedhet.data.inputs import Reading

CHUNK = 20_000
WORDS = 60  # of a text


def write(path: Path, kind: str, rows: int, columns: int) -> None:
    """Random numbers, a gap in twenty, and ten classes; or texts of random words."""
    rng = np.random.default_rng(0)
    names = [f"c{number}" for number in range(columns)]
    if kind == "parquet":
        _write_parquet(path, rows, names)
        return
    if kind == "npz":
        _write_npz(path, rows, columns)
        return
    with path.open("w") as file:
        file.write(",".join(["y", "text"] if kind == "texts" else ["y", *names]) + "\n")
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            labels = rng.integers(10, size=count)
            if kind == "texts":
                words = rng.integers(50_000, size=(count, WORDS))
                lines = (" ".join(f"w{word}" for word in row) for row in words)
            else:
                numbers = rng.normal(size=(count, columns)).round(6).astype(str)
                numbers[rng.random(numbers.shape) < 0.05] = ""  # noqa: PLR2004
                lines = (",".join(row) for row in numbers)
            file.writelines(f"{y},{line}\n" for y, line in zip(labels, lines, strict=True))


def _write_parquet(path: Path, rows: int, names: list[str]) -> None:
    import pyarrow as pa  # noqa: PLC0415  (an extra)
    import pyarrow.parquet as pq  # noqa: PLC0415

    rng = np.random.default_rng(0)
    schema = pa.schema([("y", pa.int64()), *((name, pa.float64()) for name in names)])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 10 * CHUNK):
            count = min(10 * CHUNK, rows - start)
            columns = [rng.integers(10, size=count), *rng.normal(size=(len(names), count))]
            writer.write_table(pa.table(columns, schema=schema))


def _write_npz(path: Path, rows: int, columns: int) -> None:
    """Windows of one channel: float32 (rows, 1, columns), in ten classes."""
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, 1, columns)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, rows, CHUNK):
                count = min(CHUNK, rows - start)
                file.write(rng.normal(size=(count, columns)).astype(np.float32).tobytes())
        with archive.open("y.npy", "w") as file:
            np.save(file, rng.integers(10, size=rows))


def peak() -> int:
    """Largest resident size of this process so far, KiB, without what a fork inherited."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def open_once(path: Path, kind: str, hold: float) -> None:
    """Open the file in this process; return the figures as JSON."""
    if hold:
        limit = int((hold * 2**20 + peak()) * 2**10)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    dataset = {"texts": "texts", "npz": "signals"}.get(kind, "table")
    reading = Reading(target="y", text="text" if kind == "texts" else "")
    before, seconds = peak(), []
    for _ in range(2):
        started = time.perf_counter()
        data = open_dataset(
            dataset, data_path=str(path), reading=reading, cache_dir=path.parent / "cache"
        )
        seconds.append(time.perf_counter() - started)
    print(
        json.dumps(
            {"seconds": seconds[0], "again": seconds[1], "examples": len(data.labels),
             "imports_mib": before >> 10, "more_mib": (peak() - before) >> 10}
        )
    )  # fmt: skip


def main() -> None:
    """Generate, open, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=["csv", "parquet", "texts", "npz"], default="csv")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--hold", type=float, default=0)
    parser.add_argument("--beside", nargs=2, metavar=("TREE", "PYTHON"))
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        open_once(asked.open, asked.format, asked.hold)
        return
    trees = [("this", ".", sys.executable)]
    if asked.beside:
        trees.append(("other", *asked.beside))
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        name = {"parquet": "in.parquet", "npz": "in.npz"}.get(asked.format, "in.csv")
        path = Path(folder) / name
        write(path, asked.format, asked.rows, asked.columns)
        for tree, place, python in trees:
            words = [python, "-m", "benchmarks.open_file", "--open", str(path)]
            words += ["--format", asked.format, "--hold", str(asked.hold)]
            done = subprocess.run(words, cwd=place, check=True, capture_output=True, text=True)
            emit(
                "open_file", tree=tree, format=asked.format, columns=asked.columns,
                file_mib=path.stat().st_size >> 20, **json.loads(done.stdout),
            )  # fmt: skip


if __name__ == "__main__":
    main()

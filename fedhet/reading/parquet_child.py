"""The process that unpacks a Parquet file for :mod:`fedhet.reading.parquet`, and nothing else."""

import json
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.errors import brief
from fedhet.reading.arrow import kind_of_type, numbers_of
from fedhet.reading.columns import CHUNK, MAX_COLUMNS, MAX_LINE

MAX_TEXTS = 16 << 30  # characters of a file: one may repeat a long text in a few bytes
_PIECE = 8 << 20  # bytes of texts in a piece, unless one row has more
_BUFFER = 64 << 10  # bytes that are read ahead in each column


class _Refused(Exception):
    """Why a file is not read; what follows its name in a message."""


def serve() -> None:
    """One job from standard input, its answers to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    path, memory = json.loads(sys.stdin.readline())
    out = sys.stdout.buffer
    try:
        import pyarrow.compute  # noqa: PLC0415, F401  (before memory is bounded)
        import pyarrow.parquet as pq  # noqa: PLC0415

        _bound_memory(memory)
        for about, arrays in _read(pq, path):
            out.write(json.dumps(about).encode() + b"\n")
            for array in arrays:
                out.write(array.tobytes())
            out.flush()
        out.write(b'{"done": true}\n')
    except BrokenPipeError:
        return  # the parent has seen enough
    except _Refused as reason:
        out.write(json.dumps({"error": str(reason)}).encode() + b"\n")
    except MemoryError:
        why = f": takes more than {memory >> 20} MiB to unpack: write it in smaller row groups"
        out.write(json.dumps({"error": why}).encode() + b"\n")
    except Exception as error:  # Arrow raises nearly every kind for a broken file
        why = f": no sound Parquet file ({brief(error)})"
        out.write(json.dumps({"error": why}).encode() + b"\n")
    out.flush()


def _bound_memory(memory: int) -> None:
    """Let this process take so many bytes more than it has."""
    status = Path("/proc/self/statm")
    used = int(status.read_text().split()[0]) * resource.getpagesize() if status.exists() else 0
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + memory
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most < 0 else min(wanted, most), most))


Answer = tuple[dict[str, Any], list[npt.NDArray[np.float64]]]


def _read(pq: Any, path: str) -> Iterator[Answer]:
    """The head; then the rows, with the columns that are asked for."""
    file = pq.ParquetFile(path, buffer_size=_BUFFER)
    schema = file.schema_arrow
    if len(schema.names) > MAX_COLUMNS:
        raise _Refused(f": {len(schema.names):,} columns, at most {MAX_COLUMNS:,}")
    kinds = [kind_of_type(field.type) for field in schema]
    yield {"columns": schema.names, "kinds": kinds, "rows": file.metadata.num_rows}, []
    wanted = sys.stdin.readline()
    if not wanted:
        return
    texts, numbers = json.loads(wanted)
    # Texts stay numbers of a dictionary until they are known to be short: a file may repeat a
    # long one as often as it likes in a few bytes.
    shared = _shares_beginnings(file.metadata, texts)  # of these Arrow makes no dictionary
    whole = [name for name in texts if name not in shared]
    file = pq.ParquetFile(path, buffer_size=_BUFFER, read_dictionary=whole)
    row = taken = 0
    for batch in file.iter_batches(CHUNK, columns=[*texts, *numbers], use_threads=False):
        found = {name: _dense(batch.column(name), row, name) for name in texts}
        for start, count in _parts(found, batch.num_rows, row):
            part = {name: _plain(column, start, count) for name, column in found.items()}
            taken += sum(len(text) for column in part.values() for text in column)
            if taken > MAX_TEXTS:
                raise _Refused(f" row {row}: more than {MAX_TEXTS >> 30} GiB of texts")
            arrays = [numbers_of(batch.column(name).slice(start, count)) for name in numbers]
            yield {"count": count, "texts": part, "numbers": numbers}, arrays
        row += batch.num_rows


def _shares_beginnings(metadata: Any, texts: list[str]) -> set[str]:
    """Those columns of which a part is told by what its texts have in common."""
    found = set()
    for number, name in enumerate(metadata.schema.names):
        groups = range(metadata.num_row_groups) if name in texts else ()
        if any("DELTA_BYTE_ARRAY" in metadata.row_group(g).column(number).encodings
               for g in groups):  # fmt: skip
            found.add(name)
    return found


def _dense(column: Any, row: int, name: str) -> Any:
    """A column as strings or a dictionary of them, of which none is too long."""
    import pyarrow as pa  # noqa: PLC0415  (only in this process)
    import pyarrow.compute as pc  # noqa: PLC0415

    text = pa.large_string()
    if pa.types.is_dictionary(column.type):
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(text))
        lengths = pc.binary_length(column.dictionary)
    else:
        column = column.cast(text)
        lengths = pc.binary_length(column)
    if (pc.max(lengths).as_py() or 0) > MAX_LINE:
        raise _Refused(f" row {row} or after, column {name!r}: a text of more than {MAX_LINE:,}")
    return column


def _parts(columns: dict[str, Any], rows: int, row: int) -> Iterator[tuple[int, int]]:
    """Start and length of runs of rows whose texts are no more than ``_PIECE`` together."""
    import pyarrow.compute as pc  # noqa: PLC0415  (only in this process)

    sizes = np.zeros(rows, dtype=np.int64)
    for column in columns.values():
        each = (
            pc.take(pc.binary_length(column.dictionary), column.indices)
            if hasattr(column, "dictionary")
            else pc.binary_length(column)
        )
        sizes += each.fill_null(0).to_numpy(zero_copy_only=False)
    if rows and sizes.max() > MAX_LINE:
        raise _Refused(
            f" row {row + int(sizes.argmax())}: a row of more than {MAX_LINE:,} characters"
        )
    start = taken = 0
    for end, size in enumerate(sizes.tolist()):
        if taken + size > _PIECE:
            yield start, end - start
            start, taken = end, 0
        taken += size
    if rows:
        yield start, rows - start


def _plain(column: Any, start: int, count: int) -> list[str]:
    """Texts; a gap is empty."""
    part = column.slice(start, count)
    if hasattr(part, "dictionary"):
        part = part.dictionary.take(part.indices)
    return ["" if text is None else text for text in part.to_pylist()]

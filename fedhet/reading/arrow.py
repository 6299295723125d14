"""Columns as Arrow has them: what each is, and its numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt


def kind_of_type(kind: Any) -> str:
    """``number``, ``text``, or the type that is neither."""
    from pyarrow import types as is_  # noqa: PLC0415  (an extra)

    inner = kind.value_type if is_.is_dictionary(kind) else kind
    if any(one(inner) for one in (is_.is_integer, is_.is_floating, is_.is_boolean,
                                  is_.is_decimal, is_.is_null)):  # fmt: skip
        return "number"
    if any(one(inner) for one in (is_.is_string, is_.is_large_string, is_.is_string_view,
                                  is_.is_date, is_.is_time, is_.is_timestamp)):  # fmt: skip
        return "text"
    return f"{kind!s:.60}"


def numbers_of(column: Any) -> npt.NDArray[np.float64]:
    """float64; NaN for a gap."""
    import pyarrow as pa  # noqa: PLC0415  (an extra)

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    found = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, dtype=np.float64)

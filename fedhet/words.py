"""How figures are written for people, the same everywhere."""

import math

from rich.filesize import decimal


def percent(value: float | None) -> str:
    """An accuracy, or a dash before the first evaluation."""
    return "-" if value is None else f"{value:.2f} %"


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss; a question mark for what files of others may add up to."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: int) -> str:
    """Bytes in thousands: ``4.6 kB``."""
    return decimal(count)

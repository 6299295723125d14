"""The federation of most tests: it trains in a third of the time of ``fedhet.testing.small``'s."""

from pathlib import Path
from typing import Any

from fedhet.config.schema import RunConfig
from fedhet.testing import small

TINY = {"image_size": 16, "representation": 64, "dataset": "synthetic:120x4"}


def tiny(tmp_path: Path, **changes: Any) -> RunConfig:
    """Three clients with CNN-5 on few and little images, two rounds; keys in snake_case."""
    return small(tmp_path, **(TINY | changes))

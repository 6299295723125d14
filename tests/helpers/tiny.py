"""The federation of most tests: it trains in a third of the time of ``fedhet.testing.small``'s."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fedhet
from fedhet.config.schema import RunConfig
from fedhet.testing import LocalGrid, small

TINY = {"image_size": 16, "representation": 64, "dataset": "synthetic:120x4"}


def tiny(tmp_path: Path, **changes: Any) -> RunConfig:
    """Three clients with CNN-5 on few and little images, two rounds; keys in snake_case."""
    return small(tmp_path, **(TINY | changes))


def deployed(
    folder: Path, own: Mapping[int, Mapping[str, str]] | None = None
) -> Callable[..., None]:
    """``before`` of a simulation: nodes that keep their states in a folder, and have ``own`` keys.

    A node with a ``data-dir`` has no share of a data set.
    """

    def prepare(grid: LocalGrid) -> None:
        for k, (node, context) in enumerate(grid.contexts.items()):
            keys = (own or {}).get(k, {})
            if "data-dir" in keys:
                context.node_config.clear()
            context.node_config.update({"state-dir": str(folder / "states" / str(node)), **keys})

    return prepare


def run_by_name(config: RunConfig) -> dict[str, Any]:
    """Run it as `fedhet run` does, in the engine that it names; return the summary."""
    values = config.model_dump(by_alias=True, exclude_unset=True)
    keys = {key.replace("-", "_"): value for key, value in values.items()}
    return fedhet.run(progress=False, **keys).summary

"""The federation of most tests: it trains in a third of the time of ``fedhet.testing.small``'s."""

import csv

import fedhet
from fedhet.testing import small

TINY = {"image_size": 16, "representation": 64, "dataset": "synthetic:120x4"}


def tiny(tmp_path, **changes):
    """Three clients with CNN-5 on few and little images, two rounds; keys in snake_case."""
    return small(tmp_path, **(TINY | changes))


def deployed(folder, own=None):
    """``before`` of a simulation: nodes that keep their states in a folder, and have ``own`` keys.

    A node with a ``data-dir`` has no share of a data set.
    """

    def prepare(grid):
        for k, (node, context) in enumerate(grid.contexts.items()):
            keys = (own or {}).get(k, {})
            if "data-dir" in keys:
                context.node_config.clear()
            context.node_config.update({"state-dir": str(folder / "states" / str(node)), **keys})

    return prepare


def run_by_name(config):
    """Run it as `fedhet run` does, in the engine that it names; return the summary."""
    values = config.model_dump(by_alias=True, exclude_unset=True)
    keys = {key.replace("-", "_"): value for key, value in values.items()}
    return fedhet.run(progress=False, **keys).summary


def states(folder, config):
    """The folders of the clients' states, by client."""
    root = folder.state_dir(config) / folder.experiment
    return {path.name: path for path in sorted(root.iterdir())}


def recorded(folder):
    """The newest line of clients.csv per client."""
    with folder.clients.open(encoding="utf-8", newline="") as file:
        return {row["client"]: row for row in csv.DictReader(file)}

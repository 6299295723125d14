"""What strangers send: how much was tried, and what came of it.

Of every direction one line: ``tried``, and of what was done with it how much was ``refused`` in one
line, ``named`` and left out, or taken and ``without_effect`` on anything outside. ``escapes`` are
tracebacks, other exit codes, and more than a minute or a gigabyte; ``effects`` are changes outside.

    python -m benchmarks.hostile [--directions folders downloads] [--folders 500] [--downloads 1000]

Replies and handshakes are benchmarks.hostile_nodes.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import emit
from benchmarks.hostile_downloads import downloads
from benchmarks.hostile_folders import Base, Found, Sandbox


def folders(place: Path, seeds: Sequence[int]) -> Found:
    """Run folders, models and packed records that somebody sent."""
    os.environ |= {
        "XDG_STATE_HOME": str(place / "own register"), "FEDHET_CACHE": str(place / "cache"),
    }  # fmt: skip
    (place / "base").mkdir()
    sandbox = Sandbox(place / "sandbox", Base.make(place / "base"))
    for seed in seeds:
        sandbox.attack(seed)
    return sandbox.found


# A direction is a function of a folder of its own and the seeds to try.
DIRECTIONS: dict[str, Callable[[Path, Sequence[int]], Found]] = {
    "folders": folders, "downloads": downloads,
}  # fmt: skip


def main() -> int:
    """Try and print; 1 if anything escaped or had an effect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--directions", nargs="+", default=list(DIRECTIONS), choices=list(DIRECTIONS)
    )
    for name in DIRECTIONS:
        most = {"downloads": 1000}.get(name, 500)
        parser.add_argument(f"--{name}", type=int, default=most, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--show", type=int, default=5, help="escapes and effects to print")
    chosen = parser.parse_args()
    bad = 0
    for name in chosen.directions:
        count = getattr(chosen, name)
        with tempfile.TemporaryDirectory() as place:
            found = DIRECTIONS[name](Path(place), range(chosen.first, chosen.first + count))
        for what in [*found.escapes, *found.effects][: chosen.show]:
            print(what, file=sys.stderr)
        bad += len(found.escapes) + len(found.effects)
        emit("hostile", direction=name, first=chosen.first, **found.figures(), target=0)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

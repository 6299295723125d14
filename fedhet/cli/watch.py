"""``fedhet watch``, and ``fedhet run --watch``."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fedhet.engines.system import Interrupted, interruptible
from fedhet.records.run_folder import RunFolder
from fedhet.watch.plain import follow
from fedhet.watch.server import listen, page_server, watcher
from fedhet.watch.view import open_view


def watch(place: Path | None, superlink: str, port: int, *, plain: bool) -> None:
    """Until Ctrl-C, or, with ``plain``, until the run is over. The address is the last line."""
    view = open_view(place, superlink)
    try:
        with interruptible():
            if plain:
                for line in follow(view):
                    print(line, flush=True)
                return
            with listen(port) as found:
                server, address = page_server(view, found)
                print("fedhet: Ctrl-C ends it; the run goes on", file=sys.stderr, flush=True)
                print(address, flush=True)
                server.run([found])
    except Interrupted:
        return


def beside(
    say: Callable[[str], None], tls: str
) -> Callable[[RunFolder], contextlib.AbstractContextManager[None]]:
    """For a run's console: serves its page meanwhile, and says where."""
    return partial(_beside, say, tls)


@contextlib.contextmanager
def _beside(say: Callable[[str], None], tls: str, folder: RunFolder) -> Iterator[None]:
    with watcher(folder.path, tls) as where:
        say(f"watch it at {where}")
        yield
    say(f"see it again with: fedhet watch {folder.path}")

"""fedhet: model-heterogeneous personalised federated learning on Flower.

From Python: ``run = fedhet.run("quickstart", rounds=3, engine="inline")``, then ``run.summary``,
``run.rounds``, ``run.clients`` and ``run.model("0")``; see :class:`fedhet.api.Run`. Many runs:
``fedhet.load_sweep("runs/digits").frame()``; see :class:`fedhet.reports.frame.Runs`.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhet.api import Run, load_run, resume, run
    from fedhet.data.inputs import Inputs
    from fedhet.data.sources import Data
    from fedhet.errors import RunFailed, UserError
    from fedhet.reports.frame import load_sweep

__version__ = "0.2.0"
__all__ = [
    "Data",
    "Inputs",
    "Run",
    "RunFailed",
    "UserError",
    "load_run",
    "load_sweep",
    "resume",
    "run",
]

HERE = Path(__file__).resolve().parent
# Where `strategies`, `clients` and `configs` lie: beside this folder in a checkout and in Flower's
# bundle, inside it where a wheel was installed. Their names are the same: `fedhet.strategies`.
TOP = HERE if (HERE / "strategies").is_dir() else HERE.parent
if TOP != HERE:
    __path__.append(str(TOP))


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is used: torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'fedhet' has no attribute '{name}'")
    elsewhere = {
        "Data": "data.sources", "Inputs": "data.inputs", "load_sweep": "reports.frame",
        "RunFailed": "errors", "UserError": "errors",
    }  # fmt: skip
    return getattr(import_module(f"fedhet.{elsewhere.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    """Return the public names and the module's own; leave out what this file imports."""
    own = [name for name in globals() if name.startswith("__")]
    return sorted([*own, *__all__])

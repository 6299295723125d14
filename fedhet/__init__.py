"""fedhet: model-heterogeneous personalised federated learning on Flower.

From Python: ``run = fedhet.run("quickstart", rounds=3, engine="inline")``, then ``run.summary``,
``run.rounds``, ``run.clients`` and ``run.model("0")``; see :class:`fedhet.face.Run`.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhet.errors import RunFailedError, UserError
    from fedhet.face import Run, load_run, resume, run

__version__ = "0.1.0"
__all__ = ["Run", "RunFailedError", "UserError", "load_run", "resume", "run"]


def __getattr__(name: str) -> Any:
    """The Python face, imported when it is used: torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'fedhet' has no attribute '{name}'")
    from fedhet import errors, face  # noqa: PLC0415

    return getattr(errors if name.endswith("Error") else face, name)


def _claim(package: str) -> None:
    """Import our package of that name now, so that no folder of a user's can stand for it."""
    place = Path(__file__).resolve().parents[1] / package / "__init__.py"
    known = sys.modules.get(package)
    if known is not None and known.__file__ and Path(known.__file__).resolve() != place:
        raise ImportError(f"fedhet's package '{package}' is hidden by {known.__file__}: rename it")
    spec = spec_from_file_location(package, place, submodule_search_locations=[str(place.parent)])
    if known is None and spec is not None and spec.loader is not None:
        module = sys.modules[package] = module_from_spec(spec)
        spec.loader.exec_module(module)


for _package in ("strategies", "clients"):
    _claim(_package)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

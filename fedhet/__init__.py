"""fedhet: model-heterogeneous personalised federated learning on Flower.

From Python: ``run = fedhet.run("quickstart", rounds=3, engine="inline")``, then ``run.summary``,
``run.rounds``, ``run.clients`` and ``run.model("0")``; see :class:`fedhet.face.Run`.
"""

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


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

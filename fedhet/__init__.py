"""fedhet: model-heterogeneous personalised federated learning on Flower.

From Python: ``run = fedhet.run("quickstart", rounds=3, engine="inline")``, then ``run.summary``,
``run.rounds``, ``run.clients`` and ``run.model("0")``; see :class:`fedhet.api.Run`. Many runs:
``fedhet.load_sweep("runs/digits").frame()``; see :class:`fedhet.reports.report.Runs`. The types of
all names are in ``__init__.pyi``.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"
# Public names by their modules, which are imported when a name is used: torch takes seconds.
_NAMES = {
    "api": "Run load_run resume run",
    "app": "ClientApp ServerApp",
    "clients.averaging": "AveragingClient",
    "clients.base": "MethodClient Needs",
    "clients.class_vectors": "ClassVectorClient",
    "config.registry": "Method",
    "config.schema": "Params",
    "data.inputs": "Inputs",
    "data.sources": "Data",
    "errors": "Refused Rejected RunFailed UserError",
    "models.zoo": "build_model",
    "protocol.handshake": "ClientInfo",
    "protocol.payload": "Array ClassVectors Float32 HeaderRows Int64 LowRank ModelArrays Payload "
    "blank rest",
    "reports.report": "load_sweep",
    "rng": "generator torch_seeded",
    "strategies.averaging": "AveragingStrategy",
    "strategies.base": "MethodStrategy Reference Upload",
    "strategies.class_vectors": "ClassVectorStrategy",
    "strategies.rules": "ROBUST",
    "testing": "check_method",
    "training.loop": "Phase",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605  (a list of texts)

HERE = Path(__file__).resolve().parent
# Where `strategies`, `clients` and `configs` lie: beside this folder in a checkout and in Flower's
# bundle, inside it where a wheel was installed. Their names are the same: `fedhet.strategies`.
TOP = HERE if (HERE / "strategies").is_dir() else HERE.parent
if TOP != HERE:
    __path__.append(str(TOP))


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedhet' has no attribute '{name}'")
    return getattr(import_module(f"fedhet.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names and the module's own; leave out what this file imports."""
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])

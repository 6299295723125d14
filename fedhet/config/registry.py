"""The methods, by name. A method is its two classes, its parameters and its preset.

Nothing of a method is imported before it is asked for: a client's process loads its own method's
client, parameters and strategy hooks, and no other method.
"""

import difflib
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from fedhet.config.schema import Params
from fedhet.errors import UserError

if TYPE_CHECKING:
    from fedhet.clients.base import MethodClient
    from fedhet.strategies.base import MethodStrategy

T = TypeVar("T")


class Method:
    """One method: server class, client class, one line of description, own hyper-parameters.

    Each class is given as such or as ``"module:Class"``, which is imported when it is used.
    """

    def __init__(
        self,
        strategy: "type[MethodStrategy[Any]] | str",
        client: "type[MethodClient[Any]] | str",
        about: str,
        params: type[Params] | str = Params,
    ) -> None:
        self.about = about
        self._strategy, self._client, self._params = strategy, client, params

    @cached_property
    def strategy(self) -> "type[MethodStrategy[Any]]":
        """The server half."""
        return _spelt(_found(self._strategy))

    @cached_property
    def client(self) -> "type[MethodClient[Any]]":
        """The client half."""
        return _spelt(_found(self._client))

    @cached_property
    def params(self) -> type[Params]:
        """The hyper-parameters."""
        return _found(self._params)


def _found(what: type[T] | str) -> type[T]:
    """Return the class, or what ``"module:Class"`` names."""
    if not isinstance(what, str):
        return what
    module, _, name = what.partition(":")
    found: type[T] = getattr(import_module(module), name)
    return found


def _spelt(kind: type[T]) -> type[T]:
    """Return the class; raise UserError if it defines a name that is nearly a hook's."""
    hooks = sorted({n for base in kind.__mro__[1:] for n in vars(base) if not n.startswith("_")})
    for name in vars(kind):
        if name in hooks or name.startswith("_"):
            continue
        if close := difflib.get_close_matches(name, hooks, n=1, cutoff=0.85):
            raise UserError(
                f"{kind.__name__}: nothing calls '{name}': did you mean '{close[0]}'? If it is "
                f"your own, call it '_{name}'",
                "method",
            )
    return kind


def _own(name: str, about: str, spelling: str, *, params: bool = True) -> Method:
    """Return a method of ours: ``spelling`` is the paper's, before Strategy, Client and Params."""
    return Method(
        f"fedhet.strategies.{name}:{spelling}Strategy",
        f"fedhet.clients.{name}:{spelling}Client",
        about,
        f"fedhet.strategies.{name}:{spelling}Params" if params else Params,
    )


METHODS: dict[str, Method] = {
    "standalone": _own(
        "standalone", "every client alone, nothing is sent", "Standalone", params=False
    ),
    "lg_fedavg": _own("lg_fedavg", "weighted mean of whole headers", "LGFedAvg", params=False),
    "fedclassavg": _own(
        "fedclassavg",
        "weighted mean of whole headers, trained with contrastive and proximal terms",
        "FedClassAvg",
    ),
    "fd": _own("fd", "mean outputs per class, leave-one-out, as soft targets", "FD"),
    "fedproto": _own(
        "fedproto",
        "mean representations per class, towards which clients are drawn",
        "FedProto",
    ),
    "fml": _own(
        "fml",
        "a private and a shared model teach each other; weighted mean of the shared ones",
        "FML",
    ),
    "fedkd": _own(
        "fedkd",
        "a private mentor and a shared student teach each other; compressed updates",
        "FedKD",
    ),
    "fedapen": _own(
        "fedapen",
        "a private and a shared model teach each other and answer together, by a learned weight",
        "FedAPEN",
    ),
    "fedssa": _own(
        "fedssa",
        "per-class mean of header rows, fused with the local ones by a decaying weight",
        "FedSSA",
    ),
    "fedmrl": _own(
        "fedmrl",
        "a shared small model, fused with the local one into nested representations",
        "FedMRL",
    ),
    "pfedes": _own(
        "pfedes",
        "a shared image extractor; extractor and local model are trained in turn",
        "PFedES",
    ),
    "fedavg": _own(
        "fedavg", "one common small model for all, weighted mean; the control", "FedAvg"
    ),
    "fedgh": _own(
        "fedgh", "a global header, trained by the server on mean representations", "FedGH"
    ),
    "fedtgp": _own(
        "fedtgp",
        "prototypes trained by the server to stay apart, towards which clients are drawn",
        "FedTGP",
    ),
    "fedl2g": _own(
        "fedl2g",
        "vectors per class that guide the models, and learn to guide by quizzes",
        "FedL2G",
    ),
    "fedgen": _own(
        "fedgen",
        "weighted mean of headers, and a generator of representations that they recognise",
        "FedGen",
    ),
    "pfedafm": _own(
        "pfedafm",
        "a shared extractor, mixed with the local one entry by entry by learned weights",
        "PFedAFM",
    ),
}

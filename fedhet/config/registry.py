"""The methods, by name. A method is its two classes, its parameters and its preset.

Nothing of a method is imported before it is asked for: a client's process loads its own method's
client, parameters and strategy hooks, and no other method.
"""

import difflib
from collections.abc import Mapping
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from fedhet import plugins
from fedhet.config.schema import Params, kebab
from fedhet.errors import UserError, nearest

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
        return _class(self._strategy)

    @cached_property
    def client(self) -> "type[MethodClient[Any]]":
        """The client half."""
        return _class(self._client)

    @cached_property
    def params(self) -> type[Params]:
        """The hyper-parameters."""
        return resolve_name(self._params) if isinstance(self._params, str) else self._params


def _class(kind: type[T] | str) -> type[T]:
    """Return the class, or that of ``"module:Class"``; UserError for a name nearly a hook's."""
    kind = resolve_name(kind) if isinstance(kind, str) else kind
    hooks = sorted({n for base in kind.__mro__[1:] for n in vars(base) if not n.startswith("_")})
    for name in (n for n in vars(kind) if n not in hooks and not n.startswith("_")):
        if close := difflib.get_close_matches(name, hooks, n=1, cutoff=0.85):
            raise UserError(
                f"{kind.__name__}: '{name}' is not a hook: did you mean '{close[0]}'? If it is "
                f"your own, call it '_{name}'",
                "method",
            )
    return kind


_OURS = {  # as its authors write it; what is done. In the order of the papers' tables
    "standalone": ("Standalone", "every client alone, nothing is sent"),
    "lg_fedavg": ("LG-FedAvg", "weighted mean of whole headers"),
    "fedclassavg": ("FedClassAvg", "mean of whole headers, with contrastive and proximal terms"),
    "fd": ("FD", "mean outputs per class, leave-one-out, as soft targets"),
    "fedproto": ("FedProto", "mean representations per class, towards which clients are drawn"),
    "fml": ("FML", "a private and a shared model teach each other; mean of the shared ones"),
    "fedkd": ("FedKD", "a mentor and a shared student teach each other; compressed updates"),
    "fedapen": ("FedAPEN", "a private and a shared model answer together, by a learned weight"),
    "fedssa": ("FedSSA", "per-class mean of header rows, fused by a decaying weight"),
    "fedmrl": ("FedMRL", "a shared small model, fused into nested representations"),
    "pfedes": ("pFedES", "a shared image extractor; extractor and local model are trained in turn"),
    "fedavg": ("FedAvg", "one common small model for all, weighted mean; the control"),
    "fedgen": ("FedGen", "mean of headers, and a generator of representations that they recognise"),
    "fedgh": ("FedGH", "a global header, trained by the server on mean representations"),
    "fedl2g": ("FedL2G", "vectors per class that guide the models, and learn to guide by quizzes"),
    "fedtgp": ("FedTGP", "prototypes that the server trains to stay apart"),
    "pfedafm": ("pFedAFM", "a shared extractor, mixed with the local one by learned weights"),
    "fedorgp": ("FedORGP", "prototypes that the server trains to be orthogonal"),
    "pfedmoe": ("pFedMoE", "a shared extractor, mixed sample by sample by a private gate"),
    "hetlora": ("HetLoRA", "LoRA adapters of unequal ranks over one pretrained network"),
}
SPELT = {name: spelling for name, (spelling, _) in _OURS.items()}


def _ours(name: str, spelling: str, about: str) -> Method:
    """Return a method of ours, whose classes are named by its spelling: pFedES is PFedES there."""
    words = spelling.replace("-", "")
    kind = f"fedhet.{{}}.{name}:{words[0].upper()}{words[1:]}{{}}"
    own = name not in {"standalone", "lg_fedavg", "fedavg"}
    params = kind.format("strategies", "Params") if own else Params
    client = kind.format("clients", "Client")
    return Method(kind.format("strategies", "Strategy"), client, about, params)


METHODS: dict[str, Method] = {name: _ours(name, *texts) for name, texts in _OURS.items()}


def find_method(name: str) -> Method:
    """Return the method of that name; raise UserError with the nearest name if there is none."""
    name = method_name(name)
    if name in METHODS:
        return METHODS[name]
    if not plugins.is_own("method", name):
        known = [*METHODS, *plugins.installed("method")]
        raise UserError(
            f"method: unknown value '{name}'{nearest(name, known)}; "
            f"allowed: {', '.join(known)} or your own module:METHOD"
        )
    method = plugins.load("method", name)
    if not isinstance(method, Method):
        raise UserError(
            f"method '{name}' is a {type(method).__name__}, must be a fedhet.config.registry.Method"
        )
    return method


def method_name(name: str) -> str:
    """Return the name here of a method as the papers write it (FedSSA, LG-FedAvg)."""
    plain = name.strip().lower().replace("-", "_")
    return plain if plain in METHODS else name.strip()


def method_keys(method: str) -> set[str]:
    """Return the kebab-case keys that only this method accepts."""
    return {kebab(name) for name in find_method(method).params.model_fields}


def folder_name(method: str) -> str:
    """Return what a run of the method is called by default: of ``module:METHOD`` the module."""
    if plugins.is_given(method):
        return method.split(":")[1][:40]
    module, _, name = method.rpartition(":")
    return (module if module and name == "METHOD" else name)[:40]


def named(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keys of a run with names in place of objects, and the objects by their names.

    Those are a ``method``, ``models``, a small model and ``metrics``; a name given as such stays.
    """
    values, objects = dict(keys), dict[str, Any]()

    def name(thing: Any) -> Any:
        if thing is None or isinstance(thing, str):
            return thing
        objects[short := plugins.name_of(thing)] = thing
        return short

    if isinstance(method := values.get("method"), Method):
        ours = next((key for key, one in METHODS.items() if one is method), None)
        values["method"] = ours or name(method)
    if "models" in values and not isinstance(models := values["models"], str):
        listed = models if isinstance(models, list | tuple) else [models]
        values["models"] = [name(model) for model in listed]
    for key in (key for key in values if kebab(key) in plugins.MODEL_KEYS):
        values[key] = name(values[key])
    if isinstance(values.get("metrics"), Mapping):
        values["metrics"] = {str(key): [name(one)] for key, one in values["metrics"].items()}
    return values, objects

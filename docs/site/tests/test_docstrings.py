"""Docstrings that users read name parameters, shapes, dtypes and errors."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import fedhet
from fedhet.clients.base import MethodClient, Needs, Setup
from fedhet.config.registry import METHODS, Method
from fedhet.config.schema import RunConfig
from fedhet.strategies.base import MethodStrategy, Upload

BASES = (MethodStrategy, MethodClient)
FLOWERS = {  # their signatures and meaning are Flower's
    "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "start",
    "fit", "evaluate", "summary",
}  # fmt: skip
ARRAYS = re.compile(r"\b(Tensor|NDArray|ndarray|Array)\b")
SHAPE = re.compile(r"\((|[A-Z|\w]+,|[A-Z|\w]+(, ?[\w.|/]+)+)\)|\bscalar\b")
DTYPE = re.compile(r"\b(u?int|float)\d+\b|\bscalar\b|\bdtypes?\b|\blogits\b")


def documented() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield everything that users call or override."""
    public = [getattr(fedhet, name) for name in fedhet.__all__]
    yield from ((one.__name__, one) for one in public if inspect.isfunction(one))
    for kind in [*BASES, *filter(inspect.isclass, public)]:
        inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
        for name, one in vars(kind).items():
            if name in inherited:  # is documented there
                continue
            plain = one.__func__ if isinstance(one, classmethod | staticmethod) else one
            plain = plain.fget if isinstance(plain, property) else plain
            if inspect.isfunction(plain) and not name.startswith("_") and name not in FLOWERS:
                yield f"{kind.__name__}.{name}", plain


def problems(function: Callable[..., Any]) -> Iterator[str]:
    """Yield what a docstring leaves out."""
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    for name in signature.parameters.keys() - {"self", "cls"}:
        if not re.search(rf"\b{name.rstrip('_')}\b", text):
            yield f"parameter '{name}' is not named"
    hints = [str(one.annotation) for one in signature.parameters.values()]
    if ARRAYS.search(" ".join([*hints, str(signature.return_annotation)])):
        yield from ["no shape"] * (not SHAPE.search(text))
        yield from ["no dtype"] * (not DTYPE.search(text))
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = ast.unparse(node.exc.func)
            if error not in text:
                yield f"raises {error}, which is not said"


def test_parameters_shapes_and_errors_are_said() -> None:
    found = [f"{name}: {one}" for name, function in documented() for one in problems(function)]
    assert found == []


def test_public_classes_keys_and_methods_are_described() -> None:
    public = [getattr(fedhet, name) for name in fedhet.__all__]
    for kind in [*BASES, Upload, Setup, Needs, Method, *public]:
        assert kind.__doc__ and len(kind.__doc__.split()) > 3, kind
    for schema in (RunConfig, *(method.params for method in METHODS.values())):
        silent = [key for key, one in schema.model_fields.items() if not one.description]
        assert silent in ([], ["params"]), schema
    for name, method in METHODS.items():  # Standalone has no paper
        head = inspect.getdoc(inspect.getmodule(method.strategy)) or ""
        assert re.search(r"\b(arXiv|DOI|doi|ICLR|NeurIPS)\b", head) or name == "standalone", name
        assert re.search(r"each way|sent|sends|uploads?|nothing", head, re.IGNORECASE), name

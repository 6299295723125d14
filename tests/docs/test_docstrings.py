"""Docstrings that users read say what a program can check: parameters, shapes, dtypes, errors."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fedhet
from fedhet.clients.base import MethodClient, Needs, Setup
from fedhet.clients.kept import KeptClient
from fedhet.config.registry import METHODS, Method
from fedhet.config.schema import RunConfig
from fedhet.strategies.base import MethodStrategy, Upload

BASES = (MethodStrategy, MethodClient, KeptClient)
# Whose signature is Flower's, and what it means is said there.
FLOWERS = {
    "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "start",
    "fit", "evaluate", "summary",
}  # fmt: skip
ARRAYS = re.compile(r"\b(Tensor|NDArray|ndarray|Array)\b")
SHAPE = re.compile(r"\((|[A-Z|\w]+,|[A-Z|\w]+(, ?[\w.|/]+)+)\)|\bscalar\b")
DTYPE = re.compile(r"\b(u?int|float)\d+\b|\bscalar\b|\bdtypes?\b|\blogits\b")


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class itself defines."""
    for name, one in vars(kind).items():
        plain = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        plain = plain.fget if isinstance(plain, property) else plain
        if inspect.isfunction(plain) and not name.startswith("_") and name not in FLOWERS:
            yield f"{kind.__name__}.{name}", plain


def documented() -> dict[str, Callable[..., Any]]:
    """Everything that users call or override."""
    found: dict[str, Callable[..., Any]] = {}
    for name in fedhet.__all__:
        one = getattr(fedhet, name)
        if inspect.isclass(one):
            found |= dict(members(one))
        else:
            found[name] = one
    for base in BASES:
        found |= dict(members(base))
    return found


CALLABLES = documented()


def problems(function: Callable[..., Any]) -> list[str]:
    """What a docstring leaves out."""
    text = inspect.getdoc(function) or ""
    if not text:
        return ["no docstring"]
    found = []
    signature = inspect.signature(function)
    for name in [name for name in signature.parameters if name not in {"self", "cls"}]:
        if not re.search(rf"\b{name.rstrip('_')}\b", text):
            found.append(f"parameter '{name}' is not named")
    hints = [str(one.annotation) for one in signature.parameters.values()]
    if ARRAYS.search(" ".join([*hints, str(signature.return_annotation)])):
        if not SHAPE.search(text):
            found.append("no shape")
        if not DTYPE.search(text):
            found.append("no dtype")
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = ast.unparse(node.exc.func)
            if error not in text:
                found.append(f"raises {error}, which is not said")
    return found


@pytest.mark.parametrize("name", CALLABLES)
def test_parameters_shapes_and_errors_are_said(name):
    assert problems(CALLABLES[name]) == []


@pytest.mark.parametrize(
    "kind",
    [*BASES, Upload, Setup, Needs, Method, *(getattr(fedhet, n) for n in fedhet.__all__)],
    ids=lambda kind: kind.__name__,
)
def test_every_public_name_has_a_docstring(kind):
    assert kind.__doc__ and len(kind.__doc__.split()) > 3


@pytest.mark.parametrize("name", ["", *METHODS])
def test_every_key_says_what_it_means(name):
    schema = METHODS[name].params if name else RunConfig
    silent = [key for key, one in schema.model_fields.items() if not one.description]
    assert silent == ([] if name else ["params"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_its_source_and_what_it_sends(name):
    """Standalone has no paper; the papers' identifiers are arXiv's, or a DOI."""
    head = inspect.getdoc(inspect.getmodule(METHODS[name].strategy)) or ""
    assert re.search(r"\b(arXiv|DOI|doi|ICLR|NeurIPS)\b", head) or name == "standalone"
    assert re.search(r"each way|sent|sends|uploads?|upload|nothing", head, re.IGNORECASE)


def test_what_is_missing_is_seen():
    def good(x: "Tensor") -> "Tensor":  # noqa: F821
        """Logits (B, C) of ``x`` (B, 3, s, s) float32; ValueError for none."""
        raise ValueError("none")

    def bad(x: "Tensor", y: int) -> "Tensor":  # noqa: F821
        """Something."""
        raise KeyError("x")

    def silent() -> None:
        pass

    assert problems(good) == [] and problems(silent) == ["no docstring"]
    assert problems(bad) == [
        "parameter 'x' is not named", "parameter 'y' is not named", "no shape", "no dtype",
        "raises KeyError, which is not said",
    ]  # fmt: skip

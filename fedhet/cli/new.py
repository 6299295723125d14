"""``fedhet new``: the skeleton of a method outside the package, with its test."""

import keyword
from pathlib import Path

from fedhet.config.registry import METHODS
from fedhet.errors import UserError

METHOD = '''"""{spelling}: what it does, from which paper (authors, year, arXiv id).

Each way: which arrays, of which shapes, how many floats. What differs from the paper, and why.
As it stands: the header is averaged, weighted by images, and kept small by a penalty.
"""

from pydantic import Field
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient
from fedhet.config.registry import Method
from fedhet.config.schema import REPRESENTATION, Params
from fedhet.strategies.averaging import AveragingStrategy


class {spelling}Params(Params):
    """Hyper-parameters of {spelling}."""

    penalty: float = Field(0.01, ge=0, description="weight of the header's squared norm, >= 0")


class {spelling}Strategy(AveragingStrategy[{spelling}Params]):
    """The server half: averages headers."""

    def shared_module(self) -> nn.Module:
        """A header, freshly drawn: d -> C."""
        return nn.Linear(REPRESENTATION, self.classes)


class {spelling}Client(AveragingClient[{spelling}Params]):
    """The client half: shares the header of its own model."""

    def shared(self) -> nn.Module:
        """The header crosses the wire."""
        return self.model.head

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy + penalty ||header||^2, for inputs (B, 3, s, s) and labels (B,)."""
        squares = self.model.head.weight.square().sum()
        return self.cross_entropy(self.model(inputs), labels) + self.params.penalty * squares


METHOD = Method(
    {spelling}Strategy,
    {spelling}Client,
    "one line for `fedhet methods`",
    {spelling}Params,
)
'''

TEST = '''"""{spelling}: what every method keeps, and its own steps worked out by hand."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from fedhet.protocol.payload import ModelArrays
from fedhet.testing import check_method, make_client, make_strategy, small, uploads_of

METHOD = "{name}:METHOD"


def test_it_runs_and_resumes_with_the_same_hash(tmp_path: Path) -> None:
    """The contract of all methods."""
    check_method(METHOD, tmp_path)


def test_the_server_takes_the_mean_weighted_by_images(tmp_path: Path) -> None:
    """Of 1 with 100 images and 5 with 300: 4."""
    strategy = make_strategy(small(tmp_path, method=METHOD), [[0], [1]], [100, 300], 4)
    shapes = list(strategy.arrays().values())
    sent = {{
        client: ModelArrays(tuple(np.full_like(array, value) for array in shapes))
        for client, value in (("0", 1.0), ("1", 5.0))
    }}
    strategy.aggregate(uploads_of(strategy, sent), 1)
    assert all((array == 4.0).all() for array in strategy.arrays().values())


def test_the_loss_is_the_papers(tmp_path: Path) -> None:
    """Cross-entropy and the penalty, on one batch."""
    client = make_client(small(tmp_path, method=METHOD, penalty=0.5), 0, tmp_path / "state")
    inputs, labels = client.examples("train").batch(torch.arange(4))
    by_hand = F.cross_entropy(client.model(inputs), labels)
    by_hand = by_hand + 0.5 * (client.model.head.weight**2).sum()
    assert torch.allclose(client.loss(inputs, labels), by_hand)
'''


def new_method(name: str, folder: Path) -> list[Path]:
    """Write ``NAME.py`` and ``test_NAME.py``; UserError if a name or a file is taken."""
    spelling = "".join(word.capitalize() for word in name.split("_"))
    words = name.isidentifier() and not keyword.iskeyword(name) and name == name.lower()
    if not words or not spelling.isidentifier():  # of _1 the classes' names would begin with a 1
        raise UserError(f"'{name}' is not allowed: a module's name is needed, such as my_method")
    if name in METHODS:
        raise UserError(f"'{name}' is a method of fedhet already: choose another name")
    files = {folder / f"{name}.py": METHOD, folder / f"test_{name}.py": TEST}
    for path in files:
        if path.exists():
            raise UserError(f"'{path}' exists already")
    for path, text in files.items():
        path.write_text(text.format(name=name, spelling=spelling), encoding="utf-8")
    return list(files)

"""Five methods that stand for all in the products of methods and something else.

One for each mechanism: rows of classes, an averaged module, vectors of classes, a server that
trains, an SVD. The other methods are run by ``pytest -m matrix``.
"""

import pytest

from fedhet.config.registry import METHODS

# HetLoRA needs pretrained networks: tests/methods/test_hetlora.py.
ANY = tuple(name for name in METHODS if name != "hetlora")


def product(*default, without=()):
    """Return all methods but some as parameters; those that do not run by default are marked."""
    return [
        name if name in default else pytest.param(name, marks=pytest.mark.matrix)
        for name in ANY
        if name not in without
    ]


FIVE = ("fedssa", "fedmrl", "fedproto", "fedgh", "fedkd")
PRODUCT = product(*FIVE)
AVERAGED = (
    "fedavg", "lg_fedavg", "fml", "fedapen", "fedmrl", "pfedes", "fedclassavg", "pfedafm",
    "pfedmoe",
)  # fmt: skip
SHORT = {  # the recorded hashes hang on these
    "fedapen": {"ensemble_epochs": 2, "holdout": 0.2},
    "fedtgp": {"server_epochs": 3},
    "fedgen": {"server_epochs": 3},
    "fedmrl": {"d1": 8},
    "fedl2g": {"warm_up": 1, "study_batches": 1, "quiz_batches": 1},
}


def short(method):
    """Return keys that make a method's own training short and its small parts small."""
    return {"extractor_epochs": 1} if method == "pfedes" else SHORT.get(method, {})

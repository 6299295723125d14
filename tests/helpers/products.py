"""Five methods that stand for all in the products of methods and something else.

One for each mechanism: rows of classes, an averaged module, vectors of classes, a server that
trains, an SVD. The other methods are run by ``pytest -m matrix``.
"""

from typing import Any

import pytest

from fedhet.config.registry import METHODS

FIVE = ("fedssa", "fedmrl", "fedproto", "fedgh", "fedkd")
PRODUCT = [m if m in FIVE else pytest.param(m, marks=pytest.mark.matrix) for m in METHODS]
_SHORT: dict[str, dict[str, Any]] = {
    "pfedes": {"extractor_epochs": 1},
    "fedapen": {"ensemble_epochs": 2, "holdout": 0.2},
    "fedtgp": {"server_epochs": 3},
    "fedgen": {"server_epochs": 3},
    "fedmrl": {"d1": 8},
    "fedl2g": {"warm_up": 1, "study_batches": 1, "quiz_batches": 1},
}


def short(method: str) -> dict[str, Any]:
    """Return keys that make a method's own training short and its small parts small."""
    return _SHORT.get(method, {})

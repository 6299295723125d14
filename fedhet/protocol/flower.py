"""The only module that imports Flower's compatibility and private paths."""

from flwr.client import NumPyClient
from flwr.common import Scalar

__all__ = ["NumPyClient", "Scalar"]

"""Standalone: E epochs of cross-entropy whenever the client is sampled; inference by its model."""

from fedhet.clients.base import MethodClient


class StandaloneClient(MethodClient):
    """The base class as it is."""

    caches_frozen = True
    shares_model = False

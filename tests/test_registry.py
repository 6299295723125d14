"""What the registry says of a method's classes."""

import pytest

from fedhet.clients.base import MethodClient
from fedhet.config.registry import METHODS, Method
from fedhet.errors import UserError
from fedhet.strategies.base import MethodStrategy


class Misspelt(MethodClient):
    """Its phases would never be called."""

    def phase(self):
        return []


class Fine(MethodClient):
    """A helper of its own."""

    def _phase(self):
        return []


def test_what_is_nearly_a_hook_is_refused() -> None:
    with pytest.raises(UserError, match=r"Misspelt: nothing calls 'phase': did you mean 'phases'"):
        _ = Method(MethodStrategy, Misspelt, "misspelt").client
    assert Method(MethodStrategy, Fine, "fine").client is Fine


def test_our_own_methods_are_spelt_well() -> None:
    for method in METHODS.values():
        assert method.client and method.strategy

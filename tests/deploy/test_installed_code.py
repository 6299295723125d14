"""What a node makes of the application that a server sends: only the installed one passes."""

import pytest
from helpers.applications import CLIENT, PROJECT, honest, packed

from fedhet.deploy import bundle


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    return honest(tmp_path_factory.mktemp("app") / "app")


@pytest.fixture(scope="module")
def own():
    return bundle.installed()


def test_the_installed_application_passes_in_any_order_and_no_other(sent, own):
    """More of others: tests/hostile/test_sent_code.py."""
    for files in (sent, dict(reversed(sent.items()))):
        assert bundle.difference(packed(files), own) == ""
    less = packed({name: content for name, content in sent.items() if name != CLIENT})
    for other in (less, packed(sent, (CLIENT, b"import os"))):
        assert f"such as '{CLIENT}'" in bundle.difference(other, own)
    newer = sent[PROJECT].replace(f'"{bundle.__version__}"'.encode(), b'"9.9"')
    found = bundle.difference(packed(sent | {PROJECT: newer, CLIENT: b""}), own)
    assert found == f"this run's fedhet 9.9 is not this site's {bundle.__version__}"


@pytest.mark.parametrize("content", [b"", b"no zip", packed({"a": b""}), packed(
    {PROJECT: b"x" * (1 << 20)})])  # fmt: skip
def test_what_is_no_application_is_refused(own, content):
    assert "cannot be read" in bundle.difference(content, own)

"""Moved: import from :mod:`fedhet.testing` (this name goes away soon)."""

from fedhet.testing import *  # noqa: F403

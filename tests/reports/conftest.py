"""What the tests of reports share."""

import pytest


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not saved, which takes most of a report's time."""
    monkeypatch.setattr("fedhet.reports.drawing.saved", lambda _figure: ("<svg></svg>", b""))

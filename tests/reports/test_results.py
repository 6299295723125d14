"""The committed results are what the committed records give."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.matrix
@pytest.mark.skipif(not (DOCS / "data").is_dir(), reason="a source distribution has no docs/data")
def test_the_pages_are_what_the_records_give():
    spec = importlib.util.spec_from_file_location("make_results", DOCS / "make_results.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    content = script.content()
    assert len(content) > 20
    for path, text in content.items():
        if path.suffix == ".md":  # pictures differ with the version of matplotlib
            assert path.read_text() == text, f"{path.name}: run python docs/make_results.py"

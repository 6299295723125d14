"""The notebooks of examples/: each runs from its first cell to its last, and shows little."""

from pathlib import Path

import nbformat
import pytest
from engines.commands import NOTEBOOK, PROXIES
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BY_DEFAULT = "own_model_and_data"
LARGEST = 100_000  # characters of all outputs: a picture, not more


@pytest.mark.parametrize(
    "name",
    [
        path.stem if path.stem == BY_DEFAULT else pytest.param(path.stem, marks=pytest.mark.matrix)
        for path in sorted(EXAMPLES.glob("*.ipynb"))
    ],
)
def test_a_notebook_runs(tmp_path, monkeypatch, name):
    """With lines and no widgets, whatever the notebook says of its terminal; by no proxy."""
    for key, value in (NOTEBOOK | PROXIES).items():
        monkeypatch.setenv(key, value)
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert book.cells[0].cell_type == "markdown" and not any(c.get("outputs") for c in book.cells)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [str(output) for cell in book.cells for output in cell.get("outputs", ())]
    assert outputs and sum(map(len, outputs)) < LARGEST and "ipywidgets" not in "".join(outputs)

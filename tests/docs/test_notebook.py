"""The notebook runs from top to bottom on its one-minute setting."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_quickstart_notebook_runs():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    text = "".join(o.get("text", "") for o in outputs)
    assert "| fedtgp |" in text and "| local |" in text
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 7  # five of plots, a map of each entry

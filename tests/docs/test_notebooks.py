"""The notebooks run from top to bottom, and what they ship is what they print."""

import json
import re
from pathlib import Path

import pytest

from tests.docs.test_examples import blocks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SAYS = {  # name -> what its output has, and how many pictures
    "quickstart": ("| fedapen |", 2),
    "write_a_method": ("fedduo", 1),
    "fedktl_pictures": ("mmd", 5),
    "from_htfllib": ("Averaged Test Accuracy", 0),
    "fair_comparison": ("fedssa@tuned", 0),
    "my_data": ("fedapen is ahead of local by", 2),
}


def shown(cells: list) -> tuple[str, int]:
    """All text that code cells printed or returned, and the number of pictures."""
    outputs = [
        output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]
    ]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    return text, sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_shipped_notebooks_are_small_and_name_no_machine(path):
    raw = path.read_text()
    cells = json.loads(raw)["cells"]
    assert len(raw) < 500_000
    assert not re.search(r"/tmp/|/root/|/home/|/work/|Traceback|[Ww]arning", raw)
    installs = "".join(cells[1]["source"])
    assert "%pip install" in installs and 'find_spec("fedjax_ht")' in installs
    for cell in cells[2:]:
        assert cell.get("outputs", True) or "print" not in "".join(cell["source"])
    text, pictures = shown(cells)
    assert SAYS[path.stem][0] in text and pictures == SAYS[path.stem][1]


def test_the_method_of_the_notebook_is_that_of_the_page():
    method, *_ = blocks("write_a_method.md")
    cells = json.loads((ROOT / "notebooks" / "write_a_method.ipynb").read_text())["cells"]
    assert method.strip() in ["".join(cell["source"]) for cell in cells]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    if "import pandas" in path.read_text():  # which the notebook installs
        pytest.importorskip("pandas")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    text, pictures = shown(notebook.cells)
    assert SAYS[path.stem][0] in text and pictures == SAYS[path.stem][1]

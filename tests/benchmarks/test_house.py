"""The counts of `benchmarks.house`, on made-up files."""

import importlib.util

import pytest

from benchmarks import house

TEXT = '''"""A docstring
of two lines."""

import os
from typing import (
    TYPE_CHECKING,
)

if TYPE_CHECKING:
    import json


class Named:
    """A docstring."""

    text = """a string
    of two lines"""  # that is none


def name():  # a comment beside code
    # a comment alone
    """A docstring, since comments do not count."""
    "an expression"
'''

FILES = {
    "__init__.py": "",
    "core/__init__.py": "",
    "core/round.py": "import fedjax_ht.core\n",
    "data/__init__.py": "from fedjax_ht.data.dataset import Dataset\n",
    "data/dataset.py": "def read():\n    from fedjax_ht.data.table import read\n",
    "data/table.py": "from fedjax_ht.data import dataset\nfrom fedjax_ht.core import round\n",
    "deploy/__init__.py": "import fedjax_ht.lab.config.fields as fields\n",
    "lab/config/fields.py": "import numpy\nfrom fedjax_ht import data\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "fedjax_ht" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_round.py").write_text("# a comment\n\nassert True\n")
    return tmp_path


def test_code_is_neither_docstring_nor_comment_nor_blank():
    lines = house.code_lines(TEXT)
    assert lines == {4, 5, 6, 7, 9, 10, 13, 16, 17, 20, 23}


def test_imports_of_type_checkers_are_left_out():
    known = ("os", "typing", "json", "os.path")
    assert house.imported(TEXT, known) == {"os", "typing"}
    assert house.imported("def f():\n    from os import path, sep\n", known) == {"os.path", "os"}


def test_files_are_counted(root):
    counts, packages = house.counted(root)
    assert counts == {
        "code lines, library": 6,
        "code lines, lab": 2,
        "code lines, deploy": 1,
        "code lines of fedjax_ht": 9,
        "files": 8,
        "import lines, % of code": 88.9,
        "lines of tests": 3,
        "import circles": 1,
        "modules in circles": 2,
    }
    assert packages["fedjax_ht.data"] == 5 and packages["fedjax_ht.lab.config"] == 2


def test_levels_are_above_what_is_imported():
    graph = {"top": {"a", "low"}, "a": {"b"}, "b": {"a", "low"}, "low": set()}
    assert house.circles(graph) == [{"a", "b"}]
    level = house.levels(graph)
    assert level == {"top": 2, "a": 1, "b": 1, "low": 0}
    assert house.returns_upward(["top", "low", "a", "b", "low", "top"], level) == 2


def test_functions_are_counted_once_and_imports_not(root):
    path = root / "fedjax_ht" / "core" / "round.py"
    path.write_text("def step():\n    pass\n\n\nclass Round:\n    step()\n\n\nstep()\n")
    spec = importlib.util.spec_from_file_location("made_up_round", path)
    module = importlib.util.module_from_spec(spec)
    with house.watched(root) as (functions, files):
        spec.loader.exec_module(module)
        assert not functions
        module.step()
        module.step()
    assert [name for *_, name in functions] == ["step"] and list(files) == [str(path)]

"""The page methods.md has the tables of docs/method_tables.py, and presets of the code."""

import ast
import inspect
import re
import runpy
import sys
from pathlib import Path

from fedjax_ht.configs.base import method_config
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.registry import DISTILLING

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "methods.md").read_text()


def test_the_tables_are_those_of_the_methods():
    with_tables = runpy.run_path(str(DOCS / "method_tables.py"))["with_tables"]
    assert with_tables(PAGE) == PAGE, "run python docs/method_tables.py"
    for name in ("papers", "messages", "options"):
        table = PAGE.split(f"<!-- table: {name} -->\n")[1].split("<!-- end -->")[0]
        assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(METHODS), name


def test_the_presets_of_the_distilling_methods_are_those_of_the_code():
    head, _, *lines = re.search(r"^\| \| `dense`.*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)[
        0
    ].splitlines()
    names = re.findall(r"`(\w+)`", head)
    assert names == list(DISTILLING) and len(lines) >= 4
    for line in lines:
        for name, cell in zip(names, line.split("|")[2:]):
            parameters = inspect.signature(METHODS[name]).parameters
            for option, value in re.findall(r"`(\w+)=([^`]+)`", cell):
                assert parameters[option].default == ast.literal_eval(value), (name, option)


def test_dense_says_the_preset_that_it_has():
    text, default = (
        sys.modules["fedjax_ht.methods.dense"].__doc__,
        inspect.signature(METHODS["dense"]).parameters,
    )
    assert (
        re.search(r'not conditional \(merge="none"\)', text) and default["merge"].default == "none"
    )
    assert method_config("fedrolex+dense").options.merge == "none"

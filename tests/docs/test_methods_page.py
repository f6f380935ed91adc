"""The page methods.md has the tables of docs/method_tables.py, and presets of the code."""

import ast
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import optax
import pytest

from fedjax_ht.check.options import options_of
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.lab.config.base import method_config
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


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/methods.md"])
def test_methods_are_counted(page):
    """Every number of methods that a page names is that of the registry."""
    text = (DOCS.parent / page).read_text()
    counts = re.findall(r"\b(\d+) methods\b|methods \| (\d+) with baselines", text)
    assert {int(a or b) for a, b in counts} == {len(METHODS)}


def test_defaults_that_are_not_the_printed_form_are_the_codes():
    """Every option with a value in that table is the method's default, or one that may be set."""
    section = PAGE.split("## Defaults that are not the printed form")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+)$", section, re.MULTILINE)
    checked = 0
    for row in rows:
        names, default, _, printed = (cell.strip() for cell in row.strip("| ").split(" | "))
        for name in re.findall(r"`(\w+)`", names):
            parameters = options_of(METHODS[name])
            for option, value in re.findall(r"`(\w+)=([^`]+)`", default):
                assert parameters[option].default == ast.literal_eval(value), (name, option)
                checked += 1
            for option, value in re.findall(r"`(\w+)=([^`]+)`", printed):
                settings = {option: ast.literal_eval(value)}
                METHODS[name](LocalTraining(optax.sgd(0.1)), **settings)
                assert parameters[option].default != settings[option]
    assert checked >= 8


def test_what_float32_leaves_of_the_printed_diversity():
    values = " and ".join(f"{np.exp(np.float32(-x)):.2g}" for x in (85, 114))
    assert f"85 at 16 pixels and 114 at 28, where exp(-x) is {values} in float32" in PAGE


def test_the_presets_of_the_distilling_methods_are_those_of_the_code():
    head, _, *lines = re.search(r"^\| \| `dense`.*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)[
        0
    ].splitlines()
    names = re.findall(r"`(\w+)`", head)
    assert names == list(DISTILLING) and len(lines) >= 4
    for line in lines:
        for name, cell in zip(names, line.split("|")[2:]):
            parameters = options_of(METHODS[name])
            for option, value in re.findall(r"`(\w+)=([^`]+)`", cell):
                assert parameters[option].default == ast.literal_eval(value), (name, option)


def test_dense_says_the_preset_that_it_has():
    text, default = (
        sys.modules["fedjax_ht.methods.data_free.dense"].__doc__,
        options_of(METHODS["dense"]),
    )
    assert (
        re.search(r'not conditional \(merge="none"\)', text) and default["merge"].default == "none"
    )
    assert method_config("fedrolex+dense").options.merge == "none"

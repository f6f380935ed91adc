"""The page methods.md has the tables of docs/method_tables.py, and presets of the code."""

import ast
import importlib
import re
from pathlib import Path

import optax
import pytest

from fedjax_ht.check.options import options_of
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.registry import DISTILLING

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "methods.md").read_text()


def part(table: str) -> str:
    return PAGE.split(f"<!-- table: {table} -->\n")[1].split("<!-- end -->")[0]


@pytest.mark.parametrize(
    "traced",
    [("fedproto", "heterofl", "fedit"), pytest.param(METHODS, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_the_tables_are_those_of_the_methods(monkeypatch, traced):
    """Messages' fields are read from traces of some methods; the contract suite has all."""
    monkeypatch.syspath_prepend(DOCS)
    tables = importlib.import_module("method_tables")
    fields = dict(
        re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \| [^|]+ \|$", part("messages"), re.MULTILINE)
    )
    real = tables.metadata

    def metadata(method):
        return real(method) if method.name in traced else re.findall(r"\w+", fields[method.name])

    monkeypatch.setattr(tables, "metadata", metadata)
    assert tables.with_tables(PAGE) == PAGE, "run python docs/method_tables.py"
    for name in ("papers", "messages", "options"):
        assert re.findall(r"^\| `(\w+)` \|", part(name), re.MULTILINE) == list(METHODS), name


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

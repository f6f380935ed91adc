"""docs/methods.md names every method in each of its tables, and gives the defaults that the code has."""

import ast
import inspect
import re
from pathlib import Path

from fedjax_ht.methods import METHODS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text()


def table(title: str) -> dict[str, str]:
    """A section's rows by method."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE))


def test_every_method_is_in_every_table():
    for title in ("What is exchanged, and who trains what", "What it costs", "Options and their defaults"):
        assert list(table(title)) == list(METHODS), title


def test_options_and_defaults_are_those_of_the_code():
    for name, row in table("Options and their defaults").items():
        written = {option: ast.literal_eval(value) for option, value in re.findall(r"`(\w+)=([^`]+)`", row)}
        parameters = list(inspect.signature(METHODS[name]).parameters.values())[1:]
        assert written == {p.name: p.default for p in parameters}, name

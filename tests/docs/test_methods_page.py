"""docs/methods.md names every method in each of its tables, and gives the defaults that the code
has."""

import ast
import inspect
import re
import sys
from pathlib import Path

from fedjax_ht.configs.base import method_config
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.registry import DISTILLING
from fedjax_ht.methods.shared.variants import FORMS, Form

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text()


def table(title: str) -> dict[str, str]:
    """A section's rows by method."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE))


def test_every_method_is_in_every_table():
    for title in (
        "What is exchanged, and who trains what",
        "What it costs",
        "Options and their defaults",
    ):
        assert list(table(title)) == list(METHODS), title


def test_options_and_defaults_are_those_of_the_code():
    for name, row in table("Options and their defaults").items():
        written = {
            option: ast.literal_eval(value) for option, value in re.findall(r"`(\w+)=([^`]+)`", row)
        }
        parameters = list(inspect.signature(METHODS[name]).parameters.values())[1:]
        assert written == {p.name: p.default for p in parameters}, name


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


def test_the_table_of_variants_is_the_one_of_the_code():
    section = PAGE.split("| option | of | paper | released |\n|---|---|---|---|\n")[1].split(
        "\n\n"
    )[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    assert [name.strip("`") for name, *_ in rows] == list(Form._fields)
    for name, _, *cells in rows:
        values = [ast.literal_eval(re.match(r"`([^`]+)`", cell)[1]) for cell in cells]
        assert values == [
            getattr(FORMS[variant], name.strip("`")) for variant in ("paper", "released")
        ]


def test_dense_says_the_preset_that_it_has():
    text, default = (
        sys.modules["fedjax_ht.methods.dense"].__doc__,
        inspect.signature(METHODS["dense"]).parameters,
    )
    assert (
        re.search(r'not conditional \(merge="none"\)', text) and default["merge"].default == "none"
    )
    assert method_config("fedrolex+dense").options.merge == "none"

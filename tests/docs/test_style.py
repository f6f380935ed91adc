"""The library and its tests keep the bounds of `python -m tests.style`."""

import ast
import functools

import pytest

from tests import style

TESTS = style.LIBRARY.parent / "tests"
LINES, TEST_LINES, FUNCTION_LINES = 300, 400, 80
LONG_FUNCTIONS = {
    "methods/fedgen.py: fedgen",
    "methods/fedkd.py: fedkd",
    "methods/dfrd.py: distil",
    "methods/fedktl.py: fedktl",
    "methods/fedral.py: fedral",
    "methods/fedssa.py: fedssa",
    "methods/fiarse.py: fiarse",
    "methods/fjord.py: fjord",
    "methods/depthfl.py: depthfl",
    "methods/hetlora.py: hetlora",
    "methods/flora.py: flora",
    "methods/fedtgp.py: fedtgp",
    "methods/shared/fine_tuning.py: fine_tuning",
    "methods/shared/partial_training.py: partial_training",
}
"""Functions of the library above 80 lines: factories of methods, whose stages are functions inside
them, and the loop of distillation."""


@functools.cache
def files(folder) -> list:
    """Lists the files of a folder."""
    return style.python_files([folder])


def in_library(path) -> str:
    """Names a file of the library as the tables above do."""
    return str(path.relative_to(style.LIBRARY))


@pytest.mark.parametrize("package", style.packages(), ids=lambda path: path.name)
def test_a_package_has_no_riddle_and_no_pronoun(package):
    measures = style.total(files(package))
    places = [line for path in files(package) for line in style.shortcomings(path)]
    assert measures.riddles == measures.pronouns == 0, places


@pytest.mark.parametrize("package", style.WORDED)
def test_entries_of_a_package_can_stand_alone(package):
    places = list(style.fragment_lines(files(style.LIBRARY / package)))
    assert not places, "begin each with a noun phrase that says what the value is"


def test_an_entry_that_cannot_stand_alone_is_a_fragment():
    text = '''
def fit(model, key, rows, rate):
    """Fits a model.

    Args:
      model: of the client.
      key: the client's.
      rows: the samples, float [N, D],
        of the client.
      rate: float above 0.

    Returns:
      loss: of the last step.
    """
'''
    lines = [entry for _, entry in style.fragments(ast.parse(text))]
    assert lines == ["model: of the client.", "key: the client's."]


def test_the_library_keeps_its_density_and_its_comments():
    measures = style.total(files(style.LIBRARY))
    assert measures.density <= 6 and measures.comment_rate >= 20
    assert measures.branchy_share <= 2.5


def test_files_of_the_library_are_short():
    lines = {in_library(path): style.measure(path).lines for path in files(style.LIBRARY)}
    assert not {path for path, count in lines.items() if count > LINES}


def test_functions_of_the_library_are_short():
    branchy, long = set(), set()
    for path in files(style.LIBRARY):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, style.FUNCTIONS):
                continue
            if style.branches(node) > style.MOST_BRANCHES:
                branchy.add(f"{in_library(path)}: {node.name}")
            if node.end_lineno - node.lineno + 1 > FUNCTION_LINES:
                long.add(f"{in_library(path)}: {node.name}")
    assert not branchy
    assert long <= LONG_FUNCTIONS


def test_tests_have_no_riddle_no_pronoun_and_no_long_file():
    places = [line for path in files(TESTS) for line in style.shortcomings(path)]
    assert not places
    long = [path for path in files(TESTS) if len(path.read_text().splitlines()) > TEST_LINES]
    assert not long

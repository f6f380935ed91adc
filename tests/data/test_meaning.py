"""Names of classes, and labels that mark none: doubts are said, and one name twice is refused."""

import numpy as np
import pytest

import fedjax_ht as fl

COUNT = 60
ROWS = np.random.default_rng(0).normal(size=(COUNT, 2))


def doubts(labels, names, **fields) -> str:
    return "\n".join(fl.Dataset("d", ROWS, np.asarray(labels), tuple(names), **fields).doubts)


def of_names(*names: str) -> str:
    return doubts(np.arange(COUNT) % len(names), names)


@pytest.mark.parametrize(
    "first, second",
    [
        ("cat", "Cat"),
        ("cat", " cat"),
        ("big cat", "big\u00a0cat"),
        ("big cat", "big  cat"),
        ("caf\u00e9", "cafe\u0301"),
        ("a", "\uff41"),
        ("\u043a\u043e\u0442", "\u041a\u043e\u0442"),
    ],
)
def test_classes_that_print_alike_are_said(first, second):
    line = of_names(first, "dog", second)
    assert "differ by capitals, spaces or the form" in line and line.isprintable()


@pytest.mark.parametrize(
    "names",
    [
        ("cat", "dog"),
        ("caf\u00e9", "cafe"),
        ("A", "a", "B", "b"),
        ("\u0441\u0442\u043e\u043b", "\u0441\u0442\u0443\u043b"),
        ("\u732b", "\u72ac"),
        ("1", "1.5", "10"),
        ("t shirt", "t-shirt"),
        ("nun", "one", "nano", "missed"),
        ("!", "?", "-", "."),
        ("-1", "1"),
        ("1" * 5000, "2" * 5000),
        ("-2", "-1", "0", "1", "2"),
        ("0", "1", "2", "3"),
        ("1", "5", "9"),
        ("90", "95", "99"),
    ],
)
def test_names_apart_are_taken_without_a_word(names):
    assert not of_names(*names)


def test_one_name_twice_is_refused():
    with pytest.raises(ValueError, match="d: class_names has a more than once"):
        of_names("a", "a", "b")


@pytest.mark.parametrize("name", ["?", "NA", "n/a", "None", "NULL", "", " ", "-", "NaN"])
def test_a_name_that_marks_a_missing_label_is_said(name):
    assert f"20 of 60 samples have the class {name!r}" in of_names("cat", name, "dog")


def test_a_label_of_minus_one_is_named():
    with pytest.raises(ValueError, match="; -1 often marks a sample without one"):
        fl.Dataset("d", ROWS[:3], [0, 1, -1], ("a", "b"))

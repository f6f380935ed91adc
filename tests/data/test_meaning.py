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
        ("cat", "cat\u200b"),
        ("big cat", "big\u00a0cat"),
        ("big cat", "big  cat"),
        ("caf\u00e9", "cafe\u0301"),
        ("cat", "c\u0430t"),  # a Cyrillic letter
        ("T-shirt", "T\u2011shirt"),
        ("a", "\uff41"),
        ("sun", "sun\ufe0f"),
        ("sun", "su\x00n"),
        ("1", "1.0"),
        ("7", "007"),
        ("\u043a\u043e\u0442", "\u041a\u043e\u0442"),
    ],
)
def test_classes_that_print_alike_are_said(first, second):
    line = of_names(first, "dog", second)
    assert "only differ in case, spaces or the form" in line and line.isprintable()


@pytest.mark.parametrize(
    "names",
    [
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


@pytest.mark.parametrize(
    "name", ["?", "\u2014", "NA", "n/a", "None", "NULL", "", " ", "\u200b", "-", "NaN"]
)
def test_a_name_that_marks_a_missing_label_is_said(name):
    assert f"20 of 60 samples have the class {name!r}" in of_names("cat", name, "dog")


@pytest.mark.parametrize(
    "names", [("-1", "0", "1"), ("-9", "1", "2"), ("0", "1", "99"), ("1", "2", "3", "255")]
)
def test_a_number_that_marks_a_missing_label_is_said(names):
    odd = names[0] if names[0].startswith("-") else names[-1]
    assert f"samples have the class '{odd}'" in of_names(*names)


def in_sites(*lists: str, **sets) -> str:
    """Doubts on files whose classes are the letters of a text each."""
    names = sorted(set("".join(lists)))
    owners = np.repeat(np.arange(len(lists)), 12)
    labels = [names.index(of_file[i % len(of_file)]) for of_file in lists for i in range(12)]
    fields = {"groups": owners}
    if sets.pop("clients", False):
        rows = [np.flatnonzero(owners == i) for i in range(len(lists))]
        fields = {"clients": [fl.ClientIndices(x[:8], x[8:8], x[8:]) for x in rows]}
    elif sets:
        fields = {"official": {name: np.flatnonzero(owners == i) for i, name in enumerate(sets)}}
    return "\n".join(fl.Dataset("d", ROWS[: len(labels)], labels, tuple(names), **fields).doubts)


@pytest.mark.parametrize(
    "lists",
    [
        ("012", "123"),
        ("012", "abc"),
        ("01", "12"),
        ("012", "012", "123"),
        ("012", "01", "123"),
        ("cd", "kh"),
        ("01", "12", "ab"),
    ],
)
def test_sites_of_several_codings_are_said(lists):
    line = in_sites(*lists)
    assert "classes are matched by name, but differ: group 0 has" in line
    if len(lists) == 2:
        assert "train has" in in_sites(*lists, train=0, test=1)
        assert "client 0 has" in in_sites(*lists, clients=True)


@pytest.mark.parametrize(
    "lists",
    [
        ("012", "012"),
        ("012", "12"),
        ("012", "123", "0123"),
        ("0", "1"),
        ("01", "23", "45", "67"),
        ("0a", "1b", "2c", "3d"),
        ("cdh", "dhk"),
    ],
)
def test_sites_that_lack_classes_are_taken_without_a_word(lists):
    assert not in_sites(*lists)

"""Texts of a name and its numbers."""

import pytest

from fedjax_ht.check.named_numbers import Spec, as_tuples, parse_spec, read_spec
from fedjax_ht.check.options import Count, Part, Positive

FORMS = {"": (Positive,), "constant": (), "step": (Count, Part)}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("constant", Spec("constant", ())),
        ("step/100/0.1", Spec("step", (100, 0.1))),
        ("step/100/1", Spec("step", (100, 1))),
        ("1e9", Spec("", (1e9,))),
    ],
)
def test_names_and_numbers(text, spec):
    assert parse_spec(text) == read_spec("field", text, FORMS, "") == spec


@pytest.mark.parametrize(
    "text",
    ["", "cosine", "constant/1", "step", "step/1.5/0.1", "step/1/nan", "step/1/x", "0", "/1"],
)
def test_another_form_is_one_line(text):
    with pytest.raises(ValueError) as error:
        read_spec("field", text, FORMS, "it must be constant")
    assert str(error.value) == f"field is {text!r}; it must be constant"


def test_entries_are_tuples_in_either_form():
    assert as_tuples(("norm_bound/2", ("median",), "a/b", 3)) == (
        ("norm_bound", 2),
        ("median",),
        "a/b",
        3,
    )
    assert as_tuples("median") == "median"  # no tuple of entries: its type is refused

"""Texts of a name and its numbers, "step/100/0.1": the form in which a config names what is made by
a function of numbers. docs/running.md lists its fields."""

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from fedjax_ht.check.options import allows


class Spec(NamedTuple):
    """A name and its numbers.

    Attributes:
      name: the name; "" of a text that is a number alone, "1e9".
      numbers: the numbers, an int where it is written as one.
    """

    name: str
    numbers: tuple[int | float, ...]


class AsTuples(NamedTuple):
    """Marks a field whose entries are names and their numbers, as tuples or as texts."""


Specs = Annotated[tuple[Any, ...], AsTuples()]


def parse_spec(text: str) -> Spec:
    """Reads "NAME/NUMBER/NUMBER", "NAME" or "NUMBER".

    Raises:
      ValueError: it is empty, or a part behind the first is no number.

    Example:
      >>> from fedjax_ht.check.named_numbers import parse_spec
      >>> parse_spec("step/100/0.1")
      Spec(name='step', numbers=(100, 0.1))
    """
    name, *parts = text.split("/")
    if not name:
        raise ValueError(f"{text!r} begins with neither a name nor a number")
    try:
        numbers: tuple[int | float, ...] = (_number(name),)
        name = ""
    except ValueError:
        numbers = ()
    return Spec(name, (*numbers, *map(_number, parts)))


def read_spec(field: str, text: str, forms: Mapping[str, tuple[Any, ...]], rule: str) -> Spec:
    """Reads a text of one of some forms.

    Args:
      field: name of the field, for messages.
      text: the text.
      forms: name -> annotations of its numbers; "" for a number alone.
      rule: the forms in words, for the message: "it must be ...".

    Raises:
      ValueError: the text has none of the forms. One line.
    """
    try:
        spec = parse_spec(text)
    except ValueError:
        spec = Spec("", ())
    kinds = forms.get(spec.name, ())
    fits = spec.name in forms and len(kinds) == len(spec.numbers)
    if not fits or not all(map(allows, kinds, spec.numbers)):
        raise ValueError(f"{field} is {text!r}; {rule}")
    return spec


def as_tuples(entries: Any) -> Any:
    """Returns entries with each text of a name and its numbers as a tuple, ("norm_bound", 2); all
    others as they are."""
    if not isinstance(entries, tuple | list):
        return entries
    tuples = []
    for entry in entries:
        if isinstance(entry, str):
            with contextlib.suppress(ValueError):  # whoever builds the entry refuses it
                spec = parse_spec(entry)
                entry = (spec.name, *spec.numbers)
        tuples.append(entry)
    return tuple(tuples)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)

"""Strings of a name and numbers, such as "step/100/0.1".

Configs use them for objects made by functions of numbers; docs/running.md lists these fields.
"""

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from fedjax_ht.check.options import allows


class Spec(NamedTuple):
    """A name and its numbers.

    Attributes:
      name: the name; "" for a number alone, such as "1e9".
      numbers: the numbers; integers are int, others float.
    """

    name: str
    numbers: tuple[int | float, ...]


class AsTuples(NamedTuple):
    """Marks a field whose entries are names with numbers, as tuples or strings."""


Specs = Annotated[tuple[Any, ...], AsTuples()]


def parse_spec(text: str) -> Spec:
    """Parses "NAME/NUMBER/NUMBER", "NAME" or "NUMBER".

    Raises:
      ValueError: the string is empty, or a part after the first is not a number.

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
    """Parses a string that must have one of several forms.

    Args:
      field: name of the field, for messages.
      text: the string.
      forms: name -> annotations of its numbers; "" for a number alone.
      rule: description of the forms, for the message: "it must be ...".

    Raises:
      ValueError: the string has none of the forms. One line.
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
    """Converts strings of a name and numbers to tuples, e.g. ("norm_bound", 2).

    Other entries are unchanged.
    """
    if not isinstance(entries, tuple | list):
        return entries
    tuples = []
    for entry in entries:
        if isinstance(entry, str):
            with contextlib.suppress(ValueError):  # raised later, when the entry is built
                spec = parse_spec(entry)
                entry = (spec.name, *spec.numbers)
        tuples.append(entry)
    return tuple(tuples)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)

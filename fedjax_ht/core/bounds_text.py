"""Words for the values that an annotation allows, as in "it must be an integer of at least 1"."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from fedjax_ht.core.annotations import Within, allows, bounded, limits, scalar
from fedjax_ht.core.kinds import kind_text

NAMES = {bool: "True or False", str: "text", None: "None", types.NoneType: "None"}


def describe(annotation: Any, value: Any = None) -> str:
    """Describes the values that an annotation allows.

    Args:
      annotation: an annotation of a field, in one of the forms that `core.annotations` reads.
      value: a refused value; bounds that every number has are named only if it is beyond them.
    """
    kind, within = bounded(annotation)
    form, arguments = get_origin(kind), get_args(kind)
    if kind in (int, float):
        return _describe_number(kind, _told_bounds(kind, within, scalar(value)))
    if form in (Union, types.UnionType):
        return _either([describe(argument, value) for argument in arguments])
    if form is Literal:
        return _either([repr(argument) for argument in arguments])
    if form is tuple:
        return _describe_tuple(arguments, within, value)
    if form is Mapping:
        return f"a dict, name -> {describe(arguments[1])}"
    if form is Sequence:
        return f"a list, each {describe(arguments[0])}"
    return kind_text(kind) or NAMES.get(kind, "a value")


def choices(annotation: Any) -> list[Any]:
    """Returns the values of the choices (Literal) in an annotation."""
    kind, _ = bounded(annotation)
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    values = []
    for argument in get_args(kind):
        values += choices(argument)
    return values


def _either(texts: Sequence[str]) -> str:
    """Joins texts as "a, b or c", each once."""
    *first, last = dict.fromkeys(texts)
    if not first:
        return last
    return f"{', '.join(first)} or {last}"


def _told_bounds(kind: type, within: Within | None, number: int | float | None) -> Within:
    """Returns a number's bounds to name: those stated, and those of its type if it is beyond."""
    within, widest = within or Within(), limits(kind, None)
    if number is not None and within.least is None and number < widest.least:
        within = within._replace(least=widest.least)
    if number is not None and within.most is None and number > widest.most:
        within = within._replace(most=widest.most)
    return within


def _describe_number(kind: type, within: Within) -> str:
    name = "an integer" if kind is int else "a number"
    if within.least is not None and within.most is not None:
        return f"{name} from {_number(within.least)} to {_number(within.most)}"
    ends = {
        "at least": within.least,
        "above": within.above,
        "at most": within.most,
        "below": within.below,
    }
    text = " and ".join(f"{word} {_number(end)}" for word, end in ends.items() if end is not None)
    # "a number above 0 and at most 1", but "a number of at most 1"
    if text.startswith("at "):
        text = f"of {text}"
    return f"{name} {text}".rstrip()


def _describe_tuple(arguments: tuple, within: Within | None, value: Any) -> str:
    if arguments[-1] is not Ellipsis:
        entries = ", ".join(map(describe, arguments))
        if len(arguments) == 1:
            entries += ","
        return f"({entries})"
    refused = None
    if isinstance(value, tuple | list | np.ndarray):
        refused = next((entry for entry in value if not allows(arguments[0], entry)), None)
    text = "a tuple"
    if within:
        text += f" of at least {within.least}"
    return f"{text}, each {describe(arguments[0], refused)}"


def _number(end: int | float) -> str:
    if isinstance(end, float):
        return f"{end:g}"
    return str(end)

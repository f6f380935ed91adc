"""Converts typed sections of a config to the plain values of config files, and back.

A section is a frozen dataclass whose annotations bound its options (core/bounds.py). An option that
is not given is None in a section. Its plain value is another one, which config.json has had since
its first version; the annotation names it: `Annotated[Whole | None, NotGiven(0)]`.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fedjax_ht.core.annotations import Count, NotGiven, Whole, extra_of, hints_of
from fedjax_ht.core.bounds import check_value
from fedjax_ht.core.specs import AsTuples, as_tuples
from fedjax_ht.lab.config.former_names import unknown_field

S = TypeVar("S")


def to_plain(section: Any) -> dict[str, Any]:
    """Returns the plain values of a section; of sections in it, nested dictionaries."""
    values = {}
    for name, hint in hints_of(type(section)).items():
        value = getattr(section, name)
        marker = extra_of(hint, NotGiven)
        if dataclasses.is_dataclass(value):
            value = to_plain(value)
        elif value is None and marker is not None:
            value = marker.plain
        values[name] = value
    return values


def to_json(section: Any) -> dict[str, Any]:
    """Returns the plain values of a section as reading them from a JSON file returns them."""
    return json.loads(json.dumps(to_plain(section)))


def from_plain(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    """Builds a section from plain values; None is taken for an option that is not given, too.

    Args:
      kind: the section's dataclass.
      values: a plain value of each of its fields; others are left alone.
      prefix: text before a field's name in messages, such as "training.".

    Raises:
      ValueError: a value is not allowed, as `core.bounds.check_value` says. One line.
    """
    fields = {}
    for name, hint in hints_of(kind).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            fields[name] = from_plain(hint, values[name], f"{prefix}{name}.")
        else:
            fields[name] = _typed(f"{prefix}{name}", values[name], hint)
    return kind(**fields)


def changed(section: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Returns a section with other plain values of some fields; prefix and errors as of
    `from_plain`."""
    hints, fields = hints_of(type(section)), {}
    for name, value in values.items():
        if name not in hints:
            raise ValueError(unknown_field(f"{prefix}{name}", list(hints)))
        fields[name] = _typed(f"{prefix}{name}", value, hints[name])
    return dataclasses.replace(section, **fields)


def check_section(section: Any, prefix: str = "") -> None:
    """Raises a ValueError where a field has a value that it cannot have. One line."""
    for name, hint in hints_of(type(section)).items():
        value = getattr(section, name)
        check_value(f"{prefix}{name}", value, hint)
        if dataclasses.is_dataclass(value):
            check_section(value, f"{prefix}{name}.")


def check_names(kind: type, values: Mapping[str, Any]) -> None:
    """Raises a ValueError where plain values lack a field of `kind`, or have another one."""
    known = set(_leaves(to_plain(kind()), kind))
    present = set(_leaves(values, kind))
    if unexpected := sorted(present - known):
        raise ValueError(unknown_field(unexpected[0], known))
    if missing := sorted(known - present):
        raise ValueError(f"no config field {missing[0]!r}; start from fedjax_ht.base_config()")


def shared_fields(section: Any, kind: type) -> dict[str, Any]:
    """Returns the values of a section's fields that `kind` has by the same name.

    They are declared in both classes, and need no line in the function that makes one of the other.
    """
    names = hints_of(type(section)).keys() & hints_of(kind).keys()
    return {name: getattr(section, name) for name in names}


def plain_hint(hint: Any) -> Any:
    """Returns the annotation of a field's plain values."""
    marker = extra_of(hint, NotGiven)
    if marker is None:
        return hint
    kinds = tuple(kind for kind in get_args(get_args(hint)[0]) if kind is not NoneType)
    if kinds == (Count,) and marker.plain == 0:
        return Whole
    if get_origin(kinds[0]) is Literal:
        return Literal[(*get_args(kinds[0]), marker.plain)]
    return Union[kinds]  # noqa: UP007  (of a tuple that is not known here)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Returns a section's value for a plain one, after checking it."""
    if hasattr(value, "tolist"):  # NumPy's and jax's numbers, which JSON has not
        value = value.tolist()
    marker = extra_of(hint, NotGiven)
    if marker is not None and (value is None or _is_same(value, marker.plain)):
        return None
    if extra_of(hint, AsTuples) is not None:
        value = as_tuples(value)
    check_value(name, value, plain_hint(hint))
    if isinstance(value, Mapping):
        return {key: _with_tuples(each) for key, each in value.items()}
    return _with_tuples(value)


def _is_same(value: Any, plain: int | float | str) -> bool:
    """Compares a value with a plain one; False is not 0 here."""
    return not isinstance(value, bool) and isinstance(value, int | float | str) and value == plain


def _with_tuples(value: Any) -> Any:
    """Replaces lists by tuples, which JSON has not, on every level."""
    if isinstance(value, list | tuple):
        return tuple(_with_tuples(each) for each in value)
    return value


def _leaves(values: Mapping[str, Any], kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields the paths of all values. A mapping that is a field of `kind`, such as a method's
    options, is one value: whoever takes it knows its names."""
    hints = {} if kind is None else hints_of(kind)
    for name, value in values.items():
        inner = hints.get(name)
        if isinstance(value, Mapping) and (name not in hints or dataclasses.is_dataclass(inner)):
            yield from _leaves(value, inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"

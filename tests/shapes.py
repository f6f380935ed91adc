"""Checks calls of the library in tests against the dtypes and axes that it declares.

pyproject.toml gives `checked` to jaxtyping's plugin, which wraps all functions of the packages
named there. Each call has axes of its own; so has each NamedTuple among its values.
"""

import functools
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from beartype import beartype
from beartype.door import is_bearable
from beartype.vale import Is
from jaxtyping import AbstractArray, jaxtyped

F = TypeVar("F", bound=Callable)


def checked(function: F) -> F:
    """Makes a function check its arguments and its result, and the fields of NamedTuples there."""
    # A dataclass says itself, in one line, what is wrong with an option.
    if function.__name__ == "__init__":
        return function
    hints = function.__annotations__.items()
    function.__annotations__ = {name: _with_fields(hint) for name, hint in hints}
    return beartype(function)


def _with_fields(hint: Any) -> Any:
    """Returns an annotation that also asks for the arrays that its NamedTuples declare."""
    if isinstance(hint, type) and _arrays(hint):
        return Annotated[hint, Is[_fits]]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_with_fields, arguments))]  # noqa: UP007, of a number of them
    # Of entries of a list beartype would draw one by `random`, as no method may.
    if origin in (list, Sequence) or Ellipsis in arguments:
        return origin
    if origin in (dict, tuple):
        return origin[tuple(map(_with_fields, arguments))]
    return hint


@functools.cache
def _arrays(kind: type) -> dict[str, Any]:
    """Returns the annotations of a NamedTuple's fields that are of arrays, by name; none of other
    classes."""
    if not issubclass(kind, tuple) or not kind.__module__.startswith("fedjax_ht."):
        return {}
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: _with_fields(hint) for name, hint in hints if _has_arrays(hint)}


def _has_arrays(hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, AbstractArray) or bool(_arrays(hint))
    is_function = get_origin(hint) is Callable
    return not is_function and any(map(_has_arrays, get_args(hint)))


def _fits(value: Any) -> bool:
    """Returns True if arrays of a NamedTuple are of their types, and axes of one name of one length.

    Raises:
      TypeError: they are not.
    """
    hints = _arrays(type(value))
    with jaxtyped("context"):
        for name, field in zip(value._fields, value):
            if name in hints and not is_bearable(field, hints[name]):
                raise TypeError(f"{type(value).__name__}.{name} is {field!r}, not {hints[name]}")
    return True

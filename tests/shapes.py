"""Checks calls of the library in tests against the dtypes and axes that it declares.

pyproject.toml gives `checked` to jaxtyping's plugin, which wraps all functions of the packages
named there. Each call has axes of its own; so has each NamedTuple among its values.
"""

import functools
import types
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from beartype import beartype
from beartype.door import is_bearable
from beartype.vale import Is
from jaxtyping import jaxtyped

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
    """Returns an annotation that also asks for what the fields of its NamedTuples declare."""
    if _is_named_tuple(hint):
        return Annotated[hint, Is[_fits]]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_with_fields, arguments))]  # noqa: UP007, of a number of them
    if origin in (dict, list, tuple):
        return origin[tuple(map(_with_fields, arguments))]
    return hint


def _is_named_tuple(hint: Any) -> bool:
    is_tuple = isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")
    return is_tuple and hint.__module__.startswith("fedjax_ht.")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: _with_fields(hint) for name, hint in hints}


def _fits(value: Any) -> bool:
    """Returns whether the fields of a NamedTuple have the declared types, and axes of one name one
    length."""
    with jaxtyped("context"):
        for name, field in zip(value._fields, value):
            hint = _hints(type(value))[name]
            if not is_bearable(field, hint):
                raise TypeError(f"{type(value).__name__}.{name} is {field!r}, not {hint}")
    return True

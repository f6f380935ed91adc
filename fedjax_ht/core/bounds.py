"""Checks of options: their annotations, where they are documented, state the values they may have.

    @checked
    def fedfoo(
        training,
        weight: NonNegative = 1.0,
        steps: Count | None = None,
        variant: Literal["a", "b"] = "a",
    ): ...

`core.annotations` says which annotations are understood.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from fedjax_ht.core.annotations import (
    allows,
    annotations_of,
    hints_of,
    scalar,
    wrong_entry,
)
from fedjax_ht.core.bounds_text import choices, describe
from fedjax_ht.core.kinds import is_kind
from fedjax_ht.core.names import kind_of_value, meant, with_article

F = TypeVar("F", bound=Callable)

SHOWN = 100  # characters of a value in a message


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Refuses a value that its annotation does not allow.

    Raises:
      ValueError: the annotation does not allow the value. One line, such as "weight is nan; it must
        be a number of at least 0".
    """
    if allows(annotation, value):
        return
    place = wrong_entry(annotation, value)
    if place is not None:
        name, value, annotation = f"{name}[{place}]", value[place], get_args(annotation)[0]
    rule = f"it must be {describe(annotation, value)}"
    if isinstance(value, str):
        names = [choice for choice in choices(annotation) if isinstance(choice, str)]
        raise ValueError(f"{name} is {_shown(value)}{meant(value, names, rule)}")
    raise ValueError(f"{name} is {_shown(value)}; {rule}")


def check_fields(self: Any, prefix: str = "") -> None:
    """Checks the fields of a dataclass or a NamedTuple, as its `__post_init__` may.

    Args:
      self: the instance whose fields are checked.
      prefix: the text before each field's name in messages.

    Raises:
      ValueError: see `check_value`.
    """
    for name, annotation in hints_of(type(self)).items():
        check_value(f"{prefix}{name}", getattr(self, name), annotation)


def checked(function: F) -> F:
    """Makes a function refuse arguments that its annotations do not allow, see `check_value`.

    Example:
      >>> @fl.checked
      ... def mymethod(training, weight: fl.NonNegative = 1.0):
      ...     return weight
      >>> mymethod(None, weight=-1.0)
      Traceback (most recent call last):
      ...
      ValueError: weight is -1.0; it must be a number of at least 0
    """
    if hasattr(function, "checks_its_arguments"):
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            arguments = signature.bind(*args, **kwargs).arguments | kwargs
        except TypeError:  # an argument too many or too few: Python's message says it best
            return function(*args, **kwargs)
        for name, annotation in annotations_of(function).items():
            if name in arguments and not allows(annotation, arguments[name]):
                _refuse(function, name, arguments)
        return function(*args, **kwargs)

    marked: Any = call  # functions declare no attributes
    marked.checks_its_arguments = True
    return marked


def _refuse(function: Callable, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises the ValueError of `check_value`; of a value that another parameter takes, it ends with
    the order of the parameters."""
    annotations, kind = annotations_of(function), type(arguments[name])
    try:
        check_value(name, arguments[name], annotations[name])
    except ValueError as error:
        takers = [annotation for annotation in annotations.values() if _is_of(annotation, kind)]
        if not takers:
            raise
        parameters = inspect.signature(function).parameters.values()
        order = ", ".join(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        raise ValueError(f"{error}; the order is {function.__name__}({order})") from None


def _is_of(annotation: Any, kind: type) -> bool:
    """Returns whether an annotation is a kind, or a union with it."""
    return is_kind(kind) and kind in (annotation, *get_args(annotation))


def _shown(value: Any) -> str:
    """Writes a value for a message, on one line and not too long."""
    number = scalar(value)
    if inspect.isfunction(value):
        return f"the function {value.__name__}"
    if is_kind(type(value)):
        return with_article(type(value).__name__)
    text = " ".join(repr(value if number is None else number).split())
    if " at 0x" in text:  # objects that hold functions
        text = with_article(type(value).__name__)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}..." if isinstance(value, str) else kind_of_value(value)

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
from collections.abc import Callable
from typing import Any, TypeVar

from fedjax_ht.core.annotations import allows, annotations_of, hints_of, scalar
from fedjax_ht.core.bounds_text import choices, describe
from fedjax_ht.core.moved import moved_names
from fedjax_ht.core.names import meant

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
    rule = f"it must be {describe(annotation, value)}"
    if isinstance(value, str):
        names = [choice for choice in choices(annotation) if isinstance(choice, str)]
        raise ValueError(f"{name} is {_shown(value)}{meant(value, names, rule)}")
    raise ValueError(f"{name} is {_shown(value)}; {rule}")


def check_fields(self: Any, prefix: str = "") -> None:
    """Checks the fields of a dataclass or a NamedTuple, as its `__post_init__` may.

    Args:
      self: the instance.
      prefix: of the fields' names in messages.

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
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:  # an argument too many or too few: Python's message says it best
            return function(*args, **kwargs)
        for name, annotation in annotations_of(function).items():
            if name in arguments:
                check_value(name, arguments[name], annotation)
        return function(*args, **kwargs)

    marked: Any = call  # functions declare no attributes
    marked.checks_its_arguments = True
    return marked


def _shown(value: Any) -> str:
    """Writes a value for a message, on one line and not too long."""
    number = scalar(value)
    text = " ".join(repr(value if number is None else number).split())
    if " at 0x" in text:  # functions, and objects that hold them
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


__getattr__ = moved_names(__name__, {"NonNegative": "fedjax_ht.NonNegative"})

"""Registries: functions by name, as used in configs, and checks of user registrations."""

import collections
import functools
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedjax_ht.check.names import kind_of_value


class Registry(collections.UserDict[str, Any]):
    """Objects by name. An object given as "module:object" is imported at its first lookup."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, str):
            found = self.data[name] = pkgutil.resolve_name(found)
        return found


def check_registration(
    kind: str,
    name: str,
    function: Callable[..., Any],
    *,
    registered: Mapping[str, Callable[..., Any]],
    library: Collection[str],
    takes: tuple[str, ...],
) -> None:
    """Checks that a name is free, and that configs can call the function.

    A function with the same module and name may be registered again, since notebook cells and
    config files are run more than once.

    Args:
      kind: kind of thing, "method" or "partition"; messages begin with it.
      name: the name, of letters, digits and underscores, since config entries put colons, commas
        and plus signs around it.
      function: the function.
      registered: the registered functions by name.
      library: the library's own names, which are reserved.
      takes: names of the positional arguments that a config calls the function with.

    Raises:
      ValueError: the name is taken or has another form, or the function has another signature.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d]\w*", name):
        raise ValueError(
            f"{kind} name is {name!r}; it must be a string of letters, digits and underscores"
        )
    if name in library:
        raise ValueError(f"{kind} {name!r} is the library's own; register yours under another name")
    _check_signature(f"{kind} {name!r}", function, takes)
    if name in registered and _origin(registered[name]) != _origin(function):
        raise ValueError(
            f"{kind} {name!r} is already registered by {_origin(registered[name])}; register "
            f"{_origin(function)} under another name"
        )


def _check_signature(owner: str, function: Callable[..., Any], takes: tuple[str, ...]) -> None:
    """Raises ValueError unless an object can be called with these positional arguments alone."""
    form = f"({', '.join(takes)}, *, options with defaults)"
    if not callable(function):
        raise ValueError(
            f"{owner} is {kind_of_value(function)}; register the function {form} itself, not its "
            "result"
        )
    signature = inspect.signature(function)
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise ValueError(
            f"{owner}: {_origin(function)} takes {signature}; it must take {form}: {error}"
        ) from None


def _origin(function: Callable[..., Any]) -> str:
    """Returns a function's module and name, without its partial applications and wrappers."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}"

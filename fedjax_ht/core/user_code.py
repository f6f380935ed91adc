"""Code of a user's own, which a config names as "module:function"."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from fedjax_ht.core.names import meant


def is_own(name: str) -> bool:
    """Whether it is written as "module:function"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) is not None


def call_own(what: str, name: str, *arguments: Any) -> Any:
    """What a function of a module returns; the module lies in the current folder or is installed.

    Args:
      what: the function is for, to begin a message with: "generator".
      name: "module:function".
      *arguments: of the function.

    Raises:
      ValueError: there is no such module or function, or it raises something. One line.
    """
    place, _, function = name.partition(":")
    with _current_folder():
        try:
            module = importlib.import_module(place)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
                there = f"there is no module {error.name} in {os.getcwd()}, and none is installed"
                raise ValueError(f"{what} {name!r}: {there}") from error
            raise _failed(what, name, error) from error
        if not callable(make := getattr(module, function, None)):
            own = [
                key
                for key, value in vars(module).items()
                if getattr(value, "__module__", "") == place
            ]
            there = meant(function, own, f"its functions are {', '.join(own) or 'none'}")
            raise ValueError(
                f"{what} {name!r}: {module.__file__} has no function {function}{there}"
            )
        try:
            return make(*arguments)
        except Exception as error:
            raise _failed(what, name, error) from error


def _failed(what: str, name: str, error: Exception) -> ValueError:
    said = (str(error).splitlines() or [""])[0]
    return ValueError(f"{what} {name!r} raises {type(error).__name__}: {said}")


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Modules in the current folder are found, which a console script does not look for there."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)

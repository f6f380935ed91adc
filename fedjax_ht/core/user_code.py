"""Functions of a user's own modules, which a config names as "module:function", and the modules
beside a user's files."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fedjax_ht.core.names import meant


def names_user_function(name: str) -> bool:
    """Returns whether a name is written as "module:function"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) is not None


def call_user_function(purpose: str, name: str, *arguments: Any) -> Any:
    """Calls a function of a module in the current folder, or of one that is installed.

    Args:
      purpose: the function's purpose, such as "generator"; messages begin with it.
      name: the function's name, as "module:function".
      *arguments: the arguments that the function is called with.

    Returns:
      The function's result.

    Raises:
      ValueError: there is no such module or function, or it raises something. One line.
    """
    place, _, function_name = name.partition(":")
    with importable_from(os.getcwd()):
        function = _function(purpose, name, _module(purpose, name, place), function_name)
        try:
            return function(*arguments)
        except Exception as error:
            raise _failure(purpose, name, error) from error


def _module(purpose: str, name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # The module itself or a package around it is missing, not one that it imports.
        if f"{place}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{purpose} {name!r}: there is no module {error.name} in {os.getcwd()}, and none "
                "is installed"
            ) from error
        raise _failure(purpose, name, error) from error
    except Exception as error:
        raise _failure(purpose, name, error) from error


def _function(purpose: str, name: str, module: ModuleType, function_name: str) -> Any:
    function = getattr(module, function_name, None)
    if callable(function):
        return function
    known = []
    for key, value in vars(module).items():
        if getattr(value, "__module__", "") == module.__name__:
            known.append(key)
    hint = meant(function_name, known, f"its functions are {', '.join(known) or 'none'}")
    raise ValueError(f"{purpose} {name!r}: {module.__file__} has no function {function_name}{hint}")


def _failure(purpose: str, name: str, error: Exception) -> ValueError:
    first_line = (str(error).splitlines() or [""])[0]
    return ValueError(f"{purpose} {name!r} raises {type(error).__name__}: {first_line}")


@contextlib.contextmanager
def importable_from(folder: str) -> Iterator[None]:
    """Makes the modules in a folder importable within the block, which a console script does
    not."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)

"""Functions of user modules, which a config names as "module:function", and where to find them."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from fedjax_ht.check.names import meant

_FOLDERS: ContextVar[tuple[str, ...]] = ContextVar("folders of a user's modules", default=())
# None allows all names
_ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("code that may run", default=None)


OBJECT = "object:"
"""Prefix of names of objects passed from Python, in a config and in a run's folder."""


def names_object(name: str) -> bool:
    """Returns whether a name stands for an object passed from Python."""
    return name.startswith(OBJECT)


def names_user_function(name: str) -> bool:
    """Returns whether a name has the form "module:function"."""
    return (
        not names_object(name)
        and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) is not None
    )


@contextlib.contextmanager
def user_modules_in(*folders: str) -> Iterator[None]:
    """Within the block, searches modules of a "module:function" in these folders first.

    The current folder comes after them. An example is the folder of the config file with the name.
    """
    token = _FOLDERS.set((*folders, *_FOLDERS.get()))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


@contextlib.contextmanager
def trusting(trust: bool, *names: str) -> Iterator[None]:
    """Without `trust`, the block imports no user code except `names`.

    Untrusted run folders are read in such a block.
    """
    before = _ALLOWED.get()
    allowed = before
    if not trust:
        allowed = frozenset(names) if before is None else before & frozenset(names)
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def refuse_code(names: Collection[str]) -> None:
    """Raises ValueError for user code that may not be imported here, see `trusting`."""
    allowed = _ALLOWED.get()
    refused = [] if allowed is None else sorted(set(names) - allowed)
    if refused:
        raise ValueError(
            f"the config names {', '.join(refused)}, which would be imported from "
            f"{' or '.join(module_folders())} or an installed package, and run; if you trust this "
            "code, allow it with --trust (trust=True from Python)"
        )


def user_function(purpose: str, name: str, hint: str = "") -> Callable[..., Any]:
    """Returns a user-defined function.

    Its module is searched in the folders of `user_modules_in`, in the current folder, and among
    installed ones.

    Args:
      purpose: the function's purpose, such as "generator"; messages begin with it.
      name: the function's name, as "module:function".
      hint: end of the message if there is no such module, such as "; did you mean 'x'?".

    Raises:
      ValueError: there is no such module or function, the module raises an exception, or it may not
        be imported (`trusting`). One line.
    """
    refuse_code([name])
    place, _, function_name = name.partition(":")
    with importable_from(*module_folders()):
        module = _module(purpose, name, place, hint)
    return _function(purpose, name, module, function_name)


def call_user_function(purpose: str, name: str, *arguments: Any) -> Any:
    """Calls the function that `user_function` returns; its folders are importable meanwhile.

    Args:
      purpose: the function's purpose, such as "generator"; messages begin with it.
      name: the function's name, as "module:function".
      *arguments: the function's arguments.

    Returns:
      The function's result.

    Raises:
      ValueError: there is no such module or function, it may not be imported (`trusting`), or it
        raises an exception. One line.
    """
    function = user_function(purpose, name)
    with importable_from(*module_folders()):
        try:
            return function(*arguments)
        except Exception as error:
            raise failure(purpose, name, error) from error


def module_folders() -> list[str]:
    """Returns the folders in which user modules are searched, in order."""
    return list(dict.fromkeys([*_FOLDERS.get(), os.getcwd()]))


def user_file(name: str) -> str:
    """Returns the file of a "module:function"; "" before its import, and without a file."""
    return getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) or ""


def user_place(name: str) -> str:
    """Returns the top-level file or package folder of an imported "module:function"; else ""."""
    module = sys.modules.get(name.partition(":")[0].partition(".")[0])
    file = getattr(module, "__file__", None)
    if not file or not names_user_function(name):
        return ""
    return os.path.dirname(file) if hasattr(module, "__path__") else file


def _module(purpose: str, name: str, place: str, hint: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # The module itself or its package is missing, not one that it imports.
        if f"{place}.".startswith(f"{error.name}."):
            folders = " or ".join(module_folders())
            raise ValueError(
                f"{purpose} {name!r}: no module {error.name} in {folders} or installed{hint}"
            ) from error
        raise failure(purpose, name, error) from error
    except Exception as error:
        raise failure(purpose, name, error) from error


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


def failure(purpose: str, name: str, error: Exception) -> ValueError:
    """Returns an error of user code as a one-line ValueError."""
    first_line = (str(error).splitlines() or [""])[0]
    return ValueError(f"{purpose} {name!r} raises {type(error).__name__}: {first_line}")


@contextlib.contextmanager
def importable_from(*folders: str) -> Iterator[None]:
    """Makes the modules in folders importable within the block; the first folder has precedence.

    By itself a console script does not import from the current folder.
    """
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)

"""Code of a user's own, which a config names as "module:function"."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from fedjax_ht.core.names import meant


def own_function(named: str) -> Callable[..., Any]:
    """The function that "package.module:function" names, of a module in the current folder or an installed one.

    Raises:
      ValueError: there is no such module or function, or the module raises. One line.
    """
    path, _, name = named.partition(":")
    if os.getcwd() not in sys.path:  # a console script's path begins with its own folder
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(path)
    except Exception as error:
        raise ValueError(f"{named}: importing {path} says {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = [word for word, value in vars(module).items() if callable(value) and word[0] != "_"]
        raise ValueError(f"{named}: there is no function {name!r}{meant(name, there, f'in {module.__file__}')}")
    return found


def called(named: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns; whatever it raises is one line.

    Raises:
      ValueError: it raises.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise ValueError(f"{named} says {type(error).__name__}: {error}") from error

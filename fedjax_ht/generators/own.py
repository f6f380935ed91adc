"""A user's own generator by name, "module:function"."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator

from fedjax_ht.core.names import meant
from fedjax_ht.generators.base import Generator


def is_own(name: str) -> bool:
    """Whether it is written as "module:function"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) is not None


def open_own(name: str) -> Generator:
    """What function() of a module returns; the module lies in the current folder or is installed.

    Raises:
      ValueError: there is no such module or function, it raises something, or returns something else. One line.
    """
    place, _, function = name.partition(":")
    with _current_folder():
        try:
            module = importlib.import_module(place)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
                there = f"there is no module {error.name} in {os.getcwd()}, and none is installed"
                raise ValueError(f"generator {name!r}: {there}") from error
            raise _failed(name, error) from error
        if not callable(make := getattr(module, function, None)):
            own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == place]
            there = meant(function, own, f"its functions are {', '.join(own) or 'none'}")
            raise ValueError(f"generator {name!r}: {module.__file__} has no function {function}{there}")
        try:
            made = make()
        except Exception as error:
            raise _failed(name, error) from error
    if not isinstance(made, Generator):
        raise ValueError(f"generator {name!r} returns {type(made).__name__}; it must return a fedjax_ht.Generator")
    return made


def _failed(name: str, error: Exception) -> ValueError:
    said = (str(error).splitlines() or [""])[0]
    return ValueError(f"generator {name!r} raises {type(error).__name__}: {said}")


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Modules in the current folder are found, which a console script does not look for there."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.remove(os.getcwd())

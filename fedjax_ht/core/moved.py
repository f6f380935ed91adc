"""Names that the documentation had at another place, for one more release."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved_names(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a module whose names have moved.

    Args:
      module: the name of the module that had them.
      places: by the name that a module had, where the object is now, as "module.name".

    Returns:
      A function that returns the object of a name with a DeprecationWarning, and raises
      AttributeError for names that are not in `places`.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place = places[name]
        # 2: the line that imports or reads the name
        warnings.warn(f"{module}.{name} is {place} now", DeprecationWarning, stacklevel=2)
        parent, _, attribute = place.rpartition(".")
        return getattr(importlib.import_module(parent), attribute)

    return find

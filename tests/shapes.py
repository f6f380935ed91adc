"""Checks calls of `core` in tests against the dtypes and axes that its signatures declare.

Losses and array functions are checked by jaxtyping's plugin of pytest (pyproject.toml). It wraps
inner functions as well, each time that they are made: of `core`, whose functions make others in
every trace, this module wraps those alone that stand at the top of a module, and looks into the
NamedTuples that they take and return. Each call has axes of its own, and so has each NamedTuple.
What is imported after this module is checked.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tests.beartype_draws  # noqa: F401, before beartype

# isort: split
from beartype import beartype
from beartype.door import is_bearable
from beartype.vale import Is
from jaxtyping import AbstractArray, jaxtyped

MODULES = (
    "aggregation",
    "batches",
    "bucket",
    "context",
    "counts",
    "evaluation",
    "executor",
    "keys",
    "local_training",
    "mesh",
    "positions",
    "prediction_counts",
    "reductions",
    "round",
    "server_training",
    "stages",
    "states",
    "statistics",
    "trees",
    "wire",
)
"""The modules of `core` whose functions take or return arrays."""


class _CheckedModules(importlib.abc.MetaPathFinder):
    """Wraps the functions of `MODULES` as soon as they are imported, before anyone has them."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.rpartition(".")
        if package != "fedjax_ht.core" or name not in MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module):
            run(module)
            _check_functions(module)

        loader.exec_module = exec_module
        return spec


def _check_functions(module: types.ModuleType) -> None:
    """Replaces a module's functions; those that a decorator has wrapped stay, it may refuse first."""
    for name, function in list(vars(module).items()):
        is_own = inspect.isfunction(function) and function.__module__ == module.__name__
        if is_own and not hasattr(function, "__wrapped__"):
            setattr(module, name, jaxtyped(function, typechecker=_checked))


def _checked(function: Callable) -> Callable:
    """Makes a function check its arguments and result, and the arrays of NamedTuples there."""
    hints = function.__annotations__.items()
    function.__annotations__ = {name: _with_fields(hint) for name, hint in hints}
    return beartype(function)


def _with_fields(hint: Any) -> Any:
    """Returns an annotation that also asks for the arrays that its NamedTuples declare."""
    if isinstance(hint, type) and _arrays(hint):
        return Annotated[hint, Is[_fits]]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_with_fields, arguments))]  # noqa: UP007, of a number of them
    # Of entries of a list beartype would draw one by `random`, as no method may.
    if origin in (list, Sequence) or Ellipsis in arguments:
        return origin
    if origin in (dict, tuple):
        return origin[tuple(map(_with_fields, arguments))]
    return hint


@functools.cache
def _arrays(kind: type) -> dict[str, Any]:
    """Returns the annotations of a NamedTuple's fields that are of arrays, by name."""
    if not issubclass(kind, tuple) or not kind.__module__.startswith("fedjax_ht."):
        return {}
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: _with_fields(hint) for name, hint in hints if _has_arrays(hint)}


def _has_arrays(hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, AbstractArray) or bool(_arrays(hint))
    is_function = get_origin(hint) is Callable
    return not is_function and any(map(_has_arrays, get_args(hint)))


def _fits(value: Any) -> bool:
    """Returns True if arrays of a NamedTuple are of their types, and axes of one name of one length.

    Raises:
      TypeError: they are not.
    """
    hints = _arrays(type(value))
    with jaxtyped("context"):
        for name, field in zip(value._fields, value):
            if name in hints and not is_bearable(field, hints[name]):
                raise TypeError(f"{type(value).__name__}.{name} is {field!r}, not {hints[name]}")
    return True


sys.meta_path.insert(0, _CheckedModules())

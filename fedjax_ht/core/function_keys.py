"""Keys of functions: functions with equal keys do the same, whenever they were made.

A factory that is called twice with equal arguments returns new closures with the same code and
captured values. A key contains these. It identifies compiled programs (`simulation.engine`),
whereas `jax.jit` would recompile for the second closure.
"""

import dataclasses
import enum
import functools
import hashlib
import operator
import sys
import sysconfig
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_PLAIN = (str, bytes, bool, int, complex, type(None), type(...), types.CodeType)
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
# folders of installed packages, including those inherited from the system or another environment
_INSTALLED = frozenset(["site-packages", "dist-packages"])
_PACKAGE = __name__.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A value hashed and compared by its `key_of`, e.g. as an argument of a cached function."""

    value: Any = dataclasses.field(compare=False)
    key: Hashable


def keyed(value: Any) -> Keyed:
    """Returns a value with its key."""
    return Keyed(value, key_of(value))


def key_of(value: Any) -> Hashable:
    """Returns a key of a value; values with equal keys are indistinguishable.

    * Functions: code, defaults and captured values; in user modules, also the globals that the code
      names. For installed packages, globals are ignored.
    * Arrays: shape, dtype and content.
    * Containers, dataclasses (the fields that equality compares) and objects of user-defined
      classes: class and content.
    * Numbers and strings: themselves; 0.0 is not -0.0, and 1 is neither 1.0 nor True.
    * Anything else: the identity of the object.
    """
    return _Walk(as_text=False).of(value)


def checksum_of(value: Any) -> str:
    """Returns a SHA-256 that identifies a value across processes.

    It covers what `key_of` covers. Functions and classes of installed packages are identified by
    their names and captured values, those of user modules also by their code. An object with
    unknown content is identified by its class.
    """
    return hashlib.sha256(repr(_Walk(as_text=True).of(value)).encode()).hexdigest()


def sum_of_arrays(arrays: Iterable[Any]) -> str:
    """Returns a SHA-256 of the dtypes, shapes and contents of arrays, in order.

    Each array has at least one axis, and may be larger than the memory.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        for start in range(0, len(array), 4096):
            digest.update(np.asarray(array[start : start + 4096]).tobytes())
    return digest.hexdigest()


class _Same:
    """Compares an object by identity, whatever its class defines, and keeps it alive."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class _Walk:
    """A walk through a value; it tracks visited objects, since functions refer to themselves.

    Args:
      as_text: True makes nested tuples of strings that do not depend on the process; False makes a
        key.
    """

    def __init__(self, as_text: bool) -> None:
        self._as_text = as_text
        self._places: dict[int, int] = {}  # id of an object -> number of its first visit
        self._alive: list[Any] = []  # keeps visited objects alive, so that no id is reused

    def of(self, value: Any) -> Any:
        """Returns the key or the strings of the value, or of a part of it."""
        as_text = self._as_text
        if as_text and isinstance(value, types.CodeType):  # without file name and line numbers
            constants = tuple(map(self.of, value.co_consts))
            return value.co_name, value.co_code.hex(), value.co_names, constants
        if isinstance(value, float):
            return value.hex() if as_text else ("float", type(value), float(value).hex())
        if isinstance(value, _PLAIN):
            return repr(value) if as_text else (type(value), value)
        if isinstance(value, _Same) and not as_text:
            return value
        if isinstance(value, type) and not _is_own(value.__module__):
            return _name(value) if as_text else value
        if id(value) in self._places:
            place = self._places[id(value)]
            return f"visited {place}" if as_text else ("visited", place)
        self._places[id(value)] = len(self._places)
        self._alive.append(value)
        kind = _name(type(value)) if as_text else self.of(type(value))
        return kind, self._content(value)

    def _content(self, value: Any) -> Any:
        if self._as_text and isinstance(value, enum.Enum):
            return value.name
        if self._as_text and isinstance(value, types.FunctionType):
            wrapped = getattr(value, "__wrapped__", None)
            if wrapped is not None:
                return self.of(wrapped)  # the decorator's own state may change, e.g. count calls
            if not _is_own(value.__module__):
                cells = map(self.of, value.__closure__ or ())
                return value.__module__, value.__qualname__, *cells
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _array_text(value) if self._as_text else _array_key(value)
        if isinstance(value, set | frozenset):
            if self._as_text:
                return sorted(repr(_Walk(as_text=True).of(each)) for each in value)
            return frozenset(map(self.of, value))
        parts = _parts(value)
        if parts is None:
            return () if self._as_text else _Same(value)
        return tuple(map(self.of, parts))


def _name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def _array_text(array: Any) -> str:
    shape, *rest = _array_key(array)
    return "unknown" if isinstance(shape, _Same) else f"{shape} {rest[0]} {rest[1].hex()}"


def _parts(value: Any) -> Iterable | None:
    """Returns the parts that distinguish a value from others of its class; None if unknown."""
    for kind, parts in _PARTS:
        if isinstance(value, kind):
            return parts(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, x.name) for x in dataclasses.fields(value) if x.compare]
    if _is_own(type(value).__module__) and hasattr(value, "__dict__"):
        return vars(value).items()
    return None


def _function_parts(function: types.FunctionType) -> list[Any]:
    parts = [function.__module__, function.__code__, function.__defaults__, function.__kwdefaults__]
    parts += function.__closure__ or ()
    if _is_own(function.__module__):
        parts += _named_globals(function.__code__, function.__globals__)
    return parts


def _class_parts(of: type) -> list[Any]:
    """Returns a user-defined class, by identity, with its bases and functions.

    The functions are included because their globals may change.
    """
    return [_Same(of), *of.__bases__, *filter(callable, vars(of).values())]


def _cell_parts(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not filled yet
        return []


def _wrapped(function: Any) -> list[Any]:
    return [function.__wrapped__]


_PARTS: tuple[tuple[Any, Callable[[Any], Iterable]], ...] = (
    (types.FunctionType, _function_parts),
    (types.MethodType, operator.attrgetter("__func__", "__self__")),
    (functools.partial, operator.attrgetter("func", "args", "keywords")),
    (type, _class_parts),  # before the next: a class may have the attributes of `Wrapped`
    (jax.stages.Wrapped, _wrapped),  # by jax.jit
    (jax.ShapeDtypeStruct, operator.attrgetter("shape", "dtype")),
    (types.CellType, _cell_parts),
    (Mapping, operator.methodcaller("items")),
    (list | tuple, iter),
)


def _array_key(array: Any) -> tuple:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    values = np.ascontiguousarray(array)
    if values.dtype == object:
        return (_Same(array),)
    return values.shape, values.dtype.str, hashlib.sha256(values.tobytes()).digest()


def _named_globals(code: types.CodeType, names: Mapping[str, Any]) -> list[Any]:
    """Returns the globals that code names; for user modules, the attributes that it names."""
    named = []
    for name in code.co_names:
        if name not in names:
            continue
        value = names[name]
        if not isinstance(value, types.ModuleType):
            named.append((name, value))
        elif _is_own(value.__name__):
            named += [(x, vars(value)[x]) for x in code.co_names if x in vars(value)]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # of a nested function
            named += _named_globals(constant, names)
    return named


@functools.cache
def _is_own(module: str | None) -> bool:
    """Returns whether a module is user code: neither installed nor part of this library."""
    if module == "__main__":  # a script or a notebook
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or str(module).partition(".")[0] == _PACKAGE:
        return False
    if not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    return not any(Path(file).is_relative_to(folder) for folder in _STANDARD)

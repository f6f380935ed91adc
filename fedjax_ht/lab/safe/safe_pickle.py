"""Reads pickled NumPy data without executing anything that the pickle asks for.

A pickle is a program: unpickling calls whatever it names. Here the few NumPy names that array
pickles use are recorded instead of called, and every other name is rejected; the arrays are then
built from the checked records. (An allow-list of the real NumPy functions would not suffice: a
forged dtype state makes NumPy treat bytes as pointers.) torch's pickles are recorded by the same
unpickler, in `safe.torch_files` and `generators.stylegan3_files`.

Three cheap limits stop a pickle that asks for too much: on its steps and names (`safe.limits`), on
keys, and on bytes, of which no more are read than exist. Endless nesting raises Python's
RecursionError, which becomes a ValueError like any damage.
"""

import contextlib
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.arrays import read_npy, read_npy_header
from fedjax_ht.lab.safe.bounded import size_of


class Call:
    """A call that a pickle asks for: recorded, never executed."""

    args: tuple
    state: Any

    def __new__(cls, *args, **_):  # not __init__, which a pickle may bypass
        self = super().__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state):
        self.state = state


class Dict(dict):
    """A dictionary of any subclass, of which only the entries count."""

    def __init__(self, entries=(), **_):
        pairs = entries.items() if isinstance(entries, dict) else entries
        pairs = [(key, value) for key, value in pairs]
        check_keys(key for key, _ in pairs)
        super().__init__(pairs)

    def __setstate__(self, state):
        pass


_KEYS = (str, bytes, int, float, type(None), Call, type)
_KEY_PARTS = 16  # most parts of a tuple as a key


def check_keys(keys: Iterable[Any]) -> None:
    """Rejects keys of a dict that are not plain values.

    Raises:
      ValueError: a key is neither a plain value nor a short tuple of them.
    """
    for key in keys:
        parts = key if isinstance(key, tuple) and len(key) <= _KEY_PARTS else (key,)
        for part in parts:
            # hashing nested tuples may end the process or take arbitrarily long, and large integers
            # can be made to collide
            is_large = isinstance(part, int) and abs(part) >= 1 << 63
            if is_large or not isinstance(part, _KEYS):
                kind = type(part).__name__
                raise ValueError(
                    f"the pickle has a key of type {kind}; keys must be strings or 64-bit numbers"
                )


class _Whole:
    """A pickle's bytes; asking for more than exist allocates nothing."""

    def __init__(self, file: BinaryIO):
        self.file, self.left = file, size_of(file) - file.tell()

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0 or size < 0:
            raise EOFError("it ends too early")
        return self.file.read(size)

    def readline(self) -> bytes:
        line = self.file.readline()
        self.left -= len(line)
        return line


class _Handlers(dict):
    """Opcode -> its handler, for at most `limits.PICKLE_STEPS` lookups."""

    steps = 0

    def __getitem__(self, opcode):
        self.steps += 1
        if self.steps > limits.PICKLE_STEPS:
            limits.keep("the pickle", self.steps, limits.PICKLE_STEPS, "steps")
        return super().__getitem__(opcode)


# the Python unpickler: the one in C allocates and hashes whatever a pickle asks for
class Recorder(pickle._Unpickler):
    """Reads plain values, and records the calls that a pickle makes of names in `allowed`.

    Every other name is rejected.

    Args:
      file: open file with the pickle.
      allowed: (module, name) -> type that records the calls of that name, mostly `Call`.
      content: kind of values that the pickle may hold, for the error.
      other_names: type that records calls of any other name, instead of rejecting it.
    """

    def __init__(
        self,
        file: BinaryIO,
        allowed: Mapping[tuple[str, str], type],
        content: str,
        other_names: type | None = None,
    ):
        self.whole, self.names = _Whole(file), 0
        super().__init__(self.whole, encoding="latin1")
        self.allowed, self.content, self.other_names = allowed, content, other_names
        self.dispatch = _Handlers(_DISPATCH)  # pyright: ignore[reportAttributeAccessIssue]

    def find_class(self, module, name):
        self.names += 1
        limits.keep("the pickle", self.names, limits.PICKLE_NAMES, "names")
        recorder = self.allowed.get((module, name), self.other_names)
        if recorder is None:
            raise ValueError(
                f"the pickle names {f'{module}.{name}'[:100]}; only {self.content} are allowed"
            )
        # A new class each time, so that a pickle cannot alter a shared one.
        return type(name, (recorder,), {})


def _check_stack(handler, keys: slice):
    """Wraps a handler: first checks the values on the stack that it will hash."""

    def checked(self):
        check_keys(self.stack[keys])
        handler(self)

    return checked


def _refuse_long(self):
    raise ValueError("the pickle has a number of more than 255 bytes")


def _load_bytearray8(self):
    self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))


_DISPATCH = dict(pickle._Unpickler.dispatch)
_DISPATCH |= {pickle.LONG4[0]: _refuse_long, pickle.BYTEARRAY8[0]: _load_bytearray8}
_DISPATCH |= {
    opcode[0]: _check_stack(_DISPATCH[opcode[0]], keys)
    for opcode, keys in (
        (pickle.SETITEM, slice(-2, -1)),
        (pickle.SETITEMS, slice(None, None, 2)),
        (pickle.DICT, slice(None, None, 2)),
        (pickle.ADDITEMS, slice(None)),
        (pickle.FROZENSET, slice(None)),
    )
}


@contextlib.contextmanager
def damage_is_a_value_error() -> Iterator[None]:
    """Turns any error of the block into a ValueError: a damaged pickle can raise any of them."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"damaged pickle: {type(error).__name__}: {str(error)[:200]}") from error


_NAMES = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")  # numpy 1 and numpy 2
    for module, name in (
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    )
}
NUMPY_CALLS = dict.fromkeys(_NAMES, Call)  # for `Recorder`; `build` understands them
_PLAIN_DTYPE = re.compile(r"[biufc]\d{1,2}|O8?")


def load_pickle(file: BinaryIO) -> Any:
    """Loads the plain values and NumPy arrays in `file`; Python 2 strings are read as latin-1.

    Returns:
      Dicts, lists, tuples, numbers, strings, bytes, and arrays of numbers or of such values.

    Raises:
      ValueError: the pickle names anything but numpy's array functions, or is damaged.
    """
    with damage_is_a_value_error():
        return build(Recorder(file, NUMPY_CALLS, "numpy arrays and plain values").load())


def load_npy(file: BinaryIO) -> Any:
    """Loads the array in an .npy file.

    A 0-d object array, as which NumPy saves a dict, gives the object itself.

    Raises:
      ValueError: not an .npy file, damaged, or a pickle that `load_pickle` rejects.
    """
    *_, dtype = read_npy_header(file)
    if not dtype.hasobject:
        file.seek(0)
        return read_npy(file, size_of(file))
    value = load_pickle(file)
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def build(value: Any) -> Any:
    """Builds plain values and arrays from plain values and recorded NumPy arrays.

    A value that occurs in several places is built once, and stays one object.

    Raises:
      ValueError: it holds anything else.
      RecursionError: values are nested too deeply.
    """
    return _build(value, {})


_PLAIN = {int, float, bool, str, bytes, type(None)}


def _build(value: Any, done: dict[int, Any]) -> Any:
    """Builds a value; `done` maps the id of a record to its built value."""
    if isinstance(value, type):
        raise ValueError(f"the pickle holds the bare name {value.__name__}, not an array")
    if not isinstance(value, dict | list | tuple | Call):
        return value
    if id(value) not in done:
        done[id(value)] = _build_new(value, done)
    return done[id(value)]


def _build_new(value: dict | list | tuple | Call, done: dict[int, Any]) -> Any:
    if isinstance(value, Call):
        return _build_call(value, done)
    if isinstance(value, dict):
        return {_build(key, done): _build(entry, done) for key, entry in value.items()}
    if set(map(type, value)) <= _PLAIN:  # such as a text of tokens, without a loop in Python
        return type(value)(value)
    return type(value)(_build(entry, done) for entry in value)


def _build_call(call: Call, done: dict[int, Any]) -> Any:
    match type(call).__name__, call.args, call.state:
        case "_reconstruct", _, (_, shape, dtype, fortran, data):
            return _array(shape, _dtype(dtype), "F" if fortran else "C", _build(data, done))
        case "_frombuffer", (data, dtype, shape, order), None:
            return _array(shape, _dtype(dtype), order, _build(data, done))
        case "scalar", (dtype, data), None:
            return _array((), _dtype(dtype), "C", _build(data, done))[()]
        case "encode", (str() as text, "latin1"), None:  # how protocol 2 writes bytes
            return text.encode("latin1")
    raise ValueError(
        f"the pickle uses numpy's {type(call).__name__} in a form that numpy never writes"
    )


def _dtype(call: Call) -> np.dtype:
    match call:
        case Call(args=(str() as code, *_), state=(_, str() as order, None, None, None, *_)) if (
            _PLAIN_DTYPE.fullmatch(code) and order in ("<", ">", "=", "|")
        ):
            return np.dtype(code).newbyteorder(order)
    raise ValueError("the pickle holds an array of neither numbers nor plain objects")


def _array(shape: tuple[int, ...], dtype: np.dtype, order: Any, data: Any) -> np.ndarray:
    if dtype.hasobject:
        if not isinstance(data, list):
            raise ValueError("the pickle holds an object array whose content is not a list")
        flat = np.empty(len(data), object)
        for i, item in enumerate(data):
            flat[i] = item
    else:
        flat = np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, dtype)
    return flat.reshape(shape, order=order)

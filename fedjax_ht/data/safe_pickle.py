"""Reads pickled numpy data without running anything that the pickle asks for.

A pickle is a program: unpickling calls whatever it names. Here the few numpy names that array pickles use are
recorded instead of called, and every other name is refused; the arrays are then built from the checked records.
(An allow-list of the real numpy functions would not do: a forged dtype state makes numpy take bytes for pointers.)
torch's pickles are recorded by the same unpickler, in `io.torch_files` and `generators.snapshot`.
"""

import contextlib
import io
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np


class Call:
    """A call that a pickle asks for, recorded and not done."""

    def __new__(cls, *args, **_):  # not __init__, which a pickle may pass by
        self = super().__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state):
        self.state = state


class Dict(dict):
    """A dictionary of a class of its own, of which only the entries count."""

    def __setstate__(self, state):
        pass


class Recorder(pickle.Unpickler):
    """Gives plain values as they are; the names in `allowed` are of the type given there, every other is refused.

    Args:
      file: the pickle.
      allowed: (module, name) -> a type that records what the pickle does with that name, mostly `Call`.
      content: what the pickle may hold, for the error.
      others: a type that records what is done with any other name, instead of refusing it.
    """

    def __init__(
        self, file: BinaryIO, allowed: Mapping[tuple[str, str], type], content: str, others: type | None = None
    ):
        super().__init__(file, encoding="latin1")
        self.allowed, self.content, self.others = allowed, content, others

    def find_class(self, module, name):
        recorder = self.allowed.get((module, name), self.others)
        if recorder is None:
            raise ValueError(f"the pickle names {module}.{name}; only {self.content} are allowed")
        # A new class each time, so that a pickle cannot alter a shared one.
        return type(name, (recorder,), {})


@contextlib.contextmanager
def damage_is_a_value_error() -> Iterator[None]:
    """For reading a pickle: a damaged one can raise nearly anything."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"damaged pickle: {type(error).__name__}: {error}") from error


_NAMES = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")  # numpy 1 and numpy 2
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}
NUMPY_CALLS = dict.fromkeys(_NAMES, Call)  # for `Recorder`; `build` understands them
_PLAIN_DTYPE = re.compile(r"[biufc]\d{1,2}|O8?")


def load_pickle(file: BinaryIO) -> Any:
    """The plain values and numpy arrays pickled in `file`; Python 2 strings are read as latin-1.

    Returns:
      dicts, lists, tuples, numbers, strings, bytes, and arrays of numbers or of such values.

    Raises:
      ValueError: the pickle names anything but numpy's array functions, or is damaged.
    """
    with damage_is_a_value_error():
        return build(Recorder(file, NUMPY_CALLS, "numpy arrays and plain values").load())


def load_npy(file: BinaryIO) -> Any:
    """The array in an .npy file; a 0-d object array, which is how numpy saves a dict, gives the object itself.

    Raises:
      ValueError: not an .npy file, damaged, or a pickle that `load_pickle` refuses.
    """
    content = io.BytesIO(file.read())
    version = np.lib.format.read_magic(content)
    if version == (1, 0):
        _, _, dtype = np.lib.format.read_array_header_1_0(content)
    elif version == (2, 0):
        _, _, dtype = np.lib.format.read_array_header_2_0(content)
    else:
        raise ValueError(f".npy format version {version}; versions (1, 0) and (2, 0) are read")
    if not dtype.hasobject:
        content.seek(0)
        return np.lib.format.read_array(content, allow_pickle=False)
    value = load_pickle(content)
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def build(value: Any) -> Any:
    """Plain values and recorded numpy arrays -> the values and arrays; anything else is a ValueError."""
    return _build(value, {})


def _build(value: Any, done: dict[int, Any]) -> Any:
    """`value` with its recorded calls replaced by what they stand for; `done` keeps what is shared from growing."""
    if not isinstance(value, dict | list | tuple | Call):
        if isinstance(value, type):
            raise ValueError(f"the pickle holds the bare name {value.__name__}, not an array")
        return value
    if id(value) not in done:
        if isinstance(value, dict):
            result = {_build(k, done): _build(v, done) for k, v in value.items()}
        elif isinstance(value, Call):
            result = _build_call(value, done)
        else:
            result = type(value)(_build(v, done) for v in value)
        done[id(value)] = result
    return done[id(value)]


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
    raise ValueError(f"the pickle uses numpy's {type(call).__name__} in a form that no array is written in")


def _dtype(call: Call) -> np.dtype:
    match call:
        case Call(args=(str() as code, *_), state=(_, str() as order, None, None, None, *_)) if _PLAIN_DTYPE.fullmatch(
            code
        ) and order in ("<", ">", "=", "|"):
            return np.dtype(code).newbyteorder(order)
    raise ValueError("the pickle holds an array that is neither of numbers nor of plain objects")


def _array(shape: tuple[int, ...], dtype: np.dtype, order: str, data: Any) -> np.ndarray:
    if dtype.hasobject:
        if not isinstance(data, list):
            raise ValueError("the pickle holds an object array whose content is not a list")
        flat = np.empty(len(data), object)
        for i, item in enumerate(data):
            flat[i] = item
    else:
        flat = np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, dtype)
    return flat.reshape(shape, order=order)

"""Builds the tensors that torch's pickles describe: a storage, an offset, a shape and strides."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.lab.safe.safe_pickle import Call, Dict

STORAGES = {
    "BFloat16Storage": jnp.bfloat16,
    "BoolStorage": np.bool_,
    "ByteStorage": np.uint8,
    "CharStorage": np.int8,
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "IntStorage": np.int32,
    "LongStorage": np.int64,
    "ShortStorage": np.int16,
}

TENSOR_CALLS = {  # for a `Recorder`; `build_tensor` understands what they record
    ("collections", "OrderedDict"): Dict,
    ("torch._utils", "_rebuild_parameter"): Call,
    ("torch._utils", "_rebuild_tensor_v2"): Call,
}


def build_tensor(name: Any, value: Any, storage: Callable[[Any], np.ndarray]) -> np.ndarray:
    """The recorded tensor `value`, checked to lie in its storage.

    Args:
      name: the name of the tensor, for errors.
      value: a value that a `Recorder` with `TENSOR_CALLS` returned.
      storage: a function from the record of a storage to its numbers [N].
    """
    if isinstance(value, Call) and type(value).__name__ == "_rebuild_parameter" and value.args:
        value = value.args[0]
    match value:
        case Call(args=(where, int() as offset, tuple() as shape, tuple() as strides, *_)) if (
            isinstance(name, str)
        ):
            return _strided(name, storage(where), offset, shape, strides)
    raise ValueError(f"the entry {short(name)} is no tensor; expected tensors by name")


def kind_and_key(persistent_id: Any) -> tuple[str, str]:
    match persistent_id:
        case ("storage", type() as kind, str() as key, _, _) | (
            "storage",
            type() as kind,
            str() as key,
            _,
            _,
            None,
        ):
            return kind.__name__, key
    raise ValueError("a tensor's storage is in none of torch's formats")


def _strided(
    name: str, storage: np.ndarray, offset: int, shape: tuple, strides: tuple
) -> np.ndarray:
    """The tensor of this offset, shape and strides, in numbers, of a storage."""
    numbers = (offset, *shape, *strides)
    is_sound = len(shape) == len(strides)
    is_sound = is_sound and all(isinstance(n, int) and 0 <= n < 1 << 63 for n in numbers)
    if is_sound and 0 in shape:
        return np.empty(shape, storage.dtype)
    if is_sound:
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
        # strides may be 0, so that a few numbers would be a huge tensor
        is_sound = max(last + 1, math.prod(shape)) <= len(storage)
    if not is_sound:
        raise ValueError(
            f"the tensor {short(name)} does not lie in its storage; the file is damaged"
        )
    steps = [stride * storage.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)
    return np.asarray(view, order="C")

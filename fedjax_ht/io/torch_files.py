"""Reads weights that torch or safetensors saved, without torch and without running anything that a file asks for."""

import functools
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from fedjax_ht.data import limits
from fedjax_ht.data.bounded import Zip, open_regular, size_of
from fedjax_ht.data.safe_pickle import Call, Dict, Recorder, damage_is_a_value_error

_STORAGES = {
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


_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_STORAGE_CALLS = dict.fromkeys([("torch", name) for name in _STORAGES], Call)
TENSOR_CALLS = {  # for a `Recorder`; `build_tensor` understands what they record
    ("collections", "OrderedDict"): Dict,
    ("torch._utils", "_rebuild_parameter"): Call,
    ("torch._utils", "_rebuild_tensor_v2"): Call,
}


class _TorchRecorder(Recorder):
    def persistent_load(self, pid):
        return pid  # a storage: ("storage", its type, its name, device, number of elements, and more in older files)


def load_state_dict(path: Path | str) -> dict[str, np.ndarray]:
    """The tensors in a file that torch.save(model.state_dict(), path) or safetensors wrote, by name.

    Args:
      path: a .pth or .pt file of torch 1.6 or newer, or a .safetensors file.

    Returns:
      Arrays of the tensors' shapes and dtypes (bfloat16 is `jnp.bfloat16`); they may be read-only.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: the file is a .safetensors file, and that package is not installed.
      ValueError: the file is damaged, of another format, or holds anything but tensors by name.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    readers = {".pth": _read_torch, ".pt": _read_torch, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise ValueError(f"{path}: weights are read from files that end in {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(f"{path}: needs safetensors; run pip install 'fedjax_ht[weights]'") from error
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict
    except (safetensors.SafetensorError, TypeError) as error:  # TypeError: a dtype that numpy does not have
        raise ValueError(f"no safetensors file of numbers: {error}") from error


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    with open_regular(path) as file:
        return _read_torch_zip(file)


def _read_torch_zip(file: BinaryIO) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(file):
        raise ValueError(
            "not the zip format of torch 1.6; torch reads an older file, and writes it anew with "
            "torch.save(torch.load(path, weights_only=True), path)"
        )
    with damage_is_a_value_error():
        archive = Zip(file)
        tops = [name.removesuffix("data.pkl") for name in archive.entries if name.endswith("/data.pkl")]
        if len(tops) != 1:
            raise ValueError(f"a zip file with {len(tops)} entries data.pkl; torch writes one")
        if f"{tops[0]}byteorder" in archive.entries and _entry(archive, f"{tops[0]}byteorder") != b"little":
            raise ValueError("written on a big-endian machine; only little-endian files are read")
        pickled = io.BytesIO(_entry(archive, f"{tops[0]}data.pkl"))
        allowed = "tensors by name, as torch.save(model.state_dict(), path) writes them,"
        content = _TorchRecorder(pickled, _STORAGE_CALLS | TENSOR_CALLS, allowed).load()
        if not isinstance(content, dict):
            raise ValueError(f"holds a {type(content).__name__}; expected tensors by name")

        @functools.cache
        def numbers(kind: str, key: str) -> np.ndarray:
            return np.frombuffer(_entry(archive, f"{tops[0]}data/{key}"), _STORAGES[kind])

        storage = lambda record: numbers(*_kind_and_key(record))  # noqa: E731
        tensors, size, limit = {}, 0, limits.decompressed(size_of(file))
        for name, value in content.items():
            tensors[name] = build_tensor(name, value, storage)
            size += tensors[name].nbytes  # many may be views of one storage
            limits.keep("the state dict", size, limit)
        return tensors


def _entry(archive: Zip, name: str) -> bytearray:
    # torch compresses nothing, and so a storage is never larger than the file.
    if archive.entries[name].compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"the entry {name} is compressed; torch writes none that is")
    return archive.read(name, math.inf)


def read_storage(content: bytes) -> np.ndarray:
    """The numbers, [N], of one storage in the stream of pickles that torch wrote before 1.6, and still does in pickles.

    Raises:
      ValueError: the stream is damaged, of another format, or holds anything but one storage.
    """
    with damage_is_a_value_error():
        stream = io.BytesIO(content)
        header = [_TorchRecorder(stream, _STORAGE_CALLS, "storages").load() for _ in range(5)]
        magic, version, system, record, keys = header
        if (magic, version) != (_MAGIC, _VERSION) or not isinstance(system, dict) or not system.get("little_endian"):
            raise ValueError("a storage is in none of torch's formats, or of a big-endian machine")
        kind, key = _kind_and_key(record)
        start = stream.tell() + 8
        count = int.from_bytes(content[start - 8 : start], "little")
        numbers = np.frombuffer(content, _STORAGES[kind], offset=start)
        if keys != [key] or count != len(numbers):
            raise ValueError(f"a storage holds {len(numbers)} numbers and says {count}; the file is damaged")
        return numbers


def build_tensor(name: Any, value: Any, storage: Callable[[Any], np.ndarray]) -> np.ndarray:
    """The recorded tensor `value`, checked to lie in its storage.

    Args:
      name: of the tensor, for errors.
      value: what a `Recorder` with `TENSOR_CALLS` gave.
      storage: what the record says of the storage -> its numbers [N].
    """
    if isinstance(value, Call) and type(value).__name__ == "_rebuild_parameter" and value.args:
        value = value.args[0]
    match value:
        case Call(args=(where, int() as offset, tuple() as shape, tuple() as strides, *_)) if isinstance(name, str):
            return _strided(name, storage(where), offset, shape, strides)
    raise ValueError(f"the entry {limits.short(name)} is no tensor; expected tensors by name")


def _kind_and_key(persistent_id: Any) -> tuple[str, str]:
    match persistent_id:
        case ("storage", type() as kind, str() as key, _, _) | ("storage", type() as kind, str() as key, _, _, None):
            return kind.__name__, key
    raise ValueError("a tensor's storage is in none of torch's formats")


def _strided(name: str, storage: np.ndarray, offset: int, shape: tuple, strides: tuple) -> np.ndarray:
    sound = len(shape) == len(strides) and all(
        isinstance(n, int) and 0 <= n < 1 << 63 for n in (offset, *shape, *strides)
    )
    if sound and 0 in shape:
        return np.empty(shape, storage.dtype)
    if not sound or max(offset + sum((n - 1) * s for n, s in zip(shape, strides)) + 1, math.prod(shape)) > len(storage):
        raise ValueError(f"the tensor {limits.short(name)} does not lie in its storage; the file is damaged")
    steps = [s * storage.itemsize for s in strides]
    return np.asarray(np.lib.stride_tricks.as_strided(storage[offset:], shape, steps), order="C")

"""Reads weights saved by torch, safetensors or NumPy; writes safetensors.

torch is not needed, and nothing in a file is executed.
"""

import contextlib
import functools
import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.check.packages import needing
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.safe import limits, safe_pickle
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import Zip, open_regular, size_of

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
    ("collections", "OrderedDict"): safe_pickle.Dict,
    ("torch._utils", "_rebuild_parameter"): safe_pickle.Call,
    ("torch._utils", "_rebuild_tensor_v2"): safe_pickle.Call,
}


def build_tensor(name: Any, value: Any, storage: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Returns the recorded tensor `value`, after checking that it lies in its storage.

    Args:
      name: name of the tensor, for errors.
      value: value returned by a `Recorder` with `TENSOR_CALLS`.
      storage: function from the record of a storage to its numbers [N].
    """
    if (
        isinstance(value, safe_pickle.Call)
        and type(value).__name__ == "_rebuild_parameter"
        and value.args
    ):
        value = value.args[0]
    match value:
        case safe_pickle.Call(
            args=(where, int() as offset, tuple() as shape, tuple() as strides, *_)
        ) if isinstance(name, str):
            return _strided(name, storage(where), offset, shape, strides)
    raise ValueError(f"the entry {short(name)} is not a tensor; expected tensors by name")


def kind_and_key(persistent_id: Any) -> tuple[str, str]:
    match persistent_id:
        # files of torch.save have five parts; streams of one storage append a None
        case ("storage", type() as kind, str() as key, _, _, *rest) if rest in ([], [None]):
            return kind.__name__, key
    raise ValueError("a tensor's storage is not in a torch format")


def _strided(
    name: str, storage: np.ndarray, offset: int, shape: tuple, strides: tuple
) -> np.ndarray:
    """Returns the tensor with this offset, shape and strides, in numbers, in a storage."""
    numbers = (offset, *shape, *strides)
    is_sound = len(shape) == len(strides)
    is_sound = is_sound and all(isinstance(n, int) and 0 <= n < 1 << 63 for n in numbers)
    if is_sound and 0 in shape:
        return np.empty(shape, storage.dtype)
    if is_sound:
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
        # with strides of 0, a few numbers could be a huge tensor
        is_sound = max(last + 1, math.prod(shape)) <= len(storage)
    if not is_sound:
        raise ValueError(f"the tensor {short(name)} lies outside its storage; the file is damaged")
    steps = [stride * storage.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)
    return np.asarray(view, order="C")


_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_STORAGE_CALLS = dict.fromkeys([("torch", name) for name in STORAGES], safe_pickle.Call)


# other objects that scripts save
_BESIDE = safe_pickle.NUMPY_CALLS | {
    ("argparse", "Namespace"): safe_pickle.Call,
    ("collections", "Counter"): safe_pickle.Dict,
}
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_ALLOWED = "tensors by name, as torch.save(model.state_dict(), path) writes them,"
_PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile


class _TorchRecorder(safe_pickle.Recorder):
    """A recorder of torch's pickles, which identify their storages by tuples.

    Attributes:
      storages: the tuples read so far.
    """

    def __init__(self, file: BinaryIO):
        super().__init__(file, _STORAGE_CALLS | TENSOR_CALLS | _BESIDE, _ALLOWED)
        self.storages: list[Any] = []

    def persistent_load(self, pid):
        self.storages.append(pid)
        return pid


def load_state_dict(path: Path | str) -> dict[str, np.ndarray]:
    """Reads a model's tensors from a file, by name.

    Args:
      path: a file of torch.save (.pth, .pt, .tar), a .safetensors or an .npz file. From a training
        checkpoint, the entry "state_dict", "model_state_dict" or "model" is read; prefixes
        "module." and "_orig_mod." are removed.

    Returns:
      Arrays of the tensors' shapes and dtypes (bfloat16 is `jnp.bfloat16`); they may be read-only.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: the file is a .safetensors file, and that package is not installed.
      ValueError: the file is damaged, has another format, or holds anything but named tensors.
    """
    path = Path(path).expanduser()
    if path.with_name(f"{path.name}.index.json").is_file() and not path.is_file():
        raise FileNotFoundError(f"the weights at {path} are in several files; save them as one")
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    torch = dict.fromkeys((".pth", ".pt", ".tar"), _read_torch)
    readers = torch | {".safetensors": _read_safetensors, ".npz": _read_npz}
    if path.suffix not in readers:
        raise ValueError(f"{path}: weights must be in a file that ends in {', '.join(readers)}")
    try:
        return _unprefixed(readers[path.suffix](path))
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path}: {error}") from error


def save_safetensors(
    path: Path | str, arrays: Mapping[str, np.ndarray], classes: Sequence[str] = ()
) -> None:
    """Writes arrays by name, and the classes of a head's rows, atomically."""
    with needing(f"{path}:"):
        from safetensors.numpy import save
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = save(ordered, {"classes": json.dumps(list(classes))})
    with atomic_open(path, "wb") as file:
        file.write(content)


def noted_classes(path: Path | str) -> tuple[str, ...] | None:
    """Returns the classes that `save_safetensors` wrote; None for other files."""
    if Path(path).suffix != ".safetensors":
        return None
    import safetensors

    with safetensors.safe_open(Path(path).expanduser(), framework="np") as file:
        text = (file.metadata() or {}).get("classes", "[]")
    with contextlib.suppress(ValueError, RecursionError):  # written by another program
        classes = json.loads(text)
        if isinstance(classes, list) and all(isinstance(name, str) for name in classes):
            return tuple(classes) or None
    return None


def _unprefixed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for prefix in _PREFIXES * 2:  # either may be inside the other
        if arrays and all(name.startswith(prefix) for name in arrays):
            arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with opened_npz(path) as file:
        return dict(file)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    with needing(f"{path}:"):
        import safetensors
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = file.keys()
            return {name: _tensor(file, name) for name in names}
    except safetensors.SafetensorError as error:
        raise ValueError(f"not a safetensors file of numbers: {error}") from error


def _tensor(file: Any, name: str) -> np.ndarray:
    try:
        return file.get_tensor(name)
    except (AttributeError, TypeError) as error:  # safetensors' errors if NumPy lacks a dtype
        kind = file.get_slice(name).get_dtype()
        raise ValueError(
            f"{short(name)} is {kind}, which numpy does not have; save it as F32 or F16"
        ) from error


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    with open_regular(path) as file, safe_pickle.damage_is_a_value_error():
        content, storage = _read_zip(file) if zipfile.is_zipfile(file) else _read_stream(file)
        return _tensors(content, storage, limits.decompressed(size_of(file)))


def _tensors(
    content: Any, storage: Callable[[Any], np.ndarray], limit: int
) -> dict[str, np.ndarray]:
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}; expected tensors by name")
    for _ in _WRAPPERS:  # not until nothing is inside: a dict may hold itself
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        content = inner[0] if inner else content
    tensors, size = {}, 0
    for name, value in content.items():
        tensors[name] = build_tensor(name, value, storage)
        size += tensors[name].nbytes  # many may be views of one storage
        limits.keep("the state dict", size, limit)
    return tensors


def _read_zip(file: BinaryIO) -> tuple[Any, Callable[[Any], np.ndarray]]:
    """Reads a file of torch 1.6 or later.

    Returns:
      The content, and a function from the record of a storage to its numbers [N].
    """
    archive = Zip(file)
    tops = [name.removesuffix("data.pkl") for name in archive.entries if name.endswith("/data.pkl")]
    if len(tops) != 1:
        raise ValueError(f"a zip file with {len(tops)} entries data.pkl; torch writes one")
    order = f"{tops[0]}byteorder"
    if order in archive.entries and _entry(archive, order) != b"little":
        raise ValueError("written on a big-endian machine; only little-endian files are read")

    @functools.cache
    def numbers(kind: str, key: str) -> np.ndarray:
        return np.frombuffer(_entry(archive, f"{tops[0]}data/{key}"), STORAGES[kind])

    def numbers_of(record: Any) -> np.ndarray:
        return numbers(*kind_and_key(record))

    content = _TorchRecorder(io.BytesIO(_entry(archive, f"{tops[0]}data.pkl"))).load()
    return content, numbers_of


def _entry(archive: Zip, name: str) -> bytearray:
    # torch compresses nothing, so a storage is never larger than the file.
    if archive.entries[name].compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"the entry {name} is compressed; torch never compresses entries")
    return archive.read(name, math.inf)


def _read_stream(file: BinaryIO) -> tuple[Any, Callable[[Any], np.ndarray]]:
    """Reads the stream of pickles that torch wrote before 1.6, and still writes inside pickles.

    The stream is a header, the content, the names of the storages, and in their order the length
    and the numbers of each.

    Returns:
      As `_read_zip`.
    """
    file.seek(0)
    magic, version, system = [_TorchRecorder(file).load() for _ in range(3)]
    is_known = (magic, version) == (_MAGIC, _VERSION) and isinstance(system, dict)
    if not is_known or not system.get("little_endian"):
        raise ValueError("it is not in a torch format, or is from a big-endian machine")
    recorder = _TorchRecorder(file)
    content = recorder.load()
    kinds = {key: kind for kind, key in map(kind_and_key, recorder.storages)}
    keys = _TorchRecorder(file).load()
    if sorted(keys) != sorted(kinds):
        raise ValueError("its storages differ from those it names; the file is damaged")
    storages, end = {}, size_of(file)
    for key in keys:
        dtype = np.dtype(STORAGES[kinds[key]])
        count = int.from_bytes(file.read(8), "little")
        left = end - file.tell()
        if count * dtype.itemsize > left:
            raise ValueError(
                f"{left} bytes are left for a storage of {count} numbers; the file is damaged"
            )
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    if file.tell() != end:
        raise ValueError(f"it has {end - file.tell()} bytes too many; the file is damaged")

    def numbers_of(record: Any) -> np.ndarray:
        return storages[kind_and_key(record)[1]]

    return content, numbers_of


def read_storage(content: bytes) -> np.ndarray:
    """Returns the numbers [N] of one storage that torch wrote as a stream of pickles.

    Raises:
      ValueError: the stream is damaged, has another format, or holds anything but one storage.
    """
    with safe_pickle.damage_is_a_value_error():
        record, numbers_of = _read_stream(io.BytesIO(content))
        return numbers_of(record)

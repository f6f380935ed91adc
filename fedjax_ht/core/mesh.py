"""Devices: clients are sharded over one mesh axis; the server lives on one device.

There may be many processes: each runs the same server step on its own first device, from the same
uplinks.
"""

import math
import operator

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from fedjax_ht.core.trees import PyTree

AXIS = "clients"
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()
_ALIGNED = 64  # bytes; XLA uses a host array in place if its address is a multiple of this


def client_mesh(devices: int | None = None) -> Mesh:
    """Makes a mesh over the first `devices` devices of all processes; None for `usual_devices`.

    Raises:
      ValueError: there are fewer devices, or processes contribute different numbers of them.
    """
    available = found_devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(
            f"devices is {devices}; it must be from 1 to {len(available)}, the number of devices "
            f"({available[0].platform})"
        )
    chosen = available[: devices or usual_devices()]
    per_process = np.zeros(jax.process_count(), int)
    for device in chosen:
        per_process[device.process_index] += 1
    if (per_process != per_process[0]).any():
        raise ValueError(f"devices is {devices}; all processes must use the same number of devices")
    return Mesh(np.array(chosen), (AXIS,))


def usual_devices() -> int:
    """Returns a simulation's default number of devices: all, but one if there are two CPUs.

    In that case one device with threads is faster for short runs, as less is compiled.
    """
    available = found_devices()
    are_two_cpus = len(available) == 2 and available[0].platform == "cpu"
    return 1 if are_two_cpus and jax.process_count() == 1 else len(available)


def found_devices() -> list:
    """Returns jax's devices.

    Raises:
      ValueError: the platform that JAX_PLATFORMS requests has none. One line.
    """
    try:
        return jax.devices()
    except (AssertionError, RuntimeError) as error:
        asked = getattr(jax.config, "jax_platforms", None)
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"jax finds no device for JAX_PLATFORMS={asked}{f' ({reason})' if reason else ''}; "
            "install jax for that platform (BUILD.md), or set JAX_PLATFORMS=cpu"
        ) from None


def free_bytes(mesh: Mesh) -> int | None:
    """Returns the free memory of each device, in bytes; None if unknown.

    CPU devices share the machine's memory.
    """
    if _is_cpu(mesh):
        try:
            with open("/proc/meminfo") as file:
                lines = dict(line.split(":") for line in file)
            return int(lines["MemAvailable"].split()[0]) * 1024 // mesh.local_mesh.size
        except (OSError, KeyError):
            return None
    known = mesh.local_devices[0].memory_stats() or {}
    return known["bytes_limit"] - known["bytes_in_use"] if "bytes_limit" in known else None


def scatter(mesh: Mesh, tree: PyTree) -> PyTree:
    """Shards host arrays over their leading client axis, a multiple of the number of devices."""
    return _place(tree, NamedSharding(mesh, SHARDED))


def spread(mesh: Mesh, tree: PyTree) -> PyTree:
    """Copies arrays to every device."""
    return _place(tree, NamedSharding(mesh, REPLICATED))


def share(mesh: Mesh, tree: PyTree) -> PyTree:
    """Copies large read-only NumPy arrays, such as images, to every device.

    On CPU all devices of a process share the memory, whereas `spread` would copy an array for each
    device. It is the array's own memory (e.g. a mapped file) if it is read-only and XLA can use it
    in place; else one copy.
    """
    if _is_cpu(mesh):
        tree = jax.tree.map(_usable, tree)
    return spread(mesh, tree)


def _is_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def _usable(x):
    """Returns an array that XLA can use in place: the array itself, or a copy.

    A copy is needed if XLA would make one, or if the memory is writeable.
    """
    if not isinstance(x, np.ndarray):
        return x
    fits, owner = x.ctypes.data % _ALIGNED == 0 and x.flags.c_contiguous, x
    while isinstance(owner, np.ndarray):  # an owner may be writeable, even if x is read-only
        fits, owner = fits and not owner.flags.writeable, owner.base
    if fits:
        return x
    copy = _aligned(x.shape, x.dtype)
    copy[...] = x
    return copy


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an uninitialised array that XLA can use in place."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


def _place(tree: PyTree, sharding: NamedSharding) -> PyTree:
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def fill(x):
        # Every process has the whole array, and fills the parts of its own devices.
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)

    return jax.tree.map(fill, tree)


def collect(mesh: Mesh, tree: PyTree) -> PyTree:
    """Gathers sharded arrays on the server's device."""
    gather = _joined if in_one_memory(mesh) else _gathered
    return jax.device_put(jax.tree.map(gather, tree), mesh.local_devices[0])


def in_one_memory(mesh: Mesh) -> bool:
    """Returns whether all devices share this process's memory: CPUs of a single process."""
    return _is_cpu(mesh) and jax.process_count() == 1


def fetch_rows(tree: PyTree, rows: Int[np.ndarray, " m"]) -> PyTree:
    """Returns rows of arrays on devices `in_one_memory`, as NumPy [m, ...].

    Args:
      tree: arrays [P, ...] of jax or NumPy, without random keys.
      rows: int [m], indices into P; negative for zeros.
    """

    def gather(x):
        parts = [np.asarray(part) for part in _parts(x)]
        of_part = len(parts[0])  # all parts have as many rows
        gathered = _aligned((len(rows), *x.shape[1:]), x.dtype)
        for i, row in enumerate(rows):
            gathered[i] = parts[row // of_part][row % of_part] if row >= 0 else 0
        return gathered

    return jax.tree.map(gather, tree)


def _joined(x):
    """Returns an array that is sharded over CPU devices as NumPy, others unchanged."""
    # XLA would copy it three times, into newly allocated memory.
    parts = _parts(x)
    if len(parts) == 1:
        return x
    return np.concatenate(parts, out=_aligned(x.shape, x.dtype))


def _parts(x) -> list:
    """Returns an array's parts on CPU devices, in order and without a copy; one if not sharded."""
    if not isinstance(x, jax.Array) or x.is_fully_replicated:
        return [x]
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data) for shard in shards]


def fetch(tree: PyTree) -> PyTree:
    """Returns arrays with any placement as NumPy, complete on every process, in one transfer."""
    return jax.device_get(jax.tree.map(_gathered, tree))


def server_copy(tree: PyTree) -> PyTree:
    """Returns the server's copy of arrays replicated over all devices, without a transfer."""
    return jax.tree.map(operator.methodcaller("addressable_data", 0), tree)


def _gathered(x):
    """Returns an array complete on every process; fully addressable arrays stay unchanged."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return x
    return multihost_utils.process_allgather(x, tiled=True)

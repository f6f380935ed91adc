"""Devices: clients are sharded over one mesh axis, in one process or in many; the server lives on
one device.

Every process runs the same server step on its own first device, from the same uplinks.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_ht.core.method import PyTree

AXIS = "clients"
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()
_ALIGNED = 64  # bytes: XLA uses an array of the host in place if it starts at a multiple of it


def client_mesh(devices: int | None = None) -> Mesh:
    """A mesh over the first `devices` devices of all processes; None takes all.

    Raises:
      ValueError: there are not so many devices, or not the same number from every process.
    """
    found = jax.devices()
    if devices is not None and not 1 <= devices <= len(found):
        raise ValueError(f"devices is {devices}; there are {len(found)} ({found[0].platform})")
    chosen = found[:devices]
    if len({sum(d.process_index == p for d in chosen) for p in range(jax.process_count())}) > 1:
        raise ValueError(
            f"devices is {devices}; every process must give as many of its devices as the others"
        )
    return Mesh(np.array(chosen), (AXIS,))


def scatter(mesh: Mesh, tree: PyTree) -> PyTree:
    """Host arrays with a leading client axis, a multiple of the devices -> sharded over it."""
    return _place(tree, NamedSharding(mesh, SHARDED))


def spread(mesh: Mesh, tree: PyTree) -> PyTree:
    """The same arrays on every device."""
    return _place(tree, NamedSharding(mesh, REPLICATED))


def share(mesh: Mesh, tree: PyTree) -> PyTree:
    """As `spread`, for large NumPy arrays that no program writes to: on CPU all devices of a
    process use one memory, where each would copy an array of its own.

    It is the array's own memory, such as a file that is mapped, if nobody can write to it and XLA
    takes it as it is; else one copy.
    """
    if mesh.devices.flat[0].platform == "cpu":
        tree = jax.tree.map(lambda x: _aligned_copy(x) if _needs_copy(x) else x, tree)
    return spread(mesh, tree)


def _needs_copy(x) -> bool:
    """Whether it is an array that XLA would copy, or must not take as it is, since somebody can
    write to it."""
    owner = x
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = owner.base
    return isinstance(x, np.ndarray) and (x.ctypes.data % _ALIGNED != 0 or not x.flags.c_contiguous)


def _aligned_copy(x: np.ndarray) -> np.ndarray:
    memory = np.empty(x.nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def _place(tree: PyTree, sharding: NamedSharding) -> PyTree:
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def fill(x):
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(fill, tree)


def collect(mesh: Mesh, tree: PyTree) -> PyTree:
    """Sharded arrays -> whole, on the server's device."""
    tree = jax.tree.map(
        lambda x: x if _is_local(x) else multihost_utils.process_allgather(x, tiled=True), tree
    )
    return jax.device_put(tree, mesh.local_devices[0])


def fetch(tree: PyTree) -> PyTree:
    """Arrays of any placement -> NumPy, whole on every process; one transfer."""
    gathered = jax.tree.map(
        lambda x: x if _is_local(x) else multihost_utils.process_allgather(x, tiled=True), tree
    )
    return jax.device_get(gathered)


def server_copy(tree: PyTree) -> PyTree:
    """The server's copy of arrays that are spread over all devices; nothing moves."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def _is_local(x) -> bool:
    return not isinstance(x, jax.Array) or x.is_fully_addressable

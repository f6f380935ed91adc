"""Images lie once in the memory that CPU devices share, tested on two devices."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from fedjax_ht.core.mesh import found_devices

SHARED = """
import sys
import jax, numpy as np
from fedjax_ht.core.mesh import client_mesh, share
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.readers.images import mapped

def pointers(x):
    shards = share(client_mesh(2), x).addressable_shards
    return {shard.data.unsafe_buffer_pointer() for shard in shards}

images = np.arange(7 * 64, dtype=np.uint8).reshape(7, 8, 8, 1)
np.save(sys.argv[1], images)
of_file = Dataset("file", mapped(sys.argv[1]), np.zeros(7, int), ("a",)).inputs
assert jax.device_count() == 2 and not of_file.flags.writeable
assert pointers(of_file) == {of_file.ctypes.data}, "a map is copied"

given = np.empty(images.size + 64, np.uint8)
given = given[-given.ctypes.data % 64 :][: images.size].reshape(images.shape)
given[...] = images
dataset = Dataset("given", given, np.zeros(7, int), ("a",))
for x in (dataset.inputs, given[1:], np.asfortranarray(images)):
    (pointer,), x_there = pointers(x), share(client_mesh(2), x)
    assert pointer != x.ctypes.data, "what somebody can write to is in use"
    np.testing.assert_array_equal(x_there, x)
there = share(client_mesh(), dataset.inputs)
given[...] = 0
np.testing.assert_array_equal(there, images)
"""

GATHERED = """
import jax, ml_dtypes, numpy as np
from fedjax_ht.core.mesh import client_mesh, collect, fetch_rows, in_one_memory, scatter

mesh = client_mesh(2)
assert client_mesh().size == 1  # of two CPUs
assert jax.device_count() == 2 and in_one_memory(mesh)
uplinks = {
    "weights": np.arange(4 * 3 * 5, dtype=ml_dtypes.bfloat16).reshape(4, 3, 5),
    "count": np.arange(4, dtype=np.int32),
    "arrived": np.ones(4, bool),
}
on_devices = scatter(mesh, uplinks)
for tree in (on_devices, uplinks, jax.device_put(uplinks)):
    with jax.transfer_guard("disallow"):
        rows = collect(mesh, fetch_rows(tree, np.array([3, 0, 2, -1], np.int32)))
        every = collect(mesh, tree)
    for name, x in uplinks.items():
        assert every[name].devices() == {jax.devices()[0]} and every[name].dtype == x.dtype
        np.testing.assert_array_equal(every[name], x)
        assert rows[name].devices() == {jax.devices()[0]} and rows[name].dtype == x.dtype
        np.testing.assert_array_equal(rows[name][:3], x[[3, 0, 2]])
        assert not np.any(rows[name][3])
"""


def test_images_are_in_memory_once_and_rows_of_both_devices_are_gathered(tmp_path):
    """In one process of two CPU devices."""
    flag = "--xla_force_host_platform_device_count=2"
    code = f"import os; os.environ['XLA_FLAGS'] = '{flag}'\n{SHARED}\n{GATHERED}"
    call, root = [sys.executable, "-c", code, tmp_path / "x.npy"], Path(__file__).parents[2]
    done = subprocess.run(call, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("no plugin\nfor it")])
def test_a_platform_without_devices_is_one_line(monkeypatch, error):
    def absent():
        raise error

    monkeypatch.setattr(jax, "devices", absent)
    with pytest.raises(ValueError, match="jax finds no device for JAX_PLATFORMS=") as raised:
        found_devices()
    assert "\n" not in str(raised.value) and "set JAX_PLATFORMS=cpu" in str(raised.value)

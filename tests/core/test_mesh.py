"""Images on CPU devices lie in one memory for all devices, tested on two in a separate process."""

import subprocess
import sys
from pathlib import Path

SHARED = """
import sys
import jax, numpy as np
from fedjax_ht.core.mesh import client_mesh, share
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.sources.pile import mapped

def pointers(x):
    shards = share(client_mesh(), x).addressable_shards
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
    (pointer,), x_there = pointers(x), share(client_mesh(), x)
    assert pointer != x.ctypes.data, "what somebody can write to is in use"
    np.testing.assert_array_equal(x_there, x)
there = share(client_mesh(), dataset.inputs)
given[...] = 0
np.testing.assert_array_equal(there, images)
"""


def test_images_are_in_memory_once(tmp_path):
    flags = [
        "-c",
        "import os; os.environ['XLA_FLAGS'] = "
        f"'--xla_force_host_platform_device_count=2'\n{SHARED}",
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *flags, tmp_path / "x.npy"], capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr[-2000:]

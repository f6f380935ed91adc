"""Lanes: how many of a bucket's clients run in parallel on a device.

A rule chooses them by the clients' steps and measurements on an H100. Nothing is timed at run time,
so a resumed run makes the same choice. Parallel clients share kernel launches, so that a joint step
takes less time than separate ones; but finished clients wait for the longest of their chunk.
"""

import math
from collections.abc import Mapping

import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.compiling import platform_of
from fedjax_ht.core.executor import longest_first
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.core.method import Method
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.simulation.options import SimulationOptions

STEP = {1: 0.096, 2: 0.143, 4: 0.252, 8: 0.412, 16: 0.639, 32: 1.209}
"""Lanes -> milliseconds of a step of that many clients with the 4-layer CNN on an H100
(benchmarks/results/gpu_h100.md).

It is used for every model and accelerator. A model that fills the device by itself gains less; its
lanes then only cost waiting time.
"""

MEMORY = 80e9  # bytes of an H100, for devices that do not report their own


def simulation_lanes(
    federation: Federation, counts: np.ndarray, method: Method, options: SimulationOptions
) -> dict[str, int]:
    """Chooses the lanes of every bucket: bucket name -> lanes.

    None is one lane on CPU, where vmapped small products are slower than a scan
    (benchmarks/results/conv_cpu.md). On other devices it is `fewest_seconds` for the bucket's own
    model, ignoring other models that a method trains.

    Args:
      federation: the buckets.
      counts: the clients' training samples, int [num_clients].
      method: the method, which has the training recipes.
      options: the options; numbers of lanes in them have precedence.

    Raises:
      ValueError: a bucket has no number, or there are fewer devices than the options require.
    """
    lanes, buckets, mesh = options.lanes, federation.buckets, client_mesh(options.devices)
    names = [bucket.name for bucket in buckets]
    if isinstance(lanes, Mapping):
        if missing := [name for name in names if name not in lanes]:
            raise ValueError(
                f"lanes has no number for {', '.join(missing)}; give each bucket one, or one "
                "number for all"
            )
        return {name: lanes[name] for name in names}
    if lanes is not None:
        return dict.fromkeys(names, lanes)
    if platform_of(mesh) == "cpu":
        return dict.fromkeys(names, 1)
    participants = options.participants(federation.num_clients)
    # buckets run in parallel; half the memory is for data, states and evaluation
    room = device_memory(mesh) / 2 / len(buckets)
    chosen = {}
    for bucket in buckets:
        recipe, members = method.training_of(bucket.name), list(federation.members(bucket))
        steps = np.asarray(num_steps(recipe, counts[members]))
        expected = math.ceil(participants * len(members) / federation.num_clients / mesh.size)
        # twice, for gradients of activations and temporary buffers of operations
        fitting = int(room / (2 * training_memory(bucket, recipe)))
        chosen[bucket.name] = fewest_seconds(typical(steps, expected), fitting)
    return chosen


def device_memory(mesh: Mesh) -> float:
    """Returns the memory of the mesh's first device in bytes, or `MEMORY` if unknown."""
    device = mesh.devices.flat[0]
    stats = device.memory_stats() if hasattr(device, "memory_stats") else None
    return (stats or {}).get("bytes_limit", MEMORY)


def typical(steps: np.ndarray, count: int) -> np.ndarray:
    """Returns the steps of `count` clients that represent a draw among all, longest first."""
    ordered = steps[longest_first(steps)]
    return ordered[np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)]


def fewest_seconds(steps: np.ndarray, fitting: int) -> int:
    """Returns the number of lanes with the shortest time; the smallest of ties.

    `steps` are the clients', longest first. A chunk takes the steps of its longest client. The
    result is at least 1 and at most `fitting`.
    """
    best, least = 1, math.inf
    for lanes in range(1, max(1, min(max(STEP), len(steps), fitting)) + 1):
        of_a_step = float(np.interp(lanes, list(STEP), list(STEP.values())))
        milliseconds = steps[::lanes].sum() * of_a_step
        if milliseconds < least:
            best, least = lanes, milliseconds
    return best

"""The number of a bucket's clients that run side by side on a device: a rule from their work and
the device's abilities.

Nothing is timed, so that a resumed run picks the same. Clients side by side share a kernel's
launch. Up to some number of them a step takes as long as for one; from there on every further one
adds its bytes or its arithmetic, and all the while a client that has finished waits for the longest
of its chunk.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh

from fedjax_ht.core.bucket import Bucket, counting_key, features, init_variables, logits
from fedjax_ht.core.compiling import platform_of
from fedjax_ht.core.executor import longest_first
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import abstract
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.core.programs import called_programs, jaxpr_of
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.simulation.options import Lanes, SimulationOptions

MOST = 32  # lanes that the rule gives; more can be asked for
KERNELS = (
    "dot_general",
    "conv_general_dilated",
    "reduce_",
    "concatenate",
    "sort",
    "gather",
    "scatter",
    "argmax",
)
"""Operations that XLA fuses others into, and not with each other: about one kernel each."""


class Device(NamedTuple):
    """The abilities of a device, for choosing the number of lanes.

    Attributes:
      launch: seconds that a kernel takes at the least.
      bandwidth: bytes a second.
      arithmetic: float32 operations a second.
      memory: bytes.
    """

    launch: float
    bandwidth: float
    arithmetic: float
    memory: float


H100 = Device(2.5e-6, 3.35e12, 67e12, 80e9)
"""By its data sheet, and an estimate of what a kernel of a CUDA graph costs. It stands for every
accelerator. On a real one small kernels in a graph took 1.4e-6 s each, and a client's step of the
4-layer CNN 96, 63, 51, 40 and 38 microseconds in 1, 4, 8, 16 and 32 lanes
(benchmarks/results/gpu_h100.md)."""


class StepCost(NamedTuple):
    """The cost of a training step.

    Attributes:
      kernels: number of kernels launched, however many clients run side by side.
      moved: bytes moved, per client.
      flops: FLOPs, per client.
      memory: bytes held, per client.
    """

    kernels: int
    moved: float
    flops: float
    memory: float


def simulation_lanes(
    federation: Federation, counts: np.ndarray, training: LocalTraining, options: SimulationOptions
) -> dict[str, int]:
    """Returns bucket name -> lanes, by which clients then are laid out, of a simulation with these
    options.

    Args:
      federation: the buckets.
      counts: the clients' training samples, int [trials, num_clients].
      training: the recipe of the clients.
      options: the options; numbers of lanes in them are taken as they are.

    Raises:
      ValueError: a bucket has no number, or there are fewer devices than the options want.
    """
    steps = []
    for bucket in federation.buckets:
        steps.append(num_steps(training, counts[:, federation.members(bucket)]).reshape(-1))
    participants = len(counts) * options.participants(federation.num_clients)
    mesh = client_mesh(options.devices)
    batch_size = training.batch_size
    return choose_lanes(
        options.lanes,
        federation.buckets,
        steps,
        participants=participants,
        batch_size=batch_size,
        mesh=mesh,
    )


def choose_lanes(
    lanes: Lanes,
    buckets: Sequence[Bucket],
    steps: Sequence[np.ndarray],
    *,
    participants: int,
    batch_size: int,
    mesh: Mesh,
) -> dict[str, int]:
    """Chooses the lanes of every bucket.

    "auto" is one at a time on CPU, where vmapped small products are slower than a scan
    (benchmarks/results/conv_cpu.md); elsewhere `fewest_seconds` of the bucket's own model, whatever
    a method trains beside it.

    Args:
      lanes: "auto", a number for all, or bucket name -> number.
      buckets: the buckets of the federation.
      steps: per bucket, int [rows], local steps of a round.
      participants: number of a round's participants, in all buckets and trials.
      batch_size: samples of a step.
      mesh: the devices.

    Raises:
      ValueError: a bucket has no number.
    """
    names = [bucket.name for bucket in buckets]
    if isinstance(lanes, Mapping):
        if missing := [name for name in names if name not in lanes]:
            raise ValueError(
                f"lanes has no number for {', '.join(missing)}; give each bucket one, or one "
                "number for all"
            )
        return {name: lanes[name] for name in names}
    if lanes != "auto":
        return dict.fromkeys(names, lanes)
    if platform_of(mesh) == "cpu":
        return dict.fromkeys(names, 1)
    device, everyone = this_device(mesh), sum(map(len, steps))
    # buckets run side by side; half is for data, states and evaluation
    room = device.memory / 2 / len(buckets)
    chosen = {}
    for bucket, of_bucket in zip(buckets, steps):
        expected = math.ceil(participants * len(of_bucket) / everyone / mesh.size)
        cost = step_cost(bucket, batch_size)
        chosen[bucket.name] = fewest_seconds(typical(of_bucket, expected), cost, device, room)
    return chosen


def this_device(mesh: Mesh) -> Device:
    """Returns the constants, with the memory of the mesh's first device where it tells."""
    device = mesh.devices.flat[0]
    stats = device.memory_stats() if hasattr(device, "memory_stats") else None
    return H100._replace(memory=(stats or {}).get("bytes_limit", H100.memory))


def typical(steps: np.ndarray, count: int) -> np.ndarray:
    """Returns the steps of `count` clients that stand for a draw among all, longest first."""
    ordered = steps[longest_first(steps)]
    return ordered[np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)]


def fewest_seconds(steps: np.ndarray, cost: StepCost, device: Device, room: float) -> int:
    """Returns the number of lanes by which clients with these steps, longest first, are done
    soonest; of equals the smallest.

    A chunk takes the steps of its longest client, and each of them as long as the launches of its
    kernels, or as moving or computing what its lanes ask for, whichever is longest. `room` bytes
    are not exceeded, but by one lane.
    """
    best, least = 1, math.inf
    for lanes in range(1, min(MOST, len(steps)) + 1):
        if lanes > 1 and lanes * cost.memory > room:
            break
        work = lanes * max(cost.moved / device.bandwidth, cost.flops / device.arithmetic)
        seconds = steps[::lanes].sum() * max(cost.kernels * device.launch, work)
        if seconds < least:
            best, least = lanes, seconds
    return best


def step_cost(bucket: Bucket, batch_size: int) -> StepCost:
    """Counts the cost of a supervised step of a bucket's model in its program, uncompiled.

    Beside what XLA makes of it for a described H100 (benchmarks/results/gpu_aot_h100.md) kernels
    are 0.5 to 1.0 times, bytes moved 0.5 to 0.8 times, and bytes held 0.5 to 1.1 times as many.
    """

    def loss(params, stats, x, mask):
        key = counting_key(bucket)
        hidden, stats = features(bucket, params, stats, x, mask, train=True, key=key)
        return jnp.square(logits(bucket, params, hidden)).sum(), stats

    shape = jax.ShapeDtypeStruct
    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    batch = abstract(bucket.input_shape, batch_size), shape((batch_size,), bool)
    program = jax.make_jaxpr(jax.grad(loss, has_aux=True))(model["params"], model["stats"], *batch)
    counts: Counter = Counter()
    _count(program.jaxpr, 1, counts)
    weights = 4 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model["params"]))
    return StepCost(
        counts["kernels"],
        # the update reads weights and gradient, and writes weights
        counts["moved"] + 3 * weights,
        3 * batch_size * sample_flops(bucket),  # forward, and both gradients
        2.5 * counts["written"] + 2 * weights,
    )


def _count(program: Jaxpr | ClosedJaxpr, times: int, counts: Counter) -> None:
    """Adds up kernels, and the bytes that they write and move."""
    for equation in jaxpr_of(program).eqns:
        if equation.primitive.name.startswith(KERNELS):
            written = sum(map(_bytes, equation.outvars))
            counts["kernels"] += times
            counts["written"] += times * written
            counts["moved"] += times * (written + sum(map(_bytes, equation.invars)))
        elif called := called_programs(equation):
            # One branch of a `cond`, where `core.programs.equations` yields all: a step runs one.
            # Shipped models branch in recurrences alone, and on GPUs not even there
            # (ops/recurrent.py). Elsewhere the first branch is the one that skips a chunk: a step
            # of an LSTM counts 13 kernels of 1,353, and the rule gives it 1 lane instead of 4.
            _count(called[0], times * equation.params.get("length", 1), counts)


def _bytes(atom) -> int:
    return math.prod(atom.aval.shape) * atom.aval.dtype.itemsize

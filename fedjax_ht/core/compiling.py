"""Compiles functions to programs on a mesh: one per bucket on CPU, one for all buckets on GPUs."""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from fedjax_ht.core.mesh import REPLICATED, SHARDED

_LOGGER = logging.getLogger(__name__)

GRAPH_OPTIONS: dict[tuple[int, ...], dict[str, str]] = {
    version: {
        # XLA's defaults, conditionals and loops
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,"
        "DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
        "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
        "xla_gpu_graph_min_graph_size": "1",
    }
    for version in ((0, 10), (0, 11), (0, 12))
}
"""Options of programs on GPUs, by (major, minor) version of jax.

With jax 0.10 and 0.12, rounds compiled for an H100 were one graph, except FedKD's. With jax 0.11,
rounds ran on an H100 (benchmarks/results/gpu_h100.md). jax does not guarantee these options, and
XLA rejects unknown ones.
"""

CPU_OPTIONS = {"xla_backend_optimization_level": 1}
"""Options of the CPU programs that are compiled here: LLVM's level 1 of 3.

Higher levels take 6 to 13 % of the CPU time of a short run. Rounds are no slower at level 1, and
their numbers are equal (benchmarks/results/short_runs_cpu.md).
"""

QUICK_OPTIONS: dict[tuple[int, ...], dict[str, bool]] = {
    (0, 10): {"xla_cpu_use_fusion_emitters": False}
}
"""Further options of CPU programs that take longer to compile than to run, by version as above.

The emitters take half of the compile time, and save 4 to 7 % of the run time. Later versions have
no such option.
"""


def compiler_options(platform: str, quick: bool = False) -> dict[str, Any] | None:
    """Returns the options of `jax.jit` for programs on "cpu", "gpu" or "tpu".

    `quick` is for programs that do not train, where compiling costs more than running.

    On GPUs loops become part of CUDA graphs. A client's chunks, epochs, steps and batches are loops
    whose lengths only the device knows. Outside a graph the host copies the condition back and
    waits, once per iteration. Inside a graph a round is a single launch. Independent parts, such as
    two buckets, may then run in parallel, with memory of their own. By default XLA excludes parts
    of fewer than five steps, such as the loop that scores a bucket's clients. For versions of jax
    that `GRAPH_OPTIONS` lacks, programs are compiled without graphs, with a warning.
    """
    if platform == "cpu":
        return CPU_OPTIONS | (QUICK_OPTIONS.get(jax.__version_info__[:2], {}) if quick else {})
    if platform != "gpu":
        return None
    options = GRAPH_OPTIONS.get(jax.__version_info__[:2])
    if options is None:
        _warn_of_no_graphs(jax.__version__)
    return options


@functools.cache  # warns once per process, although every compiled function calls it
def _warn_of_no_graphs(version: str) -> None:
    tried = ", ".join(f"{major}.{minor}" for major, minor in GRAPH_OPTIONS)
    _LOGGER.warning(
        f"rounds on this GPU run without CUDA graphs and thus slower: jax is {version}, tested "
        f"versions are {tried}; install one of these"
    )


JAX_LEAST_SECONDS = 1.0  # jax's default: it does not cache programs that compile faster


def enable_compilation_cache() -> None:
    """Caches compiled programs on disk for later processes.

    The folder is jax's compilation cache if one is set, else below the user's cache folder.
    JAX_ENABLE_COMPILATION_CACHE=0 disables the cache. All programs are kept, whereas jax by default
    skips those that compile in less than a second. JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=1
    restores that.
    """
    config: Any = jax.config  # declares none of its options
    if not config.jax_enable_compilation_cache:
        return
    if config.jax_compilation_cache_dir is None:
        folder = Path.home() / ".cache" / "fedjax_ht" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(folder))
    name = "jax_persistent_cache_min_compile_time_secs"
    if name.upper() not in os.environ and getattr(config, name) == JAX_LEAST_SECONDS:
        jax.config.update(name, 0.0)


def compiled(fn: Callable, *, quick: bool = False) -> Callable:
    """Compiles a function for the default devices, with their platform's options.

    jax refuses options of the compiler inside other programs, such as in `jax.grad` of the result.
    """
    return jax.jit(fn, compiler_options=compiler_options(jax.default_backend(), quick))


def compile_ahead(calls: Sequence[tuple[Any, tuple]]) -> None:
    """Compiles jitted functions in parallel for the arguments of their next calls.

    Tracing runs in Python on one core, while XLA compiles traced functions on the others. A single
    compilation by XLA runs largely on one core. The later calls find their compiled programs.

    Args:
      calls: (jitted function, its arguments).
    """
    config: Any = jax.config  # declares none of its options
    if len(calls) < 2 or config.jax_disable_jit:
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The next function is traced here while a thread compiles the one before.
        jobs = [pool.submit(run.lower(*args).compile) for run, args in calls]
        for job in jobs:
            job.result()


ROUND_SPECS = (SHARDED, SHARDED, REPLICATED, REPLICATED, REPLICATED)
"""Placement of (states, schedule, server, data, when)."""


def platform_of(mesh: Mesh) -> str:
    """Returns the platform of a mesh's devices: "cpu", "gpu" or "tpu"."""
    return mesh.devices.flat[0].platform


def on_mesh(run: Callable, mesh: Mesh, trains: bool, specs: tuple = ROUND_SPECS) -> Callable:
    """Compiles a function so that every device runs its own clients.

    Args:
      run: the function of (states, schedule, server, data, when) on one device; states, schedule
        and data may be dicts by bucket.
      mesh: the mesh of all participating devices.
      trains: True donates the states' buffers to the result, so that memory has client states once;
        the caller's states are then deleted. False compiles faster, see `QUICK_OPTIONS`.
      specs: placement of the arguments, if `run` has others.

    Returns:
      The function of all devices' arguments: states and schedules concatenate the devices' parts,
      and a schedule's count is int32 [devices]. Results are sharded likewise.
    """
    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=specs,
        out_specs=SHARDED,
        # Devices do not communicate, so there is no replication to check.
        check_vma=False,
    )
    return jax.jit(
        sharded,
        donate_argnums=0 if trains else (),  # argument 0 are the states
        # On one device jax may choose another sharding, and recompile for states that have it.
        out_shardings=NamedSharding(mesh, SHARDED),
        compiler_options=compiler_options(platform_of(mesh), quick=not trains),
    )


def buckets_on_mesh(runs: Mapping[str, Callable], mesh: Mesh, trains: bool) -> Callable:
    """Compiles the functions of all buckets into one function.

    On GPUs it is one program: buckets are independent, and so are parallel branches of its graph
    (docs/decisions/0026-gpu-one-program.md). On CPU it is one program per bucket: a joint program
    would gain nothing, and more would be recompiled (docs/decisions/0025-cpu-bucket-programs.md).

    Args:
      runs: bucket name -> function of (states, schedule, server, data, when).
      mesh, trains: arguments as for `on_mesh`.

    Returns:
      ({bucket: states}, {bucket: schedule}, server, {bucket: data}, when) -> {bucket: result}, for
      the buckets whose states are given.
    """
    if platform_of(mesh) == "gpu":

        def together(states, schedules, server, data, when):
            results = {}
            for name, run in runs.items():
                if name in states:
                    results[name] = run(states[name], schedules[name], server, data[name], when)
            return results

        return on_mesh(together, mesh, trains)
    programs = {name: on_mesh(run, mesh, trains) for name, run in runs.items()}
    called: set[tuple] = set()  # argument shapes whose programs are compiled

    def by_bucket(states, schedules, server, data, when):
        arguments, new = {}, []
        for name in states:
            arguments[name] = states[name], schedules[name], server, data[name], when
            form = name, *map(jnp.shape, jax.tree.leaves(arguments[name]))
            if form not in called:
                called.add(form)
                new.append((programs[name], arguments[name]))
        compile_ahead(new)
        return {name: programs[name](*args) for name, args in arguments.items()}

    return by_bucket

"""Compiles functions to programs on a mesh: one a bucket on CPU, one for all buckets on GPUs."""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from fedjax_ht.core.mesh import REPLICATED, SHARDED

_LOGGER = logging.getLogger(__name__)

GRAPHED = (
    "FUSION",
    "CUBLAS",
    "CUBLASLT",
    "CUDNN",
    "CUSTOM_CALL",
    "DYNAMIC_SLICE_FUSION",
    "CONDITIONAL",
    "WHILE",
)
"""Kinds of work that XLA may put into a CUDA graph: its defaults, conditionals and loops."""


_IN_GRAPHS = {
    "xla_gpu_enable_command_buffer": ",".join(GRAPHED),
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_graph_min_graph_size": "1",
}

GRAPH_OPTIONS: dict[tuple[int, ...], dict[str, str]] = {
    (0, 10): _IN_GRAPHS,
    (0, 11): _IN_GRAPHS,
    (0, 12): _IN_GRAPHS,
}
"""Options of programs on GPUs by the (major, minor) versions of jax.

Rounds compiled for an H100 with jax 0.10 and 0.12 were one graph, except FedKD's. With jax 0.11
rounds ran on one (benchmarks/results/gpu_h100.md). The options are no promise of jax, and XLA
refuses those that it does not know.
"""

QUICK_OPTIONS: dict[tuple[int, ...], dict[str, bool]] = {
    (0, 10): {"xla_cpu_use_fusion_emitters": False}
}
"""Options of programs on CPUs that compile longer than they run, by version as above.

The emitters cost half of a program's compilation, and save it 4 to 7 % of its time. Later versions
have no such option.
"""


def compiler_options(platform: str, quick: bool = False) -> dict[str, Any] | None:
    """Returns the options of `jax.jit` for programs on "cpu", "gpu" or "tpu"; `quick` is for those
    that do not train, so that compiling costs more than running.

    On GPUs loops become part of CUDA graphs. A client's chunks, epochs, steps and batches are loops
    whose lengths are known on the device alone: outside a graph the host copies the condition back
    and waits, once an iteration. Inside one a round is a single launch; and what does not depend on
    each other, such as two buckets, is free to run side by side, for memory of its own. By default
    XLA leaves out what has fewer than five steps, such as the loop that scores a bucket's clients.
    With a jax that `GRAPH_OPTIONS` lacks, programs are compiled without, and a warning says so.
    """
    if platform == "cpu" and quick:
        return QUICK_OPTIONS.get(jax.__version_info__[:2])
    if platform != "gpu":
        return None
    options = GRAPH_OPTIONS.get(jax.__version_info__[:2])
    if options is None:
        _warn_of_no_graphs(jax.__version__)
    return options


@functools.cache  # once in a process, though every compiled function asks
def _warn_of_no_graphs(version: str) -> None:
    tried = ", ".join(f"{major}.{minor}" for major, minor in GRAPH_OPTIONS)
    _LOGGER.warning(
        f"rounds on this GPU run without CUDA graphs, and so slower: jax is {version}, their "
        f"options were tried with jax {tried}; install one of these"
    )


JAX_LEAST_SECONDS = 1.0  # jax's default, below which it does not keep a program


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, too, for later processes: in jax's folder for them if it has
    one, else below the user's cache folder.

    JAX_ENABLE_COMPILATION_CACHE=0 keeps none. All programs are kept, where jax itself leaves out
    those that compile in less than a second; JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=1 does so.
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


def compiled(fn: Callable, donate_argnums: Sequence[int] = (), *, quick: bool = False) -> Callable:
    """Compiles a function for the default devices, with the options of their platform."""
    return jax.jit(
        fn,
        donate_argnums=tuple(donate_argnums),
        compiler_options=compiler_options(jax.default_backend(), quick),
    )


def compile_ahead(calls: Sequence[tuple[Any, tuple]]) -> None:
    """Compiles jitted functions side by side for the arguments of their next calls.

    Tracing is Python's and goes on one core, while XLA compiles what is traced on the others; by
    itself it leaves much of a program's compilation to one core, too. The calls themselves then
    find their programs.

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


def platform_of(mesh: Mesh) -> str:
    """Returns "cpu", "gpu" or "tpu", which all devices of a mesh are."""
    return mesh.devices.flat[0].platform


def on_mesh(run: Callable, mesh: Mesh, trains: bool) -> Callable:
    """Compiles a function so that every device runs its own clients.

    Args:
      run: the function of (states, schedule, server, data, when) on one device; states, schedule
        and data may be dicts by bucket.
      mesh: the mesh of all devices that take part.
      trains: True makes the states' buffers those of the result, so that client states are held
        once; the caller's states are gone afterwards. False compiles in a shorter time, see
        `QUICK_OPTIONS`.

    Returns:
      The function of all devices' arguments: states and schedules have the devices' parts one
      behind another, and a schedule's count is int32 [devices]. Results are sharded likewise.
    """
    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(SHARDED, SHARDED, REPLICATED, REPLICATED, REPLICATED),
        out_specs=SHARDED,
        # Devices do not communicate, so that there is no replication to check.
        check_vma=False,
    )
    return jax.jit(
        sharded,
        donate_argnums=0 if trains else (),  # argument 0 are the states
        # On one device jax may name another sharding, and compile anew for states that have it.
        out_shardings=NamedSharding(mesh, SHARDED),
        compiler_options=compiler_options(platform_of(mesh), quick=not trains),
    )


def buckets_on_mesh(runs: Mapping[str, Callable], mesh: Mesh, trains: bool) -> Callable:
    """Compiles the functions of all buckets to one.

    On GPUs that is one program: buckets do not depend on each other, so that they are parallel
    branches of its graph (docs/decisions/0026-gpu-one-program.md). On CPU it is one program a
    bucket: there is nothing to win, and less to compile anew
    (docs/decisions/0025-cpu-bucket-programs.md).

    Args:
      runs: bucket name -> function of (states, schedule, server, data, when).
      mesh, trains: arguments as for `on_mesh`.

    Returns:
      Function of ({bucket: states}, {bucket: schedule}, server, {bucket: data}, when) that returns
      {bucket: result}, of the buckets whose states it gets.
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
    called: set[tuple] = set()  # forms of arguments whose programs are compiled

    def by_bucket(states, schedules, server, data, when):
        arguments, new = {}, []
        # Inside a program around it nothing is compiled here.
        is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(server))
        for name in states:
            arguments[name] = states[name], schedules[name], server, data[name], when
            form = name, *map(jnp.shape, jax.tree.leaves(arguments[name]))
            if form not in called and not is_traced:
                called.add(form)
                new.append((programs[name], arguments[name]))
        compile_ahead(new)
        return {name: programs[name](*args) for name, args in arguments.items()}

    return by_bucket

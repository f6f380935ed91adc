"""How functions become programs on the devices of a mesh: one program a bucket on CPU, one for all
on GPUs."""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
from jax.sharding import Mesh

from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.mesh import REPLICATED, SHARDED

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
"""What XLA may put into a CUDA graph: all that it does by itself, and conditionals and loops."""


_IN_GRAPHS = {
    "xla_gpu_enable_command_buffer": ",".join(GRAPHED),
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_graph_min_graph_size": "1",
}

GRAPH_OPTIONS = {(0, 10): _IN_GRAPHS, (0, 11): _IN_GRAPHS, (0, 12): _IN_GRAPHS}
"""Options of programs on GPUs, by the (major, minor) versions of jax that programs were compiled
with, see benchmarks/gpu_aot.py. They are no promise of jax, and XLA refuses those that it does not
know."""


def compiler_options(platform: str) -> dict[str, str] | None:
    """Returns the options of `jax.jit` for programs on "cpu", "gpu" or "tpu".

    On GPUs loops become part of CUDA graphs. A client's chunks, epochs, steps and batches are loops
    whose lengths are known on the device alone: outside a graph the host copies the condition back
    and waits, once an iteration. Inside one a round is a single launch; and what does not depend on
    each other, such as two buckets, is free to run side by side, for memory of its own. By default
    XLA leaves out what has fewer than five steps, such as the loop that scores a bucket's clients.
    With a jax that `GRAPH_OPTIONS` lacks, programs are compiled without, and a warning says so.
    """
    if platform != "gpu":
        return None
    options = GRAPH_OPTIONS.get(jax.__version_info__[:2])
    if options is None:
        _warn_of_no_graphs(jax.__version__)
    return options


@functools.cache  # once in a process, though every compiled function asks
def _warn_of_no_graphs(version: str) -> None:
    tried = ", ".join(f"{major}.{minor}" for major, minor in GRAPH_OPTIONS)
    logging.warning(
        f"rounds on this GPU run without CUDA graphs, and so slower: jax is {version}, their "
        "options were "
        f"tried with jax {tried}; install one of these"
    )


def compile_ahead(calls: Sequence[tuple[Callable, tuple]]) -> None:
    """Compiles jitted functions for the arguments that they are about to be called with, side by
    side.

    Tracing is Python's and goes on one core, while XLA compiles what is traced on the others; by
    itself it leaves much of a program's compilation to one core, too. The calls themselves then
    find their programs.
    """
    if len(calls) < 2 or jax.config.jax_disable_jit:
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in [pool.submit(run.lower(*args).compile) for run, args in calls]:
            job.result()


def platform_of(mesh: Mesh) -> str:
    """Of a mesh's devices, which are of one kind."""
    return mesh.devices.flat[0].platform


def on_mesh(run: Callable, mesh: Mesh, donate: bool) -> Callable:
    """Compiles a function of (states, schedule, servers, data, when): every device runs its own
    clients.

    States, schedule and data may be dicts by bucket. What it returns is sharded over the clients.
    """

    def local(states, schedule, *shared):
        def own(s):
            return s._replace(count=s.count[0])

        return run(
            states, jax.tree.map(own, schedule, is_leaf=lambda x: isinstance(x, Schedule)), *shared
        )

    sharded = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(SHARDED, SHARDED, REPLICATED, REPLICATED, REPLICATED),
        out_specs=SHARDED,
        check_vma=False,
    )
    return jax.jit(
        sharded,
        donate_argnums=0 if donate else (),
        compiler_options=compiler_options(platform_of(mesh)),
    )


def buckets_on_mesh(runs: Mapping[str, Callable], mesh: Mesh, donate: bool) -> Callable:
    """Compiles functions of (states, schedule, servers, data, when), one a bucket, to one of
    ({bucket: states}, {bucket: schedule}, servers, {bucket: data}, when) that returns {bucket:
    result}, of the buckets that it is given.

    On GPUs that is one program: buckets do not depend on each other, so that they are parallel
    branches of its graph. On CPU it is one program a bucket: there is nothing to win
    (docs/architecture.md), and less to compile anew.
    """
    if platform_of(mesh) == "gpu":

        def together(states, schedules, servers, data, when):
            return {
                name: runs[name](own, schedules[name], servers, data[name], when)
                for name, own in states.items()
            }

        return on_mesh(together, mesh, donate)
    programs, called = {name: on_mesh(run, mesh, donate) for name, run in runs.items()}, set()

    def one_by_one(states, schedules, servers, data, when):
        given = {
            name: (own, schedules[name], servers, data[name], when) for name, own in states.items()
        }
        compile_ahead(
            [(programs[name], args) for name, args in given.items() if name not in called]
        )
        called.update(given)
        return {name: programs[name](*args) for name, args in given.items()}

    return one_by_one

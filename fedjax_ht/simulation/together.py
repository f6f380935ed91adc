"""Runs of one engine side by side in one program, for accelerators, which one does not fill.

Each run plays in a thread of its own. Where it calls a program of the engine it waits until all
runs do, and the last one calls the program of all runs, which is `jax.vmap` of the engine's.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_ht.core.compiling import compiled
from fedjax_ht.core.trees import PyTree, join_trees, take
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.runs import Each, one_after_another
from fedjax_ht.simulation.simulation import Simulation, simulation_of
from fedjax_ht.simulation.state import SimulationState


def side_by_side(simulations: Sequence[Simulation]) -> Each:
    """Returns the function that plays these runs side by side, see `runs.run_each`. Runs of several
    engines or on several devices, and calls for some of the runs, go one after another; so do runs
    with states in host memory, which are scored in more calls or fewer.

    Args:
      simulations: runs of one method and federation, and of options that differ in the seed alone.
    """
    programs = [simulation.program for simulation in simulations]
    engines = {id(program.engine) for program in programs}
    is_apart = programs[0].mesh.size > 1 or programs[0].options.client_store == "host"
    if len(programs) == 1 or len(engines) > 1 or is_apart:
        return one_after_another
    engine, names = programs[0].engine, ["train", "score", "score_global"]
    if not engine.method.pretrained.host:
        names.append("serve")
    meetings = {name: _Meeting(name, getattr(engine, name), len(programs)) for name in names}
    joined = [_joined(number, program, meetings) for number, program in enumerate(programs)]

    def each(function: Callable, some: Sequence[Simulation], states: Sequence[Any]) -> list:
        if len(some) < len(joined):
            return one_after_another(function, some, states)
        config: Any = jax.config  # declares none of its options
        precision = config.jax_default_matmul_precision  # a thread has its own

        def of_one(simulation: Simulation, state: SimulationState) -> Any:
            try:
                with jax.default_matmul_precision(precision):
                    return function(simulation, state)
            except BaseException:
                for meeting in meetings.values():
                    meeting.barrier.abort()  # nobody waits for a run that has failed
                raise

        with ThreadPoolExecutor(len(joined)) as pool:
            results = [pool.submit(of_one, *run) for run in zip(joined, states)]
        for result in results:
            error = result.exception()
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [result.result() for result in results]

    return each


def _joined(number: int, program: Program, meetings: dict[str, "_Meeting"]) -> Simulation:
    """Returns run `number` as one that calls its engine's programs where all runs do."""
    calls = {name: functools.partial(of_all.call, number) for name, of_all in meetings.items()}
    engine = program.engine._replace(**calls)
    server = program.server._replace(step=engine.serve)
    return simulation_of(program._replace(engine=engine, server=server))


class _Meeting:
    """The calls of one program by `count` runs, which wait for each other."""

    def __init__(self, name: str, function: Callable, count: int):
        self.name, self.function = name, function
        self.arguments: list[Any] = [None] * count
        self.results: list[Any] = [None] * count
        self.barrier = threading.Barrier(count, self._call_all)

    def call(self, number: int, *arguments: PyTree) -> PyTree:
        """Waits for the calls of all runs, and returns the result of run `number`."""
        self.arguments[number] = arguments
        self.barrier.wait()
        result, self.results[number], self.arguments[number] = self.results[number], None, None
        return result

    def _call_all(self) -> None:
        calls = _with_shared(self.name, self.arguments)
        leaves, forms = [jax.tree.leaves(arguments) for arguments in calls], set()
        for call, arrays in zip(calls, leaves):
            forms.add((jax.tree.structure(call), *map(jnp.shape, arrays)))
        if len(forms) > 1:  # splits of other lengths have no program in common
            self.results[:] = [self.function(*arguments) for arguments in self.arguments]
            return
        is_shared = tuple(all(x is xs[0] for x in xs) for xs in zip(*leaves))
        common = [x for x, shared in zip(leaves[0], is_shared) if shared]
        apart = [[x for x, shared in zip(xs, is_shared) if not shared] for xs in leaves]
        states = calls[0][0] if self.name == "train" else ()  # its states, whose buffers it takes
        donated = is_shared[: len(jax.tree.leaves(states))].count(False)
        program = _program(self.function, jax.tree.structure(calls[0]), is_shared)
        buffers, kept = [xs[:donated] for xs in apart], [xs[donated:] for xs in apart]
        self.results[:] = program(buffers, kept, common)


@functools.lru_cache(16)
def _program(function: Callable, structure: Any, is_shared: tuple[bool, ...]) -> Callable:
    """Compiles (arrays of each run, which are donated, other arrays of each run, arrays that all
    runs share) -> the result of each run."""

    def of_one(of_run: list[jax.Array], common: list[jax.Array]) -> PyTree:
        apart, together = iter(of_run), iter(common)
        arrays = [next(together if shared else apart) for shared in is_shared]
        return function(*jax.tree.unflatten(structure, arrays))

    def of_all(donated, kept, common) -> list[PyTree]:
        runs = [[*first, *second] for first, second in zip(donated, kept)]
        results = jax.vmap(of_one, in_axes=(0, None))(join_trees(jnp.stack, runs), common)
        return [take(results, number) for number in range(len(runs))]

    return compiled(of_all, donate_argnums=[0])


def _with_shared(name: str, calls: Sequence[tuple]) -> Sequence[tuple]:
    """Returns calls that share what steers a program: choices and lengths of loops that differ
    between runs would compute both branches, and copy all states in every turn."""
    if name == "serve":  # (server, delivery, round, ...)
        return [(*of_run[:2], calls[0][2], *of_run[3:]) for of_run in calls]
    if name not in ("train", "score"):
        return calls
    counts, equal = {}, []
    for bucket in calls[0][1]:
        # The rows of padding that are then played are read by nobody.
        counts[bucket] = functools.reduce(jnp.maximum, [call[1][bucket].count for call in calls])
    for states, schedules, server, data, _ in calls:
        longest = {name: of_run._replace(count=counts[name]) for name, of_run in schedules.items()}
        equal.append((states, longest, server, data, calls[0][4]))
    return equal


def fastest(simulations: Sequence[Simulation]) -> Each:
    """Returns `side_by_side`; on CPU, where that wins nothing, `one_after_another`."""
    if jax.default_backend() == "cpu":
        return one_after_another
    return side_by_side(simulations)

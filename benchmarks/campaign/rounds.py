"""The campaign's measurements of rounds: a group's step by lanes, and whole rounds of methods."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from unittest import mock

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh

from benchmarks.report import peak_memory
from fedjax_ht.core import compiling
from fedjax_ht.core.federation import Federation, make_federation
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.method import Method
from fedjax_ht.data.client_data import FederationData, arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.partition import make_partition
from fedjax_ht.methods import METHODS
from fedjax_ht.models import model_group
from fedjax_ht.simulation import engine
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, bound_simulation, make_simulation

SHAPE, CLASSES, BATCH = (32, 32, 3), 10, 10
NONE = np.array([], np.int64)


def random_images(
    count: int, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES
) -> Dataset:
    """Makes images uint8 [count, *shape] with labels that say nothing of them."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *shape), np.uint8)
    labels = rng.integers(0, classes, count).astype(np.int32)
    return Dataset("random images", images, labels, tuple(map(str, range(classes))))


def federation_of(group: str, clients: int) -> Federation:
    return make_federation(model_group(group, CLASSES, SHAPE), SHAPE, CLASSES, clients)


def recipe() -> LocalTraining:
    return LocalTraining(optax.sgd(0.01), BATCH)


def timed_rounds(
    simulations: Sequence[Simulation], rounds: int, score: bool = True, evaluate: bool = False
) -> dict:
    """Times rounds, and with `evaluate` an evaluation of all clients behind each.

    Args:
      simulations: the runs.
      rounds: at least two; the first compiles.
      score: whether rounds score their participants.
      evaluate: whether evaluations are timed, too.

    Returns:
      Seconds: "init" to make the first states; "compile", those of the first round and evaluation
      beyond later ones; "round" and, with `evaluate`, "evaluation", medians of the later ones;
      "rounds", all. "peak", the most bytes that the device held.
    """
    start = time.perf_counter()
    states = [simulation.init() for simulation in simulations]
    jax.block_until_ready([(state.clients, state.server) for state in states])
    first, seconds, evaluations = time.perf_counter() - start, [], []
    for _ in range(rounds):
        start = time.perf_counter()
        states = [run.run_round(state, score)[0] for run, state in zip(simulations, states)]
        jax.block_until_ready([(state.clients, state.server) for state in states])
        seconds.append(time.perf_counter() - start)
        if evaluate:
            start = time.perf_counter()
            for run, state in zip(simulations, states):
                run.evaluate(state)  # what it returns is on the host
            evaluations.append(time.perf_counter() - start)
    times = {"round": statistics.median(seconds[1:])}
    compiling = seconds[0] - times["round"]
    if evaluate:
        times["evaluation"] = statistics.median(evaluations[1:])
        compiling += evaluations[0] - times["evaluation"]
    return {"init": first, "compile": compiling, "rounds": seconds, "peak": peak_memory()} | times


def apart(runs: dict, mesh: Mesh, donate: bool) -> Callable:
    """Compiles a program a bucket on any device, as `compiling.buckets_on_mesh` does on CPU."""
    programs = {name: compiling.on_mesh(run, mesh, donate) for name, run in runs.items()}

    def one_by_one(states, schedules, servers, data, round):
        return {
            name: run(states[name], schedules[name], servers, data[name], round)
            for name, run in programs.items()
        }

    return one_by_one


@contextlib.contextmanager
def compiled(graphs: bool, together: bool):
    """Compiles the simulations made within another way.

    Args:
      graphs: False compiles without CUDA graphs of loops.
      together: False makes a program of every bucket.
    """
    with contextlib.ExitStack() as stack:
        if not graphs:
            stack.enter_context(
                mock.patch.object(compiling, "compiler_options", lambda platform: None)
            )
        if not together:
            stack.enter_context(mock.patch.object(engine, "buckets_on_mesh", apart))
        engine.forget_engines()  # programs that were compiled in the other way
        stack.callback(engine.forget_engines)
        yield


def step_time(
    group: str,
    lanes: int,
    steps: int,
    rounds: int = 6,
    precision: str | None = None,
    graphs: bool = True,
    together: bool = True,
) -> dict:
    """Measures a step of `lanes` clients of every architecture, in rounds of local training.

    Args:
      group: of models.
      lanes: clients side by side; each architecture has as many.
      steps: of every client in a round, many, so that what a round takes besides counts little.
      rounds: the first of them compiles.
      precision: of products, if another than is set.
      graphs: False compiles as XLA does by itself, where loops are no part of CUDA graphs.
      together: False makes a program of every architecture.
    """
    dataset, modules = random_images(min(steps * BATCH, 10_000)), model_group(group, CLASSES, SHAPE)
    federation = federation_of(group, lanes * len(modules))
    # All clients train on the same images, which a device then holds once.
    indices = ClientIndices(np.arange(steps * BATCH) % len(dataset.labels), NONE, NONE)
    data = arranged(dataset, (indices,) * federation.num_clients, federation)
    training, options = recipe(), SimulationOptions(lanes=lanes, devices=1)
    products = jax.default_matmul_precision(precision or jax.config.jax_default_matmul_precision)
    with products, compiled(graphs, together):
        simulation = make_simulation(METHODS["local"](training), federation, data, options)
        times = timed_rounds([simulation], rounds)
    setting = {"group": group, "lanes": lanes, "steps": steps, "precision": precision}
    setting |= {"graphs": graphs, "together": together}
    return setting | {"ms": 1e3 * times["round"] / steps} | times


def kernel_time(graphs: bool, kernels: int = 20, iterations: int = 1000) -> dict:
    """Measures microseconds of small products in a loop that depend on each other.

    XLA can fuse none of them.
    """

    def step(_, x):
        for _ in range(kernels):
            x = x @ x
        return x

    gpu = compiling.compiler_options(jax.default_backend()) if graphs else None
    run = jax.jit(lambda x, n: lax.fori_loop(0, n, step, x), compiler_options=gpu)
    # A permutation: its powers stay finite.
    x, seconds = jax.numpy.eye(32)[np.random.default_rng(0).permutation(32)], []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(run(x, iterations))
        seconds.append(time.perf_counter() - start)
    return {"graphs": graphs, "us": 1e6 * min(seconds[1:]) / (kernels * iterations)}


def skewed(clients: int, samples: int) -> tuple[Dataset, tuple[ClientIndices, ...]]:
    """Images of which a client trains on so many on average, by PFLlib's Dirichlet shares; none are
    left to test on, which would be another program to compile."""
    dataset = random_images(clients * samples * 4 // 3)
    partition = make_partition("practical", dataset, clients, alpha=0.1)
    return dataset, tuple(ClientIndices(client.train, NONE, NONE) for client in partition)


def simulations_of(
    method: Method, federation: Federation, data: FederationData, trials: int
) -> list[Simulation]:
    """Returns the simulations of so many seeds, on the same samples."""
    made = [make_simulation(method, federation, data)]
    for seed in range(1, trials):
        options = SimulationOptions(seed=seed)
        made.append(bound_simulation(method, federation, data, options=options, beside=made[0]))
    return made


def kept_programs(cache: str) -> list[str]:
    """Keeps compiled programs in the folder `cache`, for a process that is stopped; "" keeps none.

    Returns:
      A list that gets an entry for each program that is found there.
    """
    hits = []
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.monitoring.register_event_listener(
            lambda name, **_: hits.append(name) if "cache_hit" in name else None
        )
    return hits


def whole_round(
    method: str,
    trials: int,
    group: str,
    clients: int = 20,
    samples: int = 500,
    rounds: int = 4,
    cache: str = "",
    together: bool = True,
) -> dict:
    """Measures a round of all clients of a method, one epoch each, with its server.

    Args:
      method, trials, group: what to run.
      clients, samples: how many, and on how many images one trains on average.
      rounds: the first of them compiles.
      cache: see `kept_programs`.
      together: see `step_time`.
    """
    hits = kept_programs(cache)
    federation, training = federation_of(group, clients), recipe()
    data = arranged(*skewed(clients, samples), federation)
    with compiled(True, together):
        simulations = simulations_of(METHODS[method](training), federation, data, trials)
    steps = num_steps(training, data.counts["train"])
    setting = {
        "method": method,
        "trials": trials,
        "group": group,
        "clients": clients,
        "together": together,
    }
    setting |= {
        "steps": int(np.sum(steps)),
        "longest": int(np.max(steps)),
        "lanes": simulations[0].lanes,
    }
    return setting | timed_rounds(simulations, rounds) | {"cached": len(hits)}

"""Counts the programs compiled by simulations in one process, and their CPU seconds.

    python -m benchmarks.second_simulation [--method=fedtgp] [--out=benchmarks/results/NAME.md]

A row is a simulation of its own, from `make_simulation` to the first round and an evaluation. The
last row is a lower bound for training and scoring the same two models: an epoch of plain `jax.jit`,
and an accuracy.
"""

import functools
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import fedjax_ht as fl
from benchmarks.report import machine, number, publish, table
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.trust.defences import DEFENCES

_METHOD = flags.DEFINE_string("method", "fedproto", "Name of the method.")

CLIENTS, CLASSES, SHAPE, SAMPLES = 20, 10, (28, 28, 1), 2000
COMPILED: list[str] = []  # one entry per program
MODULES = {"small": fl.mlp(CLASSES, (32,)), "large": fl.mlp(CLASSES, (64, 32))}


def make_dataset() -> fl.Dataset:
    """Makes images of noise; nothing here depends on their content."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SAMPLES, *SHAPE), dtype=np.uint8)
    return fl.Dataset("noise", images, rng.integers(0, CLASSES, SAMPLES), tuple("0123456789"))


def play(
    name: str, dataset: fl.Dataset, *, split: int, seed: int, rate: float, robust: tuple = ()
) -> None:
    """Makes a simulation with all parts anew, and runs a round and an evaluation."""
    training = fl.LocalTraining(optax.sgd(rate))
    partition = fl.make_partition("dirichlet", dataset, CLIENTS, seed=split, alpha=0.5)
    federation = fl.make_federation(MODULES, SHAPE, CLASSES, num_clients=CLIENTS)
    data = fl.make_federation_data(dataset, partition, federation)
    method = fl.method_factory(name)(training)
    options = fl.SimulationOptions(seed=seed, robust=robust)
    simulation = fl.make_simulation(method, federation, data, options)
    state, _ = simulation.run_round(simulation.init())
    jax.block_until_ready(state.server)
    simulation.evaluate(state)


def plain_loop(dataset: fl.Dataset) -> None:
    """Runs an epoch and an accuracy of the two models in plain JAX."""
    images, labels = jnp.asarray(dataset.inputs), jnp.asarray(dataset.labels)
    optimizer = optax.sgd(0.1)
    for module in MODULES.values():

        def logits(params, x, module=module):
            return module.apply({"params": params}, x / 127.5 - 1)

        def loss(params, x, y, logits=logits):
            return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

        @jax.jit
        def epoch(params, order, loss=loss):
            def step(i, carry):
                params, state = carry
                index = jax.lax.dynamic_slice(order, (i * 10,), (10,))
                gradients = jax.grad(loss)(params, images[index], labels[index])
                updates, state = optimizer.update(gradients, state)
                return optax.apply_updates(params, updates), state

            return jax.lax.fori_loop(0, len(order) // 10, step, (params, optimizer.init(params)))[0]

        @jax.jit
        def accuracy(params, logits=logits):
            return jnp.mean(jnp.argmax(logits(params, images), -1) == labels)

        params = module.init(jax.random.key(0), jnp.zeros((1, *SHAPE)))["params"]
        accuracy(epoch(params, jnp.arange(100))).block_until_ready()


def measured(run: Callable[[], None]) -> tuple[int, float]:
    """Returns the number of programs that a call compiles, and its CPU seconds."""
    before, start = len(COMPILED), time.process_time()
    run()
    return len(COMPILED) - before, time.process_time() - start


def note(event: str, _, **__) -> None:
    """Receives every timed event of jax."""
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


def main(_) -> None:
    """Measures all rows."""
    jax.config.update("jax_enable_compilation_cache", False)
    jax.monitoring.register_event_duration_secs_listener(note)
    warnings.simplefilter("ignore")  # what these clients cannot learn
    dataset = make_dataset()
    first = functools.partial(play, _METHOD.value, dataset, split=1, seed=0, rate=0.1)
    runs = {
        "the first": first,
        "the same again": first,
        "another seed": functools.partial(first, seed=1),
        "another split": functools.partial(first, split=2),
        "another learning rate": functools.partial(first, rate=0.05),
        "with a defence": functools.partial(first, robust=(DEFENCES["median"](),)),
        "a plain loop of the two models": functools.partial(plain_loop, dataset),
    }
    rows = []
    for row, run in runs.items():
        compiled, seconds = measured(run)
        rows.append([row, str(compiled), number(seconds)])
    text = table([_METHOD.value, "programs compiled", "CPU seconds"], rows)
    publish(f"{machine()}\n\n{text}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)

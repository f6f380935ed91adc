"""DFRD's server: one round's distillation, how much of it the teachers take, and what its
convolutions alone would.

    python -m benchmarks.dfrd_server [--iterations=10] [--out=benchmarks/results/NAME.md]

Ten clients with rho = 5, 32x32x3 images, batch 64, I_g = 2, I_d = 5, with the moving average's
images. Random weights: time does not depend on them. The bound is the sum over all convolutions of
the step, each timed alone, in a loop, with the gradients that the step takes of it.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax

from benchmarks.report import machine, number, publish, table
from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.federation import Federation, init_variables, make_sliced_federation
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.dfrd import dfrd
from fedjax_ht.methods.shared.composition import losses_of
from fedjax_ht.methods.shared.distillation import (
    Distillation,
    Learner,
    init_generator,
    make_generator,
)
from fedjax_ht.methods.shared.distillation_loop import distil
from fedjax_ht.methods.shared.ensemble import Teachers, ask, label_weights
from fedjax_ht.metrics.flops import program_flops
from fedjax_ht.models import sliced_network, width_budgets
from fedjax_ht.models.conditional import CHANNELS
from fedjax_ht.models.sliced import WIDTHS, sliced_width
from fedjax_ht.ops import conv2d, conv_transpose2d
from fedjax_ht.runner.cli import parse_flags

CLASSES, CLIENTS, SHAPE, LOOP = 10, 10, (32, 32, 3), 4
_ITERATIONS = flags.DEFINE_integer(
    "iterations", 10, "A that is timed; seconds are given for 10.", lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    "repeats", 3, "Timed calls of each, of which the fastest counts.", lower_bound=1
)
RECIPE, _ = losses_of(dfrd, "released")


class Convolution(NamedTuple):
    """One layer: what it does to a batch, and the shapes."""

    run: Callable[[jax.Array, jax.Array], jax.Array]
    image: tuple[int, int, int]
    kernel: tuple[int, int, int, int]


def network_layers(rate: float) -> list[Convolution]:
    """Of the 4-conv CNN."""
    channels = (SHAPE[-1], *(sliced_width(width, rate) for width in WIDTHS))

    def run(x, kernel):
        return conv2d(x, kernel, 1, 1)

    sides = (SHAPE[0] >> i for i in range(len(WIDTHS)))
    return [
        Convolution(run, (n, n, a), (3, 3, a, b))
        for n, (a, b) in zip(sides, itertools.pairwise(channels))
    ]


def generator_layers() -> list[Convolution]:
    """Of the generator of 32 pixels."""
    channels = (RECIPE.noise_dim, *CHANNELS[:3], SHAPE[-1])
    layers = []
    for i, (a, b) in enumerate(itertools.pairwise(channels)):
        side, how = (1, (1, 0)) if i == 0 else (2 << i, (2, 1))

        def run(x, kernel, how=how):
            return conv_transpose2d(x, kernel, *how)

        layers.append(Convolution(run, (side, side, a), (4, 4, a, b)))
    return layers


def fastest(run: Callable, *args, repeats: int | None = None) -> float:
    """Seconds, after a first call that compiles; --repeats calls unless told how many."""
    seconds = []
    for _ in range(1 + (repeats or _REPEATS.value)):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def layer_seconds(layer: Convolution, by: tuple[int, ...]) -> float:
    """One layer forward, and its gradients by the arguments named: 0 the images, 1 the kernel."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((RECIPE.batch_size, *layer.image)).astype(np.float32)
    kernel = rng.standard_normal(layer.kernel).astype(np.float32)

    def step(_, arguments):
        out, back = jax.vjp(layer.run, *arguments)
        # Something of every result, so that none is left out, and none can be taken out of the
        # loop.
        gradients = back(out)
        used = [gradients[i].ravel()[0] for i in by] if by else [out.ravel()[0]]
        return tuple(a + 1e-9 * sum(used) for a in arguments)

    return fastest(jax.jit(lambda *args: lax.fori_loop(0, LOOP, step, args)), x, kernel) / LOOP


def convolution_seconds(rates: tuple[float, ...]) -> float:
    """All convolutions of a server step, one by one."""

    def total(layers, by):
        return sum(layer_seconds(layer, by) for layer in layers)

    forward, led = (
        {rate: total(network_layers(rate), by) for rate in set(rates)} for by in ((), (0,))
    )
    student, student_learns = total(network_layers(1.0), ()), total(network_layers(1.0), (0, 1))
    generator, generator_learns = (total(generator_layers(), by) for by in ((), (0, 1)))
    generator_step = sum(led[rate] for rate in rates) + student + generator_learns
    student_step = 2 * (sum(forward[rate] for rate in rates) + student_learns + generator)
    return 10 * (RECIPE.generator_steps * generator_step + RECIPE.student_steps * student_step)


def clients_of(count: int) -> Federation:
    """So many clients of the 4-conv CNN, rho = 5."""
    return make_sliced_federation(
        sliced_network("conv4", CLASSES, SHAPE), width_budgets(count, 5), SHAPE, CLASSES
    )


def team(federation: Federation) -> Teachers:
    """Every client's model, and random label counts."""
    params = {}
    for bucket in federation.buckets:
        keys = jax.random.split(jax.random.key(0), len(federation.members(bucket)))
        params[bucket.name] = jax.jit(
            lambda keys, bucket=bucket: lax.map(
                lambda key: init_variables(bucket, key)["params"], keys
            )
        )(keys)
    clients = federation.num_clients
    counts = np.random.default_rng(0).integers(0, 500, (clients, CLASSES))
    present = jnp.ones(clients, bool)
    return Teachers(params, {}, *label_weights(jnp.asarray(counts), present), present)


def teacher_seconds(federation: Federation, teachers: Teachers) -> tuple[float, float]:
    """Of asking all teachers about a batch; and of that with the gradient by the images."""
    images = jax.random.normal(jax.random.key(1), (RECIPE.batch_size, *SHAPE))
    labels = jnp.arange(RECIPE.batch_size) % CLASSES
    everyone = jnp.ones(RECIPE.batch_size, bool)

    def ensemble(teachers, x):
        return ask(federation.buckets, teachers, x, labels).ensemble

    def loss(x, teachers):
        return cross_entropy(ensemble(teachers, x), labels, everyone)

    return fastest(jax.jit(ensemble), teachers, images), fastest(
        jax.jit(jax.value_and_grad(loss)), images, teachers
    )


def round_of(federation: Federation, recipe: Distillation) -> tuple[Callable, tuple]:
    """A round's distillation by this recipe from a team, and what it is of."""
    model = jax.jit(lambda key: init_variables(federation.global_model, key)["params"])(
        jax.random.key(2)
    )
    generator = jax.jit(lambda key: init_generator(make_generator(federation, recipe), key))(
        jax.random.key(3)
    )
    _, losses = losses_of(dfrd, "released", **vars(recipe))

    def step(teachers, learner, average, round, key):
        return distil(
            recipe, losses, federation, federation.buckets, teachers, learner, average, round, key
        )

    return step, (
        team(federation),
        Learner(model, generator),
        generator,
        jnp.int32(1),
        jax.random.key(4),
    )


def round_flops(step: Callable, args: tuple) -> float:
    return float(program_flops(jax.make_jaxpr(step)(*args)))


def round_seconds(step: Callable, args: tuple, repeats: int | None = None) -> tuple[float, float]:
    """To compile, and of a call."""
    start = time.perf_counter()
    # As a simulation compiles its server.
    compiled = (
        jax.jit(step, compiler_options=compiler_options(jax.default_backend()))
        .lower(*args)
        .compile()
    )
    compiling = time.perf_counter() - start
    return compiling, fastest(compiled, *args, repeats=repeats)


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    rates, federation = width_budgets(CLIENTS, 5), clients_of(CLIENTS)
    recipe, rounds = (
        dataclasses.replace(RECIPE, iterations=_ITERATIONS.value),
        10 / _ITERATIONS.value,
    )
    step, args = round_of(federation, recipe)
    compiling, seconds = round_seconds(step, args)
    seconds, flops = rounds * seconds, rounds * round_flops(step, args)
    once = (
        rounds
        * round_seconds(
            *round_of(federation, dataclasses.replace(recipe, student_batch="iteration"))
        )[1]
    )
    told, led = teacher_seconds(federation, args[0])
    of_teachers = 10 * (recipe.generator_steps * led + 2 * recipe.student_steps * told)
    bound = convolution_seconds(rates)

    def share(part):
        return f"{part / seconds:.0%}"

    rows = [
        ["a round's distillation", number(seconds), "100%"],
        ["teachers in it", number(of_teachers), share(of_teachers)],
        ["its convolutions, each alone", number(bound), share(bound)],
        ["a round with one student batch an iteration", number(once), share(once)],
    ]
    text = (
        f"DFRD's server, {CLIENTS} clients of the 4-conv CNN, rho = 5, {SHAPE}, A = 10 (timed: "
        f"{recipe.iterations}), "
        f"I_g = {recipe.generator_steps}, I_d = {recipe.student_steps}, batch "
        f"{recipe.batch_size}. {machine()} "
        f"Compiled in {compiling:.0f} s; {flops / 1e12:.2f} TFLOP, {flops / seconds / 1e9:.0f} "
        "GFLOP/s."
    )
    publish(f"{text}\n\n{table(('what', 'seconds', 'share'), rows)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)

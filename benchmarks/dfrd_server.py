"""Times DFRD's server: one round's distillation, and the teachers' share of it.

    python -m benchmarks.dfrd_server [--iterations=10] [--out=benchmarks/results/NAME.md]

Ten clients with rho = 5, 32x32x3 images, batch 64, I_g = 2, I_d = 5, with the moving average's
images. Weights are random, since time does not depend on them.
"""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax

from benchmarks.report import machine, number, publish, table
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import Federation, make_sliced_federation
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.data_free.bases import Server, Teachers, ask, label_weights
from fedjax_ht.methods.data_free.dfrd import losses
from fedjax_ht.methods.data_free.distil import distil
from fedjax_ht.methods.data_free.image_generator import init_generator, make_generator
from fedjax_ht.methods.data_free.method import settle
from fedjax_ht.methods.data_free.options import Distillation
from fedjax_ht.metrics.flops import program_flops
from fedjax_ht.models import sliced_network, width_budgets

CLASSES, CLIENTS, SHAPE = 10, 10, (32, 32, 3)
_ITERATIONS = flags.DEFINE_integer(
    "iterations", 10, "A that is timed; seconds are given for 10.", lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    "repeats", 3, "Timed calls of each, of which the fastest counts.", lower_bound=1
)
RECIPE, _ = settle(losses, "released", {"alpha": 0.5})


def fastest(run: Callable, *args, repeats: int | None = None) -> float:
    """Returns seconds of the fastest call, after a first one that compiles."""
    seconds = []
    for _ in range(1 + (repeats or _REPEATS.value)):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def clients_of(count: int) -> Federation:
    """Makes a federation of `count` clients of the 4-conv CNN, rho = 5."""
    return make_sliced_federation(
        sliced_network("conv4", CLASSES, SHAPE), width_budgets(count, 5), SHAPE, CLASSES
    )


def team(federation: Federation) -> Teachers:
    """Makes every client's model, and random label counts."""
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
    """Returns seconds of all teachers on a batch, without and with the gradient by the images."""
    images = jax.random.normal(jax.random.key(1), (RECIPE.batch_size, *SHAPE))
    labels = jnp.arange(RECIPE.batch_size) % CLASSES
    everyone = jnp.ones(RECIPE.batch_size, bool)

    def ensemble(teachers, x):
        return ask(federation, teachers, x, labels=labels).ensemble

    def loss(x, teachers):
        return cross_entropy(ensemble(teachers, x), labels, everyone)

    forward = fastest(jax.jit(ensemble), teachers, images)
    return forward, fastest(jax.jit(jax.value_and_grad(loss)), images, teachers)


def round_of(federation: Federation, recipe: Distillation) -> tuple[Callable, tuple]:
    """Returns a round's distillation by a recipe, and its arguments."""
    model = jax.jit(lambda key: init_variables(federation.global_model, key)["params"])(
        jax.random.key(2)
    )
    generator = jax.jit(lambda key: init_generator(make_generator(federation, recipe), key))(
        jax.random.key(3)
    )
    _, objective = settle(losses, "released", vars(recipe))

    def step(teachers, server, round, key):
        return distil(recipe, objective, federation, teachers, server, Context(key, round, None))

    server = Server(model=model, averaged=(), generator=generator, average=generator)
    return step, (team(federation), server, jnp.int32(1), jax.random.key(4))


def round_flops(step: Callable, args: tuple) -> float:
    return float(program_flops(jax.make_jaxpr(step)(*args)))


def round_seconds(step: Callable, args: tuple, repeats: int | None = None) -> tuple[float, float]:
    """Returns seconds of compilation, and of a call."""
    start = time.perf_counter()
    # As in a simulation's server.
    jitted = jax.jit(step, compiler_options=compiler_options(jax.default_backend()))
    compiled = jitted.lower(*args).compile()
    compiling = time.perf_counter() - start
    return compiling, fastest(compiled, *args, repeats=repeats)


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    federation = clients_of(CLIENTS)
    recipe = dataclasses.replace(RECIPE, iterations=_ITERATIONS.value)
    rounds = 10 / _ITERATIONS.value  # the report is for A = 10
    step, args = round_of(federation, recipe)
    compiling, seconds = round_seconds(step, args)
    seconds, flops = rounds * seconds, rounds * round_flops(step, args)
    shared_batch = dataclasses.replace(recipe, student_batch="iteration")
    _, shared_seconds = round_seconds(*round_of(federation, shared_batch))
    forward, with_gradient = teacher_seconds(federation, args[0])
    teachers = 10 * (recipe.generator_steps * with_gradient + 2 * recipe.student_steps * forward)
    rows = []
    for part, spent in (
        ("a round's distillation", seconds),
        ("teachers in it", teachers),
        ("a round with one student batch an iteration", rounds * shared_seconds),
    ):
        rows.append([part, number(spent), f"{spent / seconds:.0%}"])
    text = (
        f"DFRD's server, {CLIENTS} clients of the 4-conv CNN, rho = 5, {SHAPE}, A = 10 (timed: "
        f"{recipe.iterations}), I_g = {recipe.generator_steps}, I_d = {recipe.student_steps}, "
        f"batch {recipe.batch_size}. {machine()} Compiled in {compiling:.0f} s; "
        f"{flops / 1e12:.2f} TFLOP, {flops / seconds / 1e9:.0f} GFLOP/s."
    )
    publish(f"{text}\n\n{table(('part', 'seconds', 'share'), rows)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)

"""How long one training step of each architecture takes to trace and compile.

python -m benchmarks.compile_step [--architectures=resnet152,googlenet]
[--out=benchmarks/results/NAME.md]
"""

import time

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks.report import machine, number, publish, table
from fedjax_ht.core.federation import Bucket, features, init_variables, logits, make_federation
from fedjax_ht.losses import cross_entropy
from fedjax_ht.models import model_group
from fedjax_ht.runner.cli import parse_flags

SHAPE, CLASSES, BATCH = (32, 32, 3), 10, 10
ARCHITECTURES = (
    "cnn4", "resnet4", "resnet6", "resnet8", "resnet10", "resnet18", "resnet34", "resnet50",
    "resnet101", "resnet152",
    "googlenet", "mobilenet_v2", "vit_small", "vit_b16", "vit_b32",
)  # fmt: skip

_ARCHITECTURES = flags.DEFINE_list(
    "architectures", list(ARCHITECTURES), "Groups of one architecture."
)


def sgd_step(bucket: Bucket):
    """(variables, x, y) -> variables after a step of cross-entropy."""

    def step(variables, x, y):
        mask = jnp.ones(BATCH, bool)

        def loss(params):
            representations, stats = features(
                bucket, params, variables["stats"], x, mask, train=True
            )
            return cross_entropy(logits(bucket, params, representations), y, mask), stats

        gradients, stats = jax.grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - 0.01 * g, variables["params"], gradients)
        return {"params": params, "stats": stats}

    return step


def seconds(name: str) -> tuple[float, float]:
    """To trace and lower, and to compile."""
    modules = model_group(name, CLASSES, SHAPE)
    [bucket] = make_federation(modules, SHAPE, CLASSES, num_clients=1).buckets
    variables = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    x, y = (
        jax.ShapeDtypeStruct((BATCH, *SHAPE), jnp.float32),
        jax.ShapeDtypeStruct((BATCH,), jnp.int32),
    )
    start = time.perf_counter()
    lowered = jax.jit(sgd_step(bucket), donate_argnums=0).lower(variables, x, y)
    traced = time.perf_counter()
    lowered.compile()
    return traced - start, time.perf_counter() - traced


def main(_) -> None:
    rows = []
    for name in _ARCHITECTURES.value:
        traced, compiled = seconds(name)
        rows.append([name, number(traced), number(compiled), number(traced + compiled)])
        print(*rows[-1], flush=True)
    head = ("architecture", "trace and lower", "compile", "together")
    publish(
        f"Seconds for one training step, batch {BATCH}, {SHAPE}. {machine()}\n\n{table(head, rows)}"
    )


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)

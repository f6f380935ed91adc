"""Which lowering of the convolution to take: forward and backward of the papers' layers, clients scanned or vmapped.

python -m benchmarks.conv [--out=benchmarks/results/conv_cpu.md]
"""

import functools
import time

import jax
import jax.numpy as jnp
from absl import app
from jax import lax

from benchmarks.report import machine, publish
from fedjax_ht.ops import conv2d

CLIENTS, STEPS = 20, 2
LAYERS = {  # (H, W, C) -> channels out, kernels 5x5
    "4-layer CNN, conv 1, 28x28x1": ((28, 28, 1), 32),
    "4-layer CNN, conv 2, 12x12x32": ((12, 12, 32), 64),
    "CNN-1, conv 2, 14x14x16": ((14, 14, 16), 32),
}


def client_steps(lowering: str, kernel: jax.Array, x: jax.Array) -> jax.Array:
    """STEPS gradient steps of one client on one layer: value, kernel gradient and input gradient."""

    def loss(kernel, x):
        return jnp.sum(conv2d(x, kernel, lowering=lowering) ** 2)

    def step(_, carry):
        kernel, x = carry
        kernel_gradient, x_gradient = jax.grad(loss, argnums=(0, 1))(kernel, x)
        return kernel - 1e-9 * kernel_gradient, x - 1e-9 * x_gradient

    return lax.fori_loop(0, STEPS, step, (kernel, x))


def milliseconds(lowering: str, lanes: int, shape: tuple[int, int, int], features: int, batch: int) -> float:
    """Milliseconds of one client's step: after a warm-up, the best of three runs (native: one)."""
    keys = jax.random.split(jax.random.key(0))
    kernels = jax.random.normal(keys[0], (CLIENTS, 5, 5, shape[-1], features)) * 0.05
    x = jax.random.normal(keys[1], (CLIENTS, batch, *shape))
    one = functools.partial(client_steps, lowering)
    run = jax.jit(lambda k, x: lax.map(lambda args: one(*args), (k, x), batch_size=None if lanes == 1 else lanes))
    jax.block_until_ready(run(kernels, x))
    seconds = []
    for _ in range(1 if lowering == "native" else 3):  # the native one is slow, and far from the others
        start = time.perf_counter()
        jax.block_until_ready(run(kernels, x))
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds) / (CLIENTS * STEPS)


def main(_) -> None:
    lines = [
        f"One convolution layer, forward and both gradients, {CLIENTS} clients, ms a client step. {machine()}",
        "",
        "| layer | batch | native, scan | native, vmap 20 | patches, scan | patches, vmap 4 | patches, vmap 20 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (shape, features) in LAYERS.items():
        for batch in (10, 64):
            variants = [("native", 1), ("native", 20), ("patches", 1), ("patches", 4), ("patches", 20)]
            if batch == 64:  # the native ones take minutes there, and lose already at batch 10
                cells = ["-", "-", *(f"{milliseconds(low, n, shape, features, batch):.2f}" for low, n in variants[2:])]
            else:
                cells = [f"{milliseconds(low, n, shape, features, batch):.2f}" for low, n in variants]
            lines.append(f"| {name} | {batch} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    publish("\n".join(lines))


if __name__ == "__main__":
    app.run(main)

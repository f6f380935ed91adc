"""How many neighbouring outputs of a row a convolution should make at once on a CPU: training steps
of first and second layers with 1, 2 and 4 of them (`ops.conv.columns_at_once`).

    python -m benchmarks.conv_columns --out=benchmarks/results/conv_columns_cpu.md

A first layer needs no gradient of its input, which is images; a second layer does.
"""

import os
import sys
from unittest import mock

import jax
import jax.numpy as jnp
from absl import app
from jax import lax

from benchmarks.conv import Layer, draw, timed
from benchmarks.report import machine, number, publish, table
from fedjax_ht.ops import conv
from fedjax_ht.runner.cli import parse_flags

STEPS, BATCHES, COLUMNS = 10, (10, 50), (1, 2, 4)

FIRST = (
    Layer("5x5, 32x32x3 -> 6 (PyTorch's tutorial)", (32, 32, 3), 6, 5),
    Layer("5x5, 28x28x1 -> 6 (LeNet)", (28, 28, 1), 6, 5, 1, 2),
    Layer("5x5, 28x28x1 -> 16 (CNN-1..5)", (28, 28, 1), 16, 5),
    Layer("5x5, 32x32x3 -> 16 (CNN-1..5)", (32, 32, 3), 16, 5),
    Layer("5x5, 28x28x1 -> 32 (4-layer CNN)", (28, 28, 1), 32, 5),
    Layer("5x5, 32x32x3 -> 32 (4-layer CNN)", (32, 32, 3), 32, 5),
    Layer("3x3, 32x32x3 -> 32 (pfl)", (32, 32, 3), 32, 3),
    Layer("5x5, 64x64x3 -> 32 (4-layer CNN)", (64, 64, 3), 32, 5),
    Layer("3x3, 32x32x3 -> 64 (VGG-11)", (32, 32, 3), 64, 3, 1, 1),
    Layer("7x7/2, 32x32x3 -> 64 (ResNet)", (32, 32, 3), 64, 7, 2, 3),
)
SECOND = (
    Layer("5x5, 14x14x6 -> 16 (PyTorch's tutorial)", (14, 14, 6), 16, 5),
    Layer("5x5, 14x14x16 -> 16 (CNN-2)", (14, 14, 16), 16, 5),
    Layer("5x5, 14x14x16 -> 32 (CNN-1)", (14, 14, 16), 32, 5),
    Layer("3x3, 32x32x16 -> 16 (ResNet-20)", (32, 32, 16), 16, 3, 1, 1),
    Layer("5x5, 14x14x32 -> 64 (4-layer CNN)", (14, 14, 32), 64, 5),
)


def steps_of(layer: Layer, first: bool):
    """Returns (kernel, images [STEPS, B, H, W, C]) -> the kernel after as many steps, and a sum of
    gradients."""

    def loss(kernel, x):
        return jnp.sum(conv.conv2d(x, kernel, layer.stride, layer.padding) ** 2)

    def step(kernel, x):
        if first:
            return kernel - 1e-6 * jax.grad(loss)(kernel, x), 0.0
        by_kernel, by_input = jax.grad(loss, argnums=(0, 1))(kernel, x)
        return kernel - 1e-6 * by_kernel, by_input.sum()

    return lambda kernel, images: lax.scan(step, kernel, images)


def measure(layer: Layer, first: bool, batch: int, columns: int) -> float | None:
    """Returns the milliseconds of a step, or None where `columns` do not divide a row."""
    if out_width(layer) % columns:
        return None
    kernels, images = draw(layer, batch, STEPS)  # as many clients' images as there are steps
    with mock.patch.object(conv, "columns_at_once", lambda *sizes: columns):
        seconds, _ = timed(steps_of(layer, first), kernels[0], images)
    return 1e3 * seconds / STEPS


def out_width(layer: Layer) -> int:
    """Returns how many outputs a row has."""
    return (layer.image[1] + 2 * layer.padding - layer.size) // layer.stride + 1


def main(_) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    rows = []
    for layers, first in ((FIRST, True), (SECOND, False)):
        for layer in layers:
            taken = conv.columns_at_once(out_width(layer), layer.image[2], layer.features)
            for batch in BATCHES:
                cells = [number(measure(layer, first, batch, columns)) for columns in COLUMNS]
                rows.append([layer.title, str(batch), *cells, str(taken)])
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["layer", "batch", *(f"{columns} at once" for columns in COLUMNS), "taken"]
    text = (
        "One convolution layer's training step on one core, ms, best of 3, by how many "
        "neighbouring outputs of a row\n"
        "are made at once (`python -m benchmarks.conv_columns`). First layers without the "
        "gradient of their input."
    )
    publish("\n".join([text, machine(), "", table(head, rows)]))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)

"""Which lowering of the convolution to take: forward and backward of layers that stand for the zoo.

    python -m benchmarks.conv [--layers=stem,depthwise] [--out=benchmarks/results/conv_cpu.md]

Every variant trains the same kernels on the same images for a few steps, and must end where the
first one does.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from benchmarks.report import in_a_process, machine, number, publish, table
from fedjax_ht.ops import conv2d
from fedjax_ht.runner.cli import parse_flags

STEPS, RUNS, LANES = 2, 3, 4


class Layer(NamedTuple):
    """A convolution of images (H, W, C); `features` None makes it depthwise."""

    title: str
    image: tuple[int, int, int]
    features: int | None
    size: int
    stride: int = 1
    padding: int = 0

    @property
    def groups(self) -> int:
        return self.image[-1] if self.features is None else 1

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        return self.size, self.size, self.image[-1] // self.groups, self.features or self.image[-1]


LAYERS = {
    "grey": Layer("5x5, 28x28x1 -> 32 (4-layer CNN)", (28, 28, 1), 32, 5),
    "cnn": Layer("5x5, 12x12x32 -> 64 (4-layer CNN)", (12, 12, 32), 64, 5),
    "stem": Layer("7x7/2, 32x32x3 -> 64 (ResNet, GoogLeNet)", (32, 32, 3), 64, 7, 2, 3),
    "stage1": Layer("3x3, 8x8x64 -> 64 (ResNet)", (8, 8, 64), 64, 3, 1, 1),
    "stage2": Layer("3x3/2, 8x8x64 -> 128 (ResNet)", (8, 8, 64), 128, 3, 2, 1),
    "stage3": Layer("3x3, 2x2x256 -> 256 (ResNet)", (2, 2, 256), 256, 3, 1, 1),
    "stage4": Layer("3x3, 1x1x512 -> 512 (ResNet)", (1, 1, 512), 512, 3, 1, 1),
    "pointwise": Layer("1x1, 8x8x256 -> 64 (ResNet-50, GoogLeNet)", (8, 8, 256), 64, 1),
    "depthwise": Layer("3x3 depthwise, 8x8x144 (MobileNetV2)", (8, 8, 144), None, 3, 1, 1),
}

_LAYERS = flags.DEFINE_list("layers", list(LAYERS), "Layers to measure.")
flags.register_validator("layers", set(LAYERS).issuperset, f"the layers are {', '.join(LAYERS)}")
_DEVICES = flags.DEFINE_bool(
    "devices", False, "Measure one device a core here and print JSON; for the child."
)

# (x [B, H, W, C], kernel) -> [B, H', W', O]
Convolution = Callable[[jax.Array, jax.Array], jax.Array]


def taps(x: jax.Array, size: int, stride: int) -> list[list[jax.Array]]:
    """What each entry of a size x size kernel sees of padded images."""
    ends = [length - size + 1 for length in x.shape[1:3]]
    return [
        [x[:, i : i + ends[0] : stride, j : j + ends[1] : stride] for j in range(size)]
        for i in range(size)
    ]


def padded(x: jax.Array, layer: Layer) -> jax.Array:
    p = layer.padding
    return jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))


def product_of_patches(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """One matrix product, of padded images."""
    patches = jnp.stack([tap for row in taps(x, len(kernel), stride) for tap in row], axis=3)
    out = patches.reshape(-1, kernel[..., 0].size) @ kernel.reshape(-1, kernel.shape[-1])
    return out.reshape(*patches.shape[:3], -1)


def sum_over_taps(layer: Layer) -> Convolution:
    """One small product per kernel entry, no patches; the gradient that JAX derives."""

    def run(x, kernel):
        seen = taps(padded(x, layer), layer.size, layer.stride)
        multiply = jnp.multiply if layer.groups > 1 else jnp.matmul
        weights = kernel[:, :, 0] if layer.groups > 1 else kernel
        return sum(
            multiply(seen[i][j], weights[i, j])
            for i in range(layer.size)
            for j in range(layer.size)
        )

    return run


def gradient_as_convolution(layer: Layer) -> Convolution:
    """Product of patches whose input gradient is one too: of the upstream gradient and the kernel
    turned around."""

    @jax.custom_vjp
    def run(x, kernel):
        return product_of_patches(padded(x, layer), kernel, layer.stride)

    def backward(saved, upstream):
        x, kernel = saved
        by_kernel = jax.vjp(
            lambda k: product_of_patches(padded(x, layer), k, layer.stride), kernel
        )[1](upstream)[0]
        first = layer.size - 1 - layer.padding
        edges = [
            (
                first,
                x.shape[i] + layer.padding - 1 - (upstream.shape[i] - 1) * layer.stride,
                layer.stride - 1,
            )
            for i in (1, 2)
        ]
        spread = lax.pad(upstream, jnp.float32(0), ((0, 0, 0), *edges, (0, 0, 0)))
        return product_of_patches(spread, kernel[::-1, ::-1].swapaxes(2, 3), 1), by_kernel

    run.defvjp(lambda x, kernel: (run(x, kernel), (x, kernel)), backward)
    return run


def lowered(layer: Layer, lowering: str = "patches") -> Convolution:
    """The library's."""
    return lambda x, kernel: conv2d(
        x, kernel, layer.stride, layer.padding, layer.groups, lowering=lowering
    )


def client_steps(
    convolution: Convolution, kernel: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """STEPS gradient steps of one client on one layer: value, kernel gradient and input
    gradient."""

    def step(_, carry):
        gradients = jax.grad(
            lambda kernel, x: jnp.sum(convolution(x, kernel) ** 2), argnums=(0, 1)
        )(*carry)
        return jax.tree.map(lambda value, gradient: value - 1e-6 * gradient, carry, gradients)

    return lax.fori_loop(0, STEPS, step, (kernel, x))


def scanned(one: Callable, lanes: int) -> Callable:
    """Clients in chunks of `lanes`, or one after another without a client axis."""
    return lambda kernels, x: lax.map(
        lambda args: one(*args), (kernels, x), batch_size=None if lanes == 1 else lanes
    )


def sharded(one: Callable) -> Callable:
    """Whole clients on every device, one after another on each."""
    mesh = Mesh(np.array(jax.devices()), ("clients",))
    specs = PartitionSpec("clients")
    return jax.shard_map(
        scanned(one, 1), mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False
    )


def draw(layer: Layer, batch: int, clients: int) -> tuple[jax.Array, jax.Array]:
    """Kernels and images of some clients."""
    keys = jax.random.split(jax.random.key(0))
    kernels = jax.random.normal(keys[0], (clients, *layer.kernel_shape)) * 0.05
    return kernels, jax.random.normal(keys[1], (clients, batch, *layer.image))


def timed(run: Callable, kernels: jax.Array, x: jax.Array) -> tuple[float, list[np.ndarray]]:
    """Seconds, the best of RUNS after a first call; and the result."""
    run = jax.jit(run)
    result, seconds = jax.block_until_ready(run(kernels, x)), []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(kernels, x))
        seconds.append(time.perf_counter() - start)
    return min(seconds), [np.asarray(r) for r in result]


VARIANTS = {  # column -> (layer -> convolution, lanes; 0 for all clients)
    "native, scan": (functools.partial(lowered, lowering="native"), 1),
    "native, vmap": (functools.partial(lowered, lowering="native"), 0),
    "sum over taps, scan": (sum_over_taps, 1),
    "gradient as convolution, scan": (gradient_as_convolution, 1),
    "ours, scan": (lowered, 1),
    f"ours, {LANES} lanes": (lowered, LANES),
    "ours, vmap": (lowered, 0),
}


def worth_measuring(column: str, layer: Layer, batch: int, clients: int) -> bool:
    """Lanes need clients to fill them; on CPU what loses by far is measured at its smallest
    only."""
    lanes = VARIANTS[column][1]
    if (lanes == LANES and clients <= LANES) or (lanes == 0 and clients == 1):
        return False
    if column.startswith("gradient") and layer.groups > 1:
        return False
    if column.startswith("ours") or jax.default_backend() != "cpu":
        return True
    return (batch, clients) == (10, 3 if column.startswith("native") else 1)


def measure(layer: Layer, batch: int, clients: int) -> dict[str, float]:
    """Milliseconds of one client's step for each variant worth measuring.

    Raises:
      AssertionError: two variants do not agree.
    """
    cells, first, arguments = {}, None, draw(layer, batch, clients)
    for column, (make, lanes) in VARIANTS.items():
        if not worth_measuring(column, layer, batch, clients):
            continue
        one = functools.partial(client_steps, make(layer))
        seconds, result = timed(scanned(one, lanes or clients), *arguments)
        cells[column] = 1e3 * seconds / (clients * STEPS)
        first = first or result
        for mine, its in zip(result, first):
            np.testing.assert_allclose(
                mine, its, rtol=1e-4, atol=1e-5, err_msg=f"{column}: {layer.title}"
            )
    return cells


def measure_devices(layer: Layer, batch: int, clients: int) -> float:
    """Milliseconds of one client's step, whole clients in parallel; a device without a client left
    repeats one."""
    kernels, x = draw(layer, batch, clients)
    rows = np.arange(-(-clients // len(jax.devices())) * len(jax.devices())) % clients
    seconds, _ = timed(
        sharded(functools.partial(client_steps, lowered(layer))), kernels[rows], x[rows]
    )
    return 1e3 * seconds / (clients * STEPS)


def settings() -> list[tuple[str, int, int]]:
    """(layer, batch, clients) of every row."""
    return [
        (name, batch, clients)
        for name in _LAYERS.value
        for batch in (10, 64)
        for clients in (1, 3, 20)
    ]


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    if _DEVICES.value:
        print(
            json.dumps(
                [measure_devices(LAYERS[n], b, c) if c > 1 else None for n, b, c in settings()]
            )
        )
        return
    cores, in_parallel = len(os.sched_getaffinity(0)), [None] * len(settings())
    if jax.default_backend() == "cpu" and cores > 1:
        arguments = ["--devices", f"--layers={','.join(_LAYERS.value)}"]
        in_parallel = in_a_process("benchmarks.conv", arguments, cores)
    rows = []
    for (name, batch, clients), parallel in zip(settings(), in_parallel):
        cells = measure(LAYERS[name], batch, clients)
        measured = [*(cells.get(column) for column in VARIANTS), parallel]
        rows.append([LAYERS[name].title, str(batch), str(clients), *map(number, measured)])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["layer", "batch", "clients", *VARIANTS, "ours, a device per core"]
    text = f"One convolution layer, forward and both gradients, ms a client step, best of {RUNS}."
    publish("\n".join([text, machine(), "", table(head, rows)]))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)

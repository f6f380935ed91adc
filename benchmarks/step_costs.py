"""Counts the FLOPs and bytes of a client's training step, and finds a device's peak rates."""

import functools
import statistics
import time
from unittest import mock

import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket, features, init_variables, logits
from fedjax_ht.core.federation import make_federation
from fedjax_ht.losses import cross_entropy
from fedjax_ht.models import model_group, stacking

BATCH = 10
PEAKS = {  # float32 without tensor cores in TFLOP/s, memory in TB/s, from the makers' data sheets
    "Tesla T4": (8.1, 0.32),
    "NVIDIA L4": (30.3, 0.30),
    "NVIDIA A100-SXM4-40GB": (19.5, 1.56),
    "NVIDIA A100-SXM4-80GB": (19.5, 2.04),
    "NVIDIA H100 80GB HBM3": (67.0, 3.35),
    "NVIDIA H200": (67.0, 4.8),
}


def step_cost(bucket: Bucket) -> dict:
    """Returns the FLOPs of one SGD step and the bytes that it moves, as XLA counts them.

    XLA counts a loop's body once, so repeated blocks are unrolled here.
    """

    def step(model, x, y):
        mask = jnp.ones(BATCH, bool)

        def loss(params):
            representations, stats = features(bucket, params, model["stats"], x, mask, train=True)
            return cross_entropy(logits(bucket, params, representations), y, mask), stats

        gradients, stats = jax.grad(loss, has_aux=True)(model["params"])
        return {
            "params": jax.tree.map(lambda p, g: p - 0.01 * g, model["params"], gradients),
            "stats": stats,
        }

    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    x, y = (
        jax.ShapeDtypeStruct((BATCH, *bucket.input_shape), jnp.float32),
        jax.ShapeDtypeStruct((BATCH,), jnp.int32),
    )
    with mock.patch.object(stacking, "blocks_at_once", return_value=1000):
        cost = jax.jit(step, donate_argnums=0).lower(model, x, y).compile().cost_analysis()
    return {"flops": cost["flops"], "bytes": cost["bytes accessed"]}


def mean_step_cost(group: str, shape: tuple[int, int, int], classes: int, clients: int) -> dict:
    """Returns `step_cost` averaged over clients that take a group's models in turn."""
    federation = make_federation(
        model_group(group, classes, shape), shape, classes, num_clients=clients
    )
    costs = [step_cost(bucket) for bucket in federation.buckets]
    return {key: statistics.mean(costs[i][key] for i in federation.assignment) for key in costs[0]}


def peaks() -> dict:
    """Returns the device's FLOP/s and byte/s: its maker's, or those of a large product and sum."""
    if known := PEAKS.get(jax.devices()[0].device_kind):
        return {"flops": known[0] * 1e12, "bytes": known[1] * 1e12, "whence": "its data sheet"}

    def rate(f, work, *args):
        f = jax.jit(f)
        jax.block_until_ready(f(*args))
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            seconds.append(time.perf_counter() - start)
        return work / min(seconds)

    side, length = 2048, 2**26
    product = rate(
        functools.partial(jnp.matmul, precision="highest"), 2 * side**3, *jnp.ones((2, side, side))
    )
    total = rate(jnp.add, 3 * 4 * length, *jnp.ones((2, length)))
    return {
        "flops": product,
        "bytes": total,
        "whence": f"a product of {side}x{side} and a sum of 256 MB arrays",
    }

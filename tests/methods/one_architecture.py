"""A client's round of the baselines of one architecture, on linear models."""

import jax
import numpy as np
import optax

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from tests import tiny

LR = 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False, drop_remainder=False)
FEDERATION = tiny.linear_federation(buckets=1)
BUCKET = FEDERATION.buckets[0]
LABELS = np.array([0, 2, 2, 0, 3])  # the second of two batches is short
DATA = tiny.client_data(LABELS, padding=2)
BATCHES = [
    (tiny.pixels(DATA)[:3], LABELS[:3]),
    (tiny.pixels(DATA)[3:], LABELS[3:]),
]


def model(seed: int) -> dict:
    """Random parameters of the linear model."""
    return BUCKET.module.init(jax.random.key(seed), np.zeros((1, 2, 2, 1)))["params"]


def context(last_round: int = 0):
    """Returns the context of client 0, which was reached in that round."""
    ctx = tiny.context(0)
    return ctx._replace(info=ctx.info._replace(last_round=np.int32(last_round)))


def play(method: Method, client, downlink, last_round: int = 0):
    """Receives and trains; returns the received state, the trained state, uplink and metrics."""
    ctx = context(last_round)

    @jax.jit
    def run(client, downlink):
        received = method.receive(BUCKET, client, downlink, DATA, ctx)
        return received, *method.client_update(BUCKET, received, downlink, DATA, ctx)

    return run(client, downlink)


def check_model(params, expected: dict[str, np.ndarray]) -> None:
    """Asserts that a model has the reference's parameters."""
    for name, value in tiny.flat_params(params).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def check_equal(a, b) -> None:
    """Asserts that two pytrees are equal bit by bit."""
    jax.tree.map(np.testing.assert_array_equal, a, b)

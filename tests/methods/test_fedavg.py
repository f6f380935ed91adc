import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.context import Received
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.shared.averaging import ModelUplink, weighted_mean
from fedjax_ht.simulation.serving import server_round
from tests import tiny
from tests.reference import averaging, linear_client

LR = 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation(buckets=1)
BUCKET = FEDERATION.buckets[0]
ORDER, OTHER_ORDER = [0, 1, 2, 3], [4, 2, 0, 3, 1, 4]  # client 3 is lost, id 4 is padding
SAMPLES = {0: 5, 1: 40, 2: 12}
LABELS = np.array([0, 2, 2, 0, 3, 0])


def models():
    rng = np.random.default_rng(0)
    shapes = {"a": (2, 3), "b": (4,)}
    return {
        i: {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()} for i in SAMPLES
    }


def receive(order, by_samples, arrived=frozenset(SAMPLES), samples=SAMPLES):
    """Uplinks in this order; those of clients that did not arrive are NaN."""
    lost = {"a": np.full((2, 3), np.nan, np.float32), "b": np.full(4, np.nan, np.float32)}
    rows = [models()[i] if i in arrived else lost for i in order]
    num_samples = np.array([samples.get(i, 1000) for i in order], np.int32)
    stacked = {k: np.stack([r[k] for r in rows]) for k in lost}
    uplink = ModelUplink(stacked, Metadata(num_samples) if by_samples else ())
    arrived = np.array([i in arrived for i in order])
    return {BUCKET.name: Received(uplink, tiny.infos(order, num_samples), arrived)}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_server_update_equals_the_reference(weighting):
    by_samples = weighting == "samples"
    method = fedavg(TRAINING, weighting)
    weights = [SAMPLES[i] if by_samples else 1 for i in SAMPLES]
    serve = jax.jit(
        lambda received: method.server_update(FEDERATION, models()[0], received, None)[0]
    )
    for order in (ORDER, OTHER_ORDER):
        got = serve(receive(order, by_samples))
        for name in ("a", "b"):
            want = averaging.weighted_mean([models()[i][name] for i in SAMPLES], weights)
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)


def test_a_single_arrival_is_the_new_model():
    serve = jax.jit(functools.partial(fedavg(TRAINING).server_update, FEDERATION))
    got, _ = serve(models()[0], receive(ORDER, True, arrived={1}), None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, models()[1])


def test_the_model_stays_where_nobody_arrives_or_nobody_has_samples():
    old = models()[0]
    serve = jax.jit(server_round(fedavg(TRAINING), FEDERATION))
    absent = receive(ORDER, True, arrived=())
    idle = receive(ORDER, True, arrived={1, 2}, samples={1: 0, 2: 0})
    for received in (absent, idle):
        new, _ = serve(old, received, jax.random.key(0), jnp.int32(0))
        jax.tree.map(np.testing.assert_array_equal, new, old)


def test_weighted_mean_keeps_dtypes_and_reads_no_row_of_weight_zero():
    stacked = {
        "x": jnp.array([1.0, jnp.nan, 4.0], jnp.float16),
        "y": jnp.array([[2.0], [jnp.inf], [8.0]]),
    }
    got = weighted_mean(stacked, jnp.array([2.0, 0.0, 1.0]))
    assert got["x"].dtype == jnp.float16 and got["y"].dtype == jnp.float32
    np.testing.assert_allclose([got["x"], got["y"][0]], [2, 4], rtol=1e-3)


def test_a_client_trains_the_model_it_received():
    method, ctx = fedavg(TRAINING), tiny.context(0)
    server = method.init_server(FEDERATION, jax.random.key(1))
    state = method.init_client(BUCKET, ctx)
    data = tiny.client_data(LABELS)

    @jax.jit
    def client_round(state):
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        client = method.receive(BUCKET, state | {"stats": jnp.float32(3)}, downlink, data, ctx)
        return client, method.client_update(BUCKET, client | {"stats": {}}, downlink, data, ctx)

    received, (trained, uplink, metrics) = client_round(state)
    jax.tree.map(np.testing.assert_array_equal, received["params"], server)
    assert received["stats"] == 3  # batch statistics stay the client's own
    x = tiny.pixels(data)
    batches = [(x[:3], LABELS[:3]), (x[3:], LABELS[3:])]
    want, loss, _ = linear_client.train(tiny.flat_params(server), batches, LR)
    for name, value in tiny.flat_params(trained["params"]).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, uplink.params, trained["params"])
    assert uplink.num_samples.value == ctx.info.num_samples

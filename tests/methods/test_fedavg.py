import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.shared.averaging import ModelUplink, weighted_mean
from fedjax_ht.simulation.serving import server_round
from tests import tiny
from tests.reference import averaging, linear_client
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, IN_ONE_BUCKET, LR, ONE_BUCKET, TRAINING

SAMPLES = {0: 5, 1: 40, 2: 12}
MODELS = {
    i: {
        name: np.random.default_rng((i, len(shape))).normal(size=shape).astype(np.float32)
        for name, shape in (("a", (2, 3)), ("b", (4,)))
    }
    for i in SAMPLES
}


def receive(by_samples=True, samples=SAMPLES, arrived=None):
    uplinks = {
        i: ModelUplink(model, Metadata(np.int32(samples[i])) if by_samples else ())
        for i, model in MODELS.items()
    }
    return tiny.receive(uplinks, IN_ONE_BUCKET, samples, arrived)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_server_update_equals_the_reference(weighting):
    by_samples = weighting == "samples"
    weights = [SAMPLES[i] if by_samples else 1 for i in SAMPLES]
    got, _ = served(fedavg(TRAINING, weighting), ONE_BUCKET, MODELS[0], receive(by_samples))
    for name in ("a", "b"):
        want = averaging.weighted_mean([MODELS[i][name] for i in SAMPLES], weights)
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_model_is_a_single_arrivals_and_stays_without_any_or_without_samples(weighting):
    """Also in a uniform mean a client without samples weighs nothing."""
    serve = jax.jit(server_round(fedavg(TRAINING, weighting), ONE_BUCKET))

    def served(samples=SAMPLES, **arrived):
        received = receive(weighting == "samples", samples, **arrived)
        return serve(MODELS[0], received, jax.random.key(0), jnp.int32(0))[0]

    tiny.check_model(served(arrived={1}), MODELS[1])
    tiny.check_model(served({0: 0, 1: 9, 2: 0}), MODELS[1])
    tiny.check_equal(served(arrived=()), MODELS[0])
    tiny.check_equal(served({0: 9, 1: 0, 2: 0}, arrived={1, 2}), MODELS[0])


def test_weighted_mean_keeps_dtypes_and_reads_no_row_of_weight_zero():
    stacked = {
        "x": jnp.array([1.0, jnp.nan, 4.0], jnp.float16),
        "y": jnp.array([[2.0], [jnp.inf], [8.0]]),
    }
    got = weighted_mean(stacked, jnp.array([2.0, 0.0, 1.0]))
    assert got["x"].dtype == jnp.float16 and got["y"].dtype == jnp.float32
    np.testing.assert_allclose([got["x"], got["y"][0]], [2, 4], rtol=1e-3)


def test_a_client_trains_the_model_it_received():
    method = fedavg(TRAINING)
    server = method.init_server(ONE_BUCKET, jax.random.key(1))
    state = method.init_client(BUCKET, tiny.context(0))
    received, trained, uplink, metrics = tiny.play(method, state, server)
    tiny.check_equal(received["params"], server)
    kept = method.receive(BUCKET, state | {"stats": 3}, server, None, None)
    assert kept["stats"] == 3  # batch statistics stay the client's own
    want, loss, _ = linear_client.train(tiny.flat_params(server), BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    tiny.check_equal(uplink.params, trained["params"])
    assert uplink.num_samples.value == 10

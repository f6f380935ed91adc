import jax
import numpy as np
import pytest

from fedjax_ht.methods.fml import fml
from tests import tiny
from tests.reference import averaging, mutual
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LR, TRAINING


@pytest.mark.parametrize(
    ("options", "alpha", "beta"),
    [({}, 0.5, 0.5), ({"alpha": 0.9, "beta": 0.2}, 0.9, 0.2), ({"variant": "released"}, 0.5, 0.5)],
    ids=str,
)
def test_client_round_equals_the_reference(options, alpha, beta):
    method = fml(TRAINING, **options)
    server = tiny.shift(method.init_server(FEDERATION, jax.random.key(1)), 1)
    client = method.init_client(BUCKET, tiny.context(0))
    _, trained, uplink, metrics = tiny.play(method, client, server)
    models = {"own": tiny.flat_params(client["params"]), "shared": tiny.flat_params(server)}
    released = options.get("variant") == "released"
    losses = mutual.fml(alpha, beta, 1 / 4 if released else 1.0)
    want, loss = mutual.train(losses, models, BATCHES, LR, joint=released)
    tiny.check_models(tiny.flat_pair(trained), want)
    tiny.check_model(uplink, want["shared"])
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_server_update_is_the_mean_of_those_that_arrived_with_samples():
    method = fml(TRAINING)
    old = method.init_server(FEDERATION, jax.random.key(0))
    uplinks = {i: tiny.shift(old, i) for i in range(3)}
    for samples, owners in (({}, [0, 1, 2]), ({1: 0}, [0, 2])):
        new, _ = served(method, FEDERATION, old, tiny.receive(uplinks, samples=samples))
        flat = [tiny.flat_params(uplinks[i]) for i in owners]
        weights = [1.0] * len(owners)
        want = {name: averaging.weighted_mean([x[name] for x in flat], weights) for name in flat[0]}
        tiny.check_model(new, want)
    idle = tiny.receive(uplinks, samples=dict.fromkeys(uplinks, 0))
    tiny.check_equal(served(method, FEDERATION, old, idle)[0], old)


def test_batch_statistics_stay_with_the_client():
    federation = tiny.normed_federation()
    (bucket,), method, ctx = federation.buckets, fml(TRAINING), tiny.context(0)
    server = method.init_server(federation, jax.random.key(1))
    assert set(server) == {"base", "head"}
    client = method.init_client(bucket, ctx)
    client["shared"]["stats"] = tiny.shift(client["shared"]["stats"], 1)
    received = method.receive(bucket, client, server, None, ctx)
    tiny.check_equal(received["shared"], {**client["shared"], "params": server})
    tiny.check_equal(received["params"], client["params"])

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.local import local
from tests import tiny
from tests.methods import pairs
from tests.reference import averaging, mutual

TRAINING = LocalTraining(optax.sgd(pairs.LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation()
BUCKET = FEDERATION.buckets[0]


@pytest.mark.parametrize(
    ("options", "alpha", "beta"),
    [({}, 0.5, 0.5), ({"alpha": 0.9, "beta": 0.2}, 0.9, 0.2), ({"variant": "released"}, 0.5, 0.5)],
    ids=str,
)
def test_client_round_equals_the_reference(options, alpha, beta):
    method, ctx, data = (
        fml(TRAINING, **options),
        pairs.context(),
        tiny.client_data(pairs.LABELS, padding=2),
    )
    server = pairs.shift(method.init_server(FEDERATION, jax.random.key(1)), 1)
    client = method.init_client(BUCKET, ctx)

    @jax.jit
    def client_round(client):
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        client = method.receive(BUCKET, client, downlink, data, ctx)
        return method.client_update(BUCKET, client, downlink, data, ctx)

    trained, uplink, metrics = client_round(client)
    models = {"own": tiny.flat_params(client["params"]), "shared": tiny.flat_params(server)}
    released = options.get("variant") == "released"
    losses = mutual.fml(alpha, beta, 1 / 4 if released else 1.0)
    want, loss = mutual.train(losses, models, pairs.batches(data), pairs.LR, joint=released)
    pairs.assert_models_close(pairs.flat_pair(trained), want)
    pairs.assert_models_close({"shared": tiny.flat_params(uplink)}, {"shared": want["shared"]})
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


@pytest.mark.parametrize("order", [tiny.ORDER, tiny.OTHER_ORDER], ids=["order", "other order"])
def test_server_update_is_the_mean_of_those_that_arrived_with_samples(order):
    method = fml(TRAINING)
    old = method.init_server(FEDERATION, jax.random.key(0))
    uplinks = {i: pairs.shift(old, i) for i in range(3)}
    serve = jax.jit(lambda received: method.server_update(FEDERATION, old, received, None)[0])
    for samples, owners in (({}, [0, 1, 2]), ({1: 0}, [0, 2])):
        got = tiny.flat_params(serve(pairs.receive_uplinks(uplinks, order, samples)))
        for name, value in got.items():
            want = averaging.weighted_mean(
                [tiny.flat_params(uplinks[i])[name] for i in owners], [1.0] * len(owners)
            )
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
    idle = serve(pairs.receive_uplinks(uplinks, order, {0: 0, 1: 0, 2: 0}))
    jax.tree.map(np.testing.assert_array_equal, idle, old)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_labels_alone_leave_the_private_model_as_local_training_has_it(variant):
    """Also where gradients are clipped: each model by its own norm."""
    training = LocalTraining(
        optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.1)), batch_size=3, epochs=2
    )
    bucket = pairs.normed_federation().buckets[0]
    data, ctx = tiny.client_data(pairs.LABELS), pairs.context()
    clients = []
    for method in (fml(training, alpha=1.0, beta=1.0, variant=variant), local(training)):
        client = method.init_client(bucket, ctx)
        update = jax.jit(
            lambda client, method=method: method.client_update(bucket, client, (), data, ctx)[0]
        )
        clients.append(update(client))
    for part in ("params", "stats"):
        assert jax.tree.leaves(clients[0][part])
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
            clients[0][part],
            clients[1][part],
        )


def test_batch_statistics_stay_with_the_client():
    federation = pairs.normed_federation()
    method, ctx = fml(TRAINING), pairs.context()
    server = method.init_server(federation, jax.random.key(1))
    assert set(server) == {"base", "head"}
    client = method.init_client(federation.buckets[0], ctx)
    client["shared"]["stats"] = pairs.shift(client["shared"]["stats"], 1)
    received = method.receive(federation.buckets[0], client, server, None, ctx)
    jax.tree.map(
        np.testing.assert_array_equal, received["shared"], {**client["shared"], "params": server}
    )
    jax.tree.map(np.testing.assert_array_equal, received["params"], client["params"])


def test_wire_of_the_cifar100_tables():
    """18.494 million floats each way (FedTGP's and FedKTL's Table 5, methods FML): 20 CNNs of
    924,708."""
    federation, method = pairs.cifar100_federation(), fml(TRAINING)
    data = tiny.client_data(np.arange(6), shape=(32, 32, 3))
    up = down = 0
    for bucket in federation.buckets:

        def client_round(bucket=bucket):
            ctx = pairs.context()
            downlink = method.broadcast(
                federation, bucket, method.init_server(federation, ctx.key), ctx
            )
            return downlink, method.client_update(
                bucket, method.init_client(bucket, ctx), downlink, data, ctx
            )[1]

        sent = [
            wire_elements(jax.tree.map(_zeros, message)) for message in jax.eval_shape(client_round)
        ]
        down += sent[0].payload_elements * len(federation.members(bucket))
        up += sent[1].payload_elements * len(federation.members(bucket))
    assert up == down == 20 * 924_708 == 18_494_160


def _zeros(shape):
    return jnp.zeros(shape.shape, shape.dtype)

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.batches import shuffled
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.server_training import compact
from fedjax_ht.methods.fedgh import fedgh
from tests import tiny
from tests.reference import fedgh as reference
from tests.reference import linear_client

C, K, LR = 4, 3, 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation(C, K)
BUCKET = FEDERATION.buckets[0]
# seven rows: the last batch is masked
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, K, seed=4)
SERVER = {"server_epochs": 2, "server_lr": 0.3, "server_batch_size": 3}
# two steps of three; the last sample is left out of training
LABELS = np.array([0, 2, 2, 0, 3, 0, 3])


@pytest.fixture(scope="module")
def served():
    """The first head, and the compiled server."""
    method = fedgh(TRAINING, **SERVER)
    serve = jax.jit(
        lambda head, got: method.server_update(FEDERATION, head, got, tiny.context(seed=2))
    )
    return method.init_server(FEDERATION, jax.random.key(1)), serve


def receive(uploads, order=tiny.ORDER):
    return tiny.receive_prototypes(uploads, order, C, K)


def server_orders(uploads):
    """Row orders of each epoch, counted over the uploaded rows; uploads come by client, then
    class."""
    valid = np.array([c in uploads.get(i, {}) for i in range(4) for c in range(C)])
    shuffle_key, _ = jax.random.split(tiny.context(seed=2).key)
    for epoch in range(SERVER["server_epochs"]):
        flat = shuffled(jax.random.fold_in(shuffle_key, epoch), compact(jnp.asarray(valid)))[
            : valid.sum()
        ]
        yield np.searchsorted(np.flatnonzero(valid), flat)


def test_server_update_equals_the_reference(served):
    head, serve = served
    got, metrics = serve(head, receive(UPLOADS))
    start = {name: np.asarray(value, np.float64) for name, value in head.items()}
    want, loss = reference.server_update(
        start, [UPLOADS[i] for i in range(3)], list(server_orders(UPLOADS)), 3, 0.3
    )
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
        assert np.abs(want[name] - start[name]).max() > 1e-3  # the head is trained
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)


def test_order_of_clients_and_their_buckets_change_nothing(served):
    head, serve = served
    want = serve(head, receive(UPLOADS))
    for order in ([[0, 2, 4, 4], [1, 3, 4]], [[1, 9, 0, 7], [5, 2, 3]]):
        jax.tree.map(np.testing.assert_array_equal, serve(head, receive(UPLOADS, order)), want)


def test_a_round_without_any_prototype_leaves_the_head(served):
    head, serve = served
    idle, metrics = serve(head, receive({0: {}, 2: {}}))  # clients without samples
    jax.tree.map(np.testing.assert_array_equal, idle, head)
    assert metrics["server_loss"] == 0


def test_client_update_equals_the_reference():
    method, ctx = fedgh(TRAINING), tiny.context(0)
    data, head = (
        tiny.client_data(LABELS, padding=2),
        method.init_server(FEDERATION, jax.random.key(5)),
    )
    state = method.init_client(BUCKET, ctx)

    @jax.jit
    def client_round(state):
        downlink = method.broadcast(FEDERATION, BUCKET, head, ctx)
        client = method.receive(BUCKET, state, downlink, data, ctx)
        return method.client_update(BUCKET, client, downlink, data, ctx)

    trained, uplink, metrics = client_round(state)
    x = tiny.pixels(data)
    batches = [(x[:3], LABELS[:3]), (x[3:6], LABELS[3:6])]
    want, loss, _ = linear_client.train(
        tiny.flat_params(state["params"] | {"head": head}), batches, LR
    )
    for name, value in tiny.flat_params(trained["params"]).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
    for c, mean in linear_client.class_means(linear_client.features(want, x), LABELS).items():
        np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)

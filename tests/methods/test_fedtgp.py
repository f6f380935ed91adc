import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.fedtgp import Server, fedtgp
from tests import tiny
from tests.alignment_steps import epoch_orders, valid_rows
from tests.reference import fedtgp_server, linear_client
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LABELS, LR, TRAINING, C, K

# seven rows: the last batch is masked
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, seed=4)
SERVER = {"server_epochs": 3, "server_lr": 0.3, "server_batch_size": 3}


def serve(method, server, uploads, order=tiny.OTHER_ORDER):
    received = tiny.receive_prototypes(uploads, order)
    return served(method, FEDERATION, server, received, tiny.context(seed=2))


def start_of(method) -> Server:
    return method.init_server(FEDERATION, jax.random.key(1))


@pytest.mark.parametrize(
    ("options", "rule", "fixed"),
    [
        ({}, "paper", None),
        ({"variant": "released", "use_f": False}, "released", None),
        ({"margin": 0.0, "use_f": False}, None, 0.0),
    ],
    ids=str,
)
def test_server_update_equals_the_reference(options, rule, fixed):
    method = fedtgp(TRAINING, **(SERVER | options))
    start = start_of(method)
    assert ("w1" in start.trained) == options.get("use_f", True)
    server, metrics = serve(method, start, UPLOADS, tiny.ORDER)
    rows = [UPLOADS[i] for i in range(3)]
    margin = fixed if rule is None else fedtgp_server.margin_of(rows, C, 100.0, rule)
    np.testing.assert_allclose(metrics["margin"], margin, rtol=1e-5)

    trained = {name: np.asarray(value, np.float64) for name, value in start.trained.items()}
    shuffle_key, _ = jax.random.split(tiny.context(seed=2).key)
    orders = list(epoch_orders(shuffle_key, valid_rows(UPLOADS, tiny.ORDER), 3))
    want, loss = fedtgp_server.server_update(trained, rows, orders, 3, 0.3, margin)
    assert server.trained.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(server.trained[name], want[name], rtol=1e-5, atol=2e-6)
        assert np.abs(want[name] - trained[name]).max() > 1e-3  # every part was trained
    np.testing.assert_allclose(
        server.prototypes, fedtgp_server.global_prototypes(want), rtol=1e-5, atol=2e-6
    )
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)
    assert server.ready


@pytest.fixture(scope="module", params=["paper", "released"])
def ablated(request):
    """(method without F, server before its first round)."""
    method = fedtgp(TRAINING, **SERVER, variant=request.param, use_f=False, tau=7.0)
    return method, start_of(method)


def test_the_margin_is_at_most_tau_and_tau_of_fewer_than_two_classes(ablated):
    def at(position):
        return np.full(K, position, np.float32) / K**0.5

    one_class = {0: {2: UPLOADS[0][2]}, 1: {2: UPLOADS[1][2]}}
    for uploads in ({0: {0: at(-10.0), 1: at(10.0)}}, one_class):
        assert serve(*ablated, uploads)[1]["margin"] == 7


def test_nothing_is_published_before_there_was_a_prototype(ablated):
    method, start = ablated
    waiting, _ = serve(method, start, {0: {}, 1: {}})  # clients without samples
    assert not waiting.ready
    ready, _ = serve(method, waiting, UPLOADS)
    assert ready.ready
    tiny.check_equal(serve(method, ready, {0: {}})[0], ready)


def test_training_stays_finite_where_points_coincide(ablated):
    same = np.asarray(ablated[1].trained["embeddings"])
    uploads = {0: dict(enumerate(same)), 1: dict(enumerate(same)), 2: {0: same[0], 1: same[0]}}
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(serve(*ablated, uploads)))


@pytest.mark.parametrize(
    ("options", "weight"),
    [({}, 0.1), ({"variant": "released"}, 10.0), ({"weight": 2.0}, 2.0)],
    ids=str,
)
def test_client_update_equals_the_reference(options, weight):
    """The own_prototype rule is FedProto's, which test_fedproto has."""
    method, ctx = fedtgp(TRAINING, **options), tiny.context(0)
    assert method.rules == ("prototype", "own_prototype", "head")
    client = method.init_client(BUCKET, ctx)
    prototypes = 3 * np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)
    # before the server's first training there is nothing to pull towards
    for ready in (True, False):
        server = Server({}, jnp.asarray(prototypes), jnp.array(ready))
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        _, trained, uplink, metrics = tiny.play(method, client, downlink)
        want, loss, _ = linear_client.train(
            tiny.flat_params(client["params"]),
            BATCHES,
            LR,
            prototypes=prototypes,
            available=np.full(C, ready),
            weight=weight,
            variant=options.get("variant", "paper"),
        )
        tiny.check_model(trained["params"], want)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        # Both variants upload the trained model's prototypes, over all samples.
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        rows = linear_client.features(want, tiny.pixels(tiny.DATA))
        for c, mean in linear_client.class_means(rows, LABELS).items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)
        assert uplink.counts == ()

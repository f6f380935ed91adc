import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.batches import shuffled
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.server_training import compact
from fedjax_ht.methods.fedtgp import Server, fedtgp, init_trained
from tests import tiny
from tests.reference import fedtgp_server, linear_client

C, K, LR = 4, 3, 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation(C, K)
BUCKET = FEDERATION.buckets[0]
# seven rows: the last batch is masked
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, K, seed=4)
SERVER = {"server_epochs": 3, "server_lr": 0.3, "server_batch_size": 3}
LABELS = np.array([0, 2, 2, 0, 3, 0, 3])


def compiled_server(**options):
    method = fedtgp(TRAINING, **(SERVER | options))
    start = method.init_server(FEDERATION, jax.random.key(1))
    return start, jax.jit(
        lambda server, got: method.server_update(FEDERATION, server, got, tiny.context(seed=2))
    )


def receive(uploads, order=tiny.OTHER_ORDER):
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
    start, serve = compiled_server(**options)
    assert ("w1" in start.trained) == options.get("use_f", True)
    server, metrics = serve(start, receive(UPLOADS, tiny.ORDER))
    rows = [UPLOADS[i] for i in range(3)]
    margin = fixed if rule is None else fedtgp_server.margin_of(rows, C, 100.0, rule)
    np.testing.assert_allclose(metrics["margin"], margin, rtol=1e-5)

    trained = {name: np.asarray(value, np.float64) for name, value in start.trained.items()}
    want, loss = fedtgp_server.server_update(
        trained, rows, list(server_orders(UPLOADS)), 3, 0.3, margin
    )
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
def variant(request):
    """(variant, server before its first round, the compiled server update), F ablated."""
    return request.param, *compiled_server(variant=request.param, use_f=False, tau=7.0)


def test_order_of_clients_and_their_buckets_change_nothing(variant):
    _, start, serve = variant
    want = serve(start, receive(UPLOADS))
    for order in ([[0, 2, 4, 4], [1, 3, 4]], [[1, 9, 0, 7], [5, 2, 3]]):
        jax.tree.map(np.testing.assert_array_equal, serve(start, receive(UPLOADS, order)), want)


def test_margin_of_centres_on_a_line(variant):
    name, start, serve = variant

    def at(position):
        return np.full(K, position, np.float32) / K**0.5

    uploads = {0: {0: at(-1.0), 1: at(1.0)}, 1: {0: at(1.0), 2: at(5.0)}}  # centres at 0, 1 and 5
    assert float(serve(start, receive(uploads))[1]["margin"]) == pytest.approx(
        {"released": 4, "paper": 5}[name]
    )
    far = {0: {0: at(-10.0), 1: at(10.0)}}
    assert serve(start, receive(far))[1]["margin"] == 7  # tau


def test_margin_of_fewer_than_two_classes_is_tau(variant):
    _, start, serve = variant
    one_class = {0: {2: UPLOADS[0][2]}, 1: {2: UPLOADS[1][2]}}
    assert serve(start, receive(one_class))[1]["margin"] == 7


def test_nothing_is_published_before_there_was_a_prototype(variant):
    _, start, serve = variant
    waiting, _ = serve(start, receive({0: {}, 1: {}}))  # clients without samples
    assert not waiting.ready
    ready, _ = serve(waiting, receive(UPLOADS))
    assert ready.ready
    idle, _ = serve(ready, receive({0: {}}))
    jax.tree.map(np.testing.assert_array_equal, idle, ready)


def test_training_stays_finite_where_points_coincide(variant):
    _, start, serve = variant
    same = np.asarray(start.trained["embeddings"])
    uploads = {0: dict(enumerate(same)), 1: dict(enumerate(same)), 2: {0: same[0], 1: same[0]}}
    server, metrics = serve(start, receive(uploads))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((server, metrics)))


@pytest.mark.parametrize(
    ("options", "weight"),
    [({}, 0.1), ({"variant": "released"}, 10.0), ({"weight": 2.0}, 2.0)],
    ids=str,
)
def test_client_update_equals_the_reference(options, weight):
    method = fedtgp(TRAINING, **options)
    data, ctx = tiny.client_data(LABELS, padding=2), tiny.context(0)
    client = method.init_client(BUCKET, ctx)
    prototypes = 3 * np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)

    @jax.jit
    def update(client, ready):
        downlink = method.broadcast(
            FEDERATION, BUCKET, Server({}, jnp.asarray(prototypes), ready), ctx
        )
        return method.client_update(BUCKET, client, downlink, data, ctx)

    x = tiny.pixels(data)
    # before the server's first training there is nothing to pull towards
    for ready in (True, False):
        trained, uplink, metrics = update(client, jnp.array(ready))
        want, loss, _ = linear_client.train(
            tiny.flat_params(client["params"]),
            [(x[:3], LABELS[:3]), (x[3:6], LABELS[3:6])],
            LR,
            prototypes=prototypes,
            available=np.full(C, ready),
            weight=weight,
            variant=options.get("variant", "paper"),
        )
        for part, value in tiny.flat_params(trained["params"]).items():
            np.testing.assert_allclose(value, want[part], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        # Both variants upload the trained model's prototypes, over all samples.
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in linear_client.class_means(linear_client.features(want, x), LABELS).items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)
        assert uplink.counts == ()


def test_the_server_starts_as_torch_would():
    init = jax.jit(init_trained, static_argnums=(1, 2, 3))
    trained = init(jax.random.key(0), 200, 100, True)
    shapes = {
        "embeddings": (200, 100),
        "w1": (100, 100),
        "b1": (100,),
        "w2": (100, 100),
        "b2": (100,),
    }
    assert {name: value.shape for name, value in trained.items()} == shapes
    np.testing.assert_allclose(
        [trained["embeddings"].mean(), trained["embeddings"].std()], [0, 1], atol=0.03
    )
    for name in ("w1", "b1", "w2", "b2"):
        assert 0.09 < np.abs(trained[name]).max() <= 0.1  # 1 / sqrt(100)
    assert set(init(jax.random.key(0), 2, 3, False)) == {"embeddings"}


def test_the_server_publishes_what_it_trains():
    server = fedtgp(TRAINING).init_server(FEDERATION, jax.random.key(0))
    want = fedtgp_server.global_prototypes({k: np.asarray(v) for k, v in server.trained.items()})
    np.testing.assert_allclose(server.prototypes, want, rtol=1e-5, atol=1e-6)
    assert not server.ready


def test_the_second_rule_is_the_nearest_among_the_own_classes():
    method, classes = fedtgp(LocalTraining(optax.sgd(0.1), batch_size=2)), [0, 2]
    labels = np.array([0, 2, 2, 1])
    data = tiny.client_data(labels, np.flatnonzero(np.isin(labels, classes)), padding=1)
    x, mask = (
        jnp.asarray(np.random.default_rng(2).normal(size=(5, 2, 2, 1)), jnp.float32),
        jnp.ones(5, bool),
    )
    server = method.init_server(FEDERATION, jax.random.key(1))._replace(ready=jnp.array(True))
    downlink = method.broadcast(FEDERATION, BUCKET, server, tiny.context(0))
    client = method.receive(
        BUCKET, method.init_client(BUCKET, tiny.context(0)), downlink, data, tiny.context(0)
    )
    scores = method.predict(BUCKET, client, downlink, x, mask)
    assert method.rules == ("prototype", "own_prototype", "head")
    expected = np.where(np.isin(np.arange(C), classes), scores["prototype"], -np.inf)
    np.testing.assert_array_equal(scores["own_prototype"], expected)
    assert np.isfinite(scores["prototype"]).all()

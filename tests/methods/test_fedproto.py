import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fedproto import Server, fedproto
from fedjax_ht.methods.shared.prototypes import mean_by_class
from tests import tiny
from tests.reference import averaging, linear_client
from tests.reference.distances import pairwise_distance

C, K, LR = 4, 3, 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation(C, K)
BUCKET = FEDERATION.buckets[0]
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2], 2: [2]}, K)  # nobody has class 3
COUNTS = {0: {0: 5.0, 2: 1.0}, 1: {1: 2.0, 2: 9.0}, 2: {2: 30.0}}
STALE = Server(jnp.full((C, K), 77.0), jnp.ones(C, bool))
# two steps of three; the last sample is left out of training
LABELS = np.array([0, 2, 2, 0, 3, 0, 3])


@pytest.fixture(scope="module", params=["uniform", "samples"])
def served(request):
    """(weighting, the compiled server)."""
    method = fedproto(TRAINING, weighting=request.param)
    return request.param, jax.jit(
        lambda server, received: method.server_update(FEDERATION, server, received, None)
    )


@pytest.mark.parametrize("order", [tiny.ORDER, tiny.OTHER_ORDER], ids=["order", "other order"])
def test_server_update_equals_the_reference(served, order):
    weighting, serve = served
    counts = COUNTS if weighting == "samples" else None
    server, metrics = serve(STALE, tiny.receive_prototypes(UPLOADS, order, C, K, counts))
    weights = None if counts is None else [COUNTS[i] for i in range(3)]
    want = averaging.mean_by_class([UPLOADS[i] for i in range(3)], weights)
    np.testing.assert_array_equal(server.available, [True, True, True, False])
    assert metrics["classes"] == 3
    for c in range(C):
        np.testing.assert_allclose(
            server.prototypes[c], want.get(c, np.zeros(K)), rtol=1e-5, atol=1e-6
        )


def test_prototypes_of_an_earlier_round_are_replaced():
    method = fedproto(TRAINING)
    server, _ = method.server_update(
        FEDERATION, STALE, tiny.receive_prototypes({1: UPLOADS[1]}, tiny.ORDER, C, K), None
    )
    np.testing.assert_array_equal(server.available, [False, True, True, False])
    np.testing.assert_array_equal(server.prototypes[1], UPLOADS[1][1])
    np.testing.assert_array_equal(server.prototypes[0], 0)


def test_a_round_without_any_prototype_leaves_the_old_ones(served):
    weighting, serve = served
    idle = tiny.receive_prototypes(
        {0: {}, 2: {}}, tiny.ORDER, C, K, {} if weighting == "samples" else None
    )
    server, _ = serve(STALE, idle)  # clients without samples
    jax.tree.map(np.testing.assert_array_equal, server, STALE)


def test_mean_by_class_normalises_any_weights():
    values = np.random.default_rng(0).normal(size=(2, 1, K)).astype(np.float32)
    for scale in (1e-6, 1.0, 1e6):
        mean = mean_by_class(
            values, np.ones((2, 1), bool), scale * np.array([[1.0], [3.0]], np.float32)
        )
        np.testing.assert_allclose(
            mean[0], (values[0, 0] + 3 * values[1, 0]) / 4, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("options", "weight"),
    [({}, 0.1), ({"variant": "released"}, 10.0), ({"weight": 2.0}, 2.0)],
    ids=str,
)
def test_client_update_equals_the_reference(options, weight):
    method, variant = fedproto(TRAINING, **options), options.get("variant", "paper")
    data, ctx = tiny.client_data(LABELS, padding=2), tiny.context(0)
    client = method.init_client(BUCKET, ctx)
    update = jax.jit(
        lambda client, downlink: method.client_update(BUCKET, client, downlink, data, ctx)
    )
    prototypes = 3 * np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)
    x = tiny.pixels(data)
    # in the first round there is none
    for available in (np.array([1, 1, 0, 1], bool), np.zeros(C, bool)):
        known = np.where(available[:, None], prototypes, np.nan)
        trained, uplink, metrics = update(client, Masked(known, jnp.asarray(available)))
        want, loss, seen = linear_client.train(
            tiny.flat_params(client["params"]),
            [(x[:3], LABELS[:3]), (x[3:6], LABELS[3:6])],
            LR,
            prototypes=prototypes,
            available=available,
            weight=weight,
            variant=variant,
        )
        for name, value in tiny.flat_params(trained["params"]).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        if variant == "paper":  # of the trained model, over all samples
            means = linear_client.class_means(linear_client.features(want, x), LABELS)
        else:  # of the features that the steps saw
            means = linear_client.class_means(*(np.concatenate(part) for part in zip(*seen)))
        assert uplink.counts == ()
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in means.items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)


def test_prediction_is_the_nearest_prototype_that_exists():
    method = fedproto(TRAINING)
    client = method.init_client(BUCKET, tiny.context(0))
    x, mask = (
        jnp.asarray(np.random.default_rng(2).normal(size=(5, 2, 2, 1)), jnp.float32),
        jnp.ones(5, bool),
    )
    available = np.array([True, False, True, True])
    prototypes = np.random.default_rng(3).normal(size=(C, K)).astype(np.float32)
    downlink = Masked(jnp.where(available[:, None], prototypes, jnp.nan), jnp.asarray(available))
    scores = method.predict(BUCKET, client, downlink, x, mask)
    assert method.rules == ("prototype", "own_prototype", "head") and set(scores) == set(
        method.rules
    )
    params = tiny.flat_params(client["params"])
    distances = pairwise_distance(linear_client.features(params, x.reshape(5, -1)), prototypes)
    np.testing.assert_allclose(
        scores["prototype"], np.where(available, -distances, -np.inf), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        scores["head"], linear_client.logits(params, x.reshape(5, -1)), rtol=1e-5, atol=1e-5
    )
    # Among its own classes once it has looked them up: all until then, and for who has no samples.
    np.testing.assert_array_equal(scores["own_prototype"], scores["prototype"])
    for labels, classes in (([0, 2, 2], [0, 2]), ([], range(C))):
        data = tiny.client_data(LABELS, np.flatnonzero(np.isin(LABELS, labels)), padding=2)
        received = method.receive(BUCKET, client, downlink, data, tiny.context(0))
        among = method.predict(BUCKET, received, downlink, x, mask)["own_prototype"]
        np.testing.assert_array_equal(
            among, np.where(np.isin(np.arange(C), classes), scores["prototype"], -np.inf)
        )

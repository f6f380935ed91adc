import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fedproto import Server, fedproto
from fedjax_ht.methods.shared.prototypes import mean_by_class
from tests import tiny
from tests.reference import averaging, linear_client
from tests.reference.distances import pairwise_distance
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LABELS, LR, TRAINING, C, K

UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2], 2: [2]})  # nobody has class 3
COUNTS = {0: {0: 5.0, 2: 1.0}, 1: {1: 2.0, 2: 9.0}, 2: {2: 30.0}}
STALE = Server(jnp.full((C, K), 77.0), jnp.ones(C, bool))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_server_update_equals_the_reference(weighting):
    """Prototypes of an earlier round are replaced, but for a round without any."""
    method, by_samples = fedproto(TRAINING, weighting=weighting), weighting == "samples"
    received = tiny.receive_prototypes(UPLOADS, counts=COUNTS if by_samples else None)
    server, metrics = served(method, FEDERATION, STALE, received)
    weights = [COUNTS[i] for i in range(3)] if by_samples else None
    want = averaging.mean_by_class([UPLOADS[i] for i in range(3)], weights)
    np.testing.assert_array_equal(server.available, [True, True, True, False])
    assert metrics["classes"] == 3
    for c in range(C):
        mean = want.get(c, np.zeros(K))
        np.testing.assert_allclose(server.prototypes[c], mean, rtol=1e-5, atol=1e-6)
    idle = tiny.receive_prototypes({0: {}, 2: {}}, counts={} if by_samples else None)
    tiny.check_equal(served(method, FEDERATION, STALE, idle)[0], STALE)


def test_mean_by_class_normalises_any_weights():
    values = np.random.default_rng(0).normal(size=(2, 1, K)).astype(np.float32)
    want = (values[0, 0] + 3 * values[1, 0]) / 4
    for scale in (1e-6, 1.0, 1e6):
        weights = scale * np.array([[1.0], [3.0]], np.float32)
        mean = mean_by_class(values, np.ones((2, 1), bool), weights)
        np.testing.assert_allclose(mean[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "weight"),
    [({}, 0.1), ({"variant": "released"}, 10.0), ({"weight": 2.0}, 2.0)],
    ids=str,
)
def test_client_update_equals_the_reference(options, weight):
    method, variant = fedproto(TRAINING, **options), options.get("variant", "paper")
    client = method.init_client(BUCKET, tiny.context(0))
    prototypes = 3 * np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)
    # in the first round there is none
    for available in (np.array([1, 1, 0, 1], bool), np.zeros(C, bool)):
        known = np.where(available[:, None], prototypes, np.nan)
        sent = Masked(jnp.asarray(known), jnp.asarray(available))
        _, trained, uplink, metrics = tiny.play(method, client, sent)
        want, loss, seen = linear_client.train(
            tiny.flat_params(client["params"]),
            BATCHES,
            LR,
            prototypes=prototypes,
            available=available,
            weight=weight,
            variant=variant,
        )
        tiny.check_model(trained["params"], want)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        if variant == "paper":  # of the trained model, over all samples
            rows = linear_client.features(want, tiny.pixels(tiny.DATA))
            means = linear_client.class_means(rows, LABELS)
        else:  # of the features that the steps saw
            means = linear_client.class_means(*(np.concatenate(part) for part in zip(*seen)))
        assert uplink.counts == ()
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in means.items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)


def test_prediction_is_the_nearest_prototype_that_exists():
    method = fedproto(TRAINING)
    client = method.init_client(BUCKET, tiny.context(0))
    x = jnp.asarray(np.random.default_rng(2).normal(size=(5, 2, 2, 1)), jnp.float32)
    mask, available = jnp.ones(5, bool), np.array([True, False, True, True])
    prototypes = np.random.default_rng(3).normal(size=(C, K)).astype(np.float32)
    downlink = Masked(jnp.where(available[:, None], prototypes, jnp.nan), jnp.asarray(available))
    scores = method.predict(BUCKET, client, downlink, x, mask)
    assert method.rules == ("prototype", "own_prototype", "head") and set(scores) == set(
        method.rules
    )
    params, flat = tiny.flat_params(client["params"]), x.reshape(5, -1)
    distances = pairwise_distance(linear_client.features(params, flat), prototypes)
    want = {
        "prototype": np.where(available, -distances, -np.inf),
        "head": linear_client.logits(params, flat),
    }
    for rule, value in want.items():
        np.testing.assert_allclose(scores[rule], value, rtol=1e-5, atol=1e-5)
    # Among its own classes once it has looked them up: all until then, and for who has no samples.
    np.testing.assert_array_equal(scores["own_prototype"], scores["prototype"])
    for labels, classes in (([0, 2, 2], [0, 2]), ([], range(C))):
        data = tiny.client_data(LABELS, np.flatnonzero(np.isin(LABELS, labels)), padding=2)
        received = method.receive(BUCKET, client, downlink, data, tiny.context(0))
        among = method.predict(BUCKET, received, downlink, x, mask)["own_prototype"]
        own = np.where(np.isin(np.arange(C), classes), scores["prototype"], -np.inf)
        np.testing.assert_array_equal(among, own)

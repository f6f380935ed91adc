"""FedProto, FD and FedGH, whose clients upload means by class, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fd import fd
from fedjax_ht.methods.fedgh import fedgh
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.methods.shared.prototypes import mean_by_class
from tests import tiny
from tests.alignment_steps import epoch_orders, valid_rows
from tests.reference import averaging, linear_client
from tests.reference import fd as fd_reference
from tests.reference import fedgh as fedgh_reference
from tests.reference.distances import pairwise_distance
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LABELS, LR, TRAINING, C, K

CLASSES = {0: [0, 2], 1: [1, 2], 2: [2]}  # nobody has class 3
COUNTS = {0: {0: 5.0, 2: 1.0}, 1: {1: 2.0, 2: 9.0}, 2: {2: 30.0}}
STALE = Masked(jnp.full((C, K), 77.0), jnp.ones(C, bool))
SERVERS = {  # the method, and its state after earlier rounds
    "fedproto": (fedproto(TRAINING), STALE),
    "fedproto, samples": (fedproto(TRAINING, weighting="samples"), STALE),
    "fd": (fd(TRAINING), Masked(jnp.full((C, C), 77.0), jnp.ones(C, bool))),
}


def check_means(uplink, params) -> None:
    """Asserts that a client has sent its features' means by class, over all of its samples."""
    np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
    rows = linear_client.features(params, tiny.pixels(tiny.DATA))
    for c, mean in linear_client.class_means(rows, LABELS).items():
        np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_averages_by_class(name):
    """Means of an earlier round are replaced, but for a round without uploads."""
    method, stale = SERVERS[name]
    width, by_samples = stale[0].shape[1], "samples" in name
    uploads = tiny.prototypes_of(CLASSES, width)
    received = tiny.receive_prototypes(uploads, width=width, counts=COUNTS if by_samples else None)
    server, metrics = served(method, FEDERATION, stale, received)
    weights = [COUNTS[i] for i in range(3)] if by_samples else None
    want = averaging.mean_by_class([uploads[i] for i in range(3)], weights)
    values, available = server[:2]
    np.testing.assert_array_equal(available, [True, True, True, False])
    assert metrics["classes"] == 3
    for c in range(C):
        mean = want.get(c, np.zeros(width))
        np.testing.assert_allclose(values[c], mean, rtol=1e-5, atol=1e-6)
    nothing = {0: {}, 2: {}}  # clients without samples
    idle = tiny.receive_prototypes(nothing, width=width, counts={} if by_samples else None)
    tiny.check_equal(served(method, FEDERATION, stale, idle)[0], stale)


def test_sums_while_training_count_steps():
    forms = {variant: fedproto(TRAINING, variant=variant).wire for variant in ("paper", "released")}
    assert {name: wire.counts for name, wire in forms.items()} == {
        "paper": "samples",
        "released": "steps",
    }


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
def test_a_client_of_fedproto_is_pulled_to_prototypes(options, weight):
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
        assert uplink.counts == ()
        if variant == "paper":  # of the trained model
            check_means(uplink, want)
            continue
        # of the features that the steps saw
        means = linear_client.class_means(*(np.concatenate(part) for part in zip(*seen)))
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in means.items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "weight", "form"),
    [
        ({}, 1.0, "mse_logits"),
        ({"weight": 3.0, "regulariser": "soft_cross_entropy"}, 3.0, "soft_cross_entropy"),
    ],
    ids=str,
)
def test_a_client_of_fd_is_pulled_to_mean_logits(options, weight, form):
    method = fd(dataclasses.replace(TRAINING, epochs=2), **options)
    # the last sample is left out
    data = tiny.client_data(np.array([0, 2, 2, 0, 3, 0, 1]), padding=2)
    client = method.init_client(BUCKET, tiny.context(0))
    targets = 3 * np.random.default_rng(1).normal(size=(C, C)).astype(np.float32)
    # in the first round there are none
    for available in (np.array([1, 1, 0, 1], bool), np.zeros(C, bool)):
        known = jnp.where(available[:, None], targets, jnp.nan)
        sent = Masked(known, jnp.asarray(available))
        _, trained, uplink, metrics = tiny.play(method, client, sent, data=data)
        want, loss, means = fd_reference.train(
            tiny.flat_params(client["params"]),
            2 * BATCHES,
            LR,
            targets=targets,
            available=available,
            weight=weight,
            regulariser=form,
        )
        tiny.check_model(trained["params"], want)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        # Means over the logits that the steps saw; class 1 was in no batch.
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in means.items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-5)


def test_the_server_of_fedgh_trains_the_head():
    """Without any prototype the head stays."""
    method = fedgh(TRAINING, server_epochs=2, server_lr=0.3, server_batch_size=3)
    head, ctx = method.init_server(FEDERATION, jax.random.key(1)), tiny.context(seed=2)
    # seven rows: the last batch is masked
    uploads = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, seed=4)
    got, metrics = served(method, FEDERATION, head, tiny.receive_prototypes(uploads), ctx)
    start = {name: np.asarray(value, np.float64) for name, value in head.items()}
    valid = valid_rows(uploads, tiny.OTHER_ORDER)
    orders = list(epoch_orders(jax.random.split(ctx.key)[0], valid, 2))
    rows = [uploads[i] for i in range(3)]
    want, loss = fedgh_reference.server_update(start, rows, orders, 3, 0.3)
    tiny.check_model(got, want)
    for name in want:
        assert np.abs(want[name] - start[name]).max() > 1e-3  # the head is trained
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)
    nothing = tiny.receive_prototypes({0: {}, 2: {}})  # clients without samples
    idle, metrics = served(method, FEDERATION, head, nothing, ctx)
    tiny.check_equal(idle, head)
    assert metrics["server_loss"] == 0


def test_a_client_of_fedgh_trains_with_the_servers_head():
    method, ctx = fedgh(TRAINING), tiny.context(0)
    head = method.init_server(FEDERATION, jax.random.key(5))
    state = method.init_client(BUCKET, ctx)
    downlink = method.broadcast(FEDERATION, BUCKET, head, ctx)
    _, trained, uplink, metrics = tiny.play(method, state, downlink)
    start = tiny.flat_params(state["params"] | {"head": head})
    want, loss, _ = linear_client.train(start, BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    check_means(uplink, want)


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

"""FedPAC against NumPy: a client's round, the shares of the heads, and whose head is whose."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.fedpac import Server, Uplink, fedpac, head_shares, onto_simplex
from tests import tiny
from tests.reference import fedpac as reference
from tests.reference import linear_client, whole_rounds
from tests.reference import one_architecture as clients
from tests.reference.gradients import descend
from tests.reference.prototype_losses import sample_prototype_mse
from tests.standard import served
from tests.tiny import BUCKET, LR, C, K, check_equal, check_model, model
from tests.tiny import ONE_BUCKET as FEDERATION
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

LABELS = tiny.LABELS[:5]
play = functools.partial(tiny.play, data=tiny.SHORT_DATA)

MEANS = np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)
KNOWN = np.array([True, True, False, True])


def test_a_client_trains_its_head_and_then_the_extractor():
    method = fedpac(TRAINING, lam=0.7, head_epochs=2)
    downlink = model(1), Masked(jnp.asarray(MEANS), jnp.asarray(KNOWN))
    received, trained, uplink, _ = play(method, {"params": model(0), "stats": {}}, downlink)
    check_equal(received["params"], model(1))
    start = tiny.flat_params(received["params"])
    x = np.concatenate([x for x, _ in BATCHES])
    h, variance = reference.moments(linear_client.features(start, x), LABELS, C)
    params = clients.of_part(start, "head", BATCHES * 2, LR)

    def loss(params, x, y):
        rows, everyone = linear_client.features(params, x), [True] * len(y)
        pull = sample_prototype_mse(rows, y, everyone, MEANS, KNOWN)
        return linear_client.loss(params, x, y) + 0.7 * pull

    base = {k: params[k] for k in ("base_kernel", "base_bias")}
    trained_base, _, _ = descend(lambda p, *batch: loss(params | p, *batch), base, BATCHES, LR)
    params |= trained_base
    check_model(trained["params"], params)
    check_equal(uplink.params, trained["params"])
    np.testing.assert_array_equal(uplink.classes.mask, [True, False, True, True])
    np.testing.assert_allclose(uplink.classes.values[:, :K], h, rtol=1e-4, atol=1e-6)
    for c, mean in linear_client.class_means(linear_client.features(params, x), LABELS).items():
        np.testing.assert_allclose(uplink.classes.values[c, K:], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(uplink.variance, variance, rtol=1e-4)
    np.testing.assert_array_equal(uplink.label_counts.value, [2, 0, 2, 1])


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("scale", "common"), [(0.01, 0), (30.0, 0), (1.0, 100.0)])
def test_shares_are_the_optima_of_the_quadratic_programs(scale, common, scaled):
    """Some clients are like each other, some alone, all may be far from 0; two rows do not
    count."""
    rng = np.random.default_rng(3)
    centres = scale * rng.normal(size=(2, C * K))
    h = common + centres[[0, 0, 0, 1]] + 0.3 * scale * rng.normal(size=(4, C * K))
    variances = scale**2 * rng.uniform(0.05, 2, 4)
    rows = np.insert(h, [1, 4], np.nan, axis=0).astype(np.float32)
    valid = np.array([True, False, True, True, True, False])
    got = head_shares(
        jnp.asarray(rows),
        jnp.asarray(np.insert(variances, [1, 4], np.nan), jnp.float32),
        jnp.asarray(valid),
        scaled=scaled,
    )
    assert not got[~valid].any() and not got[:, ~valid].any()
    want = np.array([reference.shares(list(h), variances.tolist(), i, scaled) for i in range(4)])
    np.testing.assert_allclose(got[np.ix_(valid, valid)], want, rtol=0, atol=2e-3)
    assert 0 < (want > 0).sum() < want.size


@pytest.mark.parametrize("scaled", [True, False])
def test_a_share_that_is_dropped_leaves_a_sum_of_one_by_the_paper(scaled):
    """Three clients, the last of which differs so much that its share is 0.0005."""
    h, variances = [np.zeros(2), np.zeros(2), np.zeros(2)], [1.0, 1.0, 1000.0]
    valid = jnp.ones(3, bool)
    got = head_shares(
        jnp.asarray(h, jnp.float32), jnp.asarray(variances, jnp.float32), valid, scaled=scaled
    )
    want = np.array([reference.shares(h, variances, i, scaled) for i in range(3)])
    assert (want[:, 2] == 0).all() and (want.sum(1) < 1).all() == (not scaled)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_onto_simplex():
    for values in np.random.default_rng(0).normal(0, [[0.1], [1], [30]], (3, 7)):
        found = onto_simplex(jnp.asarray(values, jnp.float32), jnp.ones(7, bool))
        np.testing.assert_allclose(found, whole_rounds.onto_simplex(values), atol=1e-6)
    some = jnp.array([True, False, True])
    np.testing.assert_allclose(onto_simplex(jnp.array([1.0, 9.0, 1.0]), some), [0.5, 0, 0.5])
    assert not onto_simplex(jnp.array([1.0, 9.0, 1.0]), jnp.zeros(3, bool)).any()


@pytest.mark.parametrize("variant", ["paper", "pfllib"])
def test_a_server_mixes_heads_and_keeps_those_of_the_absent(variant):
    """Clients 1 and 2 arrive, of different numbers of samples; 0 has none and 3 is lost."""
    rng, counts = np.random.default_rng(0), {0: 0, 1: 4, 2: 12, 3: 9, 4: 9}
    old = model(0)
    heads = jax.tree.map(lambda x: jnp.stack([x + i for i in range(4)]), old["head"])
    server = Server(old["base"], heads, Masked(jnp.asarray(MEANS), jnp.asarray(KNOWN)))
    values = rng.normal(size=(3, C, 2 * K)).astype(np.float32)
    mask = np.array([[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    by_class = np.array([[0] * 4, [1, 3, 0, 0], [12, 0, 0, 0]], np.int32)
    method = fedpac(TRAINING, variant=variant)
    variances = np.array([0.0, 0.5, 1.5], np.float32)
    models = [model(10 + i) for i in range(3)]
    uplinks = {
        i: Uplink(models[i], Masked(values[i], mask[i]), variances[i], Metadata(by_class[i]))
        for i in range(3)
    }
    received = tiny.receive(uplinks, tiny.IN_ONE_BUCKET, counts)
    (new,), _ = served(method, FEDERATION, [server], received)
    flat = [tiny.flat_params(m) for m in models]
    for name, part in (("kernel", "base_kernel"), ("bias", "base_bias")):
        want = (4 * flat[1][part] + 12 * flat[2][part]) / 16
        np.testing.assert_allclose(new.base["fc"][name], want, rtol=1e-5, atol=1e-6)
    h = [np.where(mask[i][:, None], values[i][:, :K], 0) for i in (1, 2)]
    for place, i in enumerate((1, 2)):
        a = reference.shares(h, [0.5, 1.5], place, scaled=variant == "paper")
        want = a[0] * flat[1]["head_kernel"] + a[1] * flat[2]["head_kernel"]
        np.testing.assert_allclose(new.heads["kernel"][i], want, rtol=0, atol=1e-2)
        sent, _ = method.broadcast(
            FEDERATION, BUCKET, [new], tiny.context(0, last_round=0)._replace(info=tiny.infos(i, 5))
        )
        np.testing.assert_array_equal(sent["head"]["kernel"], new.heads["kernel"][i])
    for i in (0, 3):
        np.testing.assert_array_equal(new.heads["kernel"][i], heads["kernel"][i])
    weights = by_class if variant == "paper" else np.sign(by_class)
    means = reference.centroids(values[1:, :, K:], weights[1:])
    np.testing.assert_allclose(new.means.values[:2], means[:2], rtol=1e-5)
    np.testing.assert_array_equal(new.means.values[3], MEANS[3])  # nobody sent it
    np.testing.assert_array_equal(new.means.mask, [True, True, False, True])

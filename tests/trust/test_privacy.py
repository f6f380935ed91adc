"""Clipping and noise on a stub whose messages are plain numbers, and on FedAvg."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.context import Received
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.trust.attacks import attacked
from fedjax_ht.trust.options import Attack, Privacy
from fedjax_ht.trust.privacy import noisy_sums, private
from tests import tiny
from tests.reference import privacy as reference
from tests.trust.stub import BUCKET, FEDERATION, stub

WIDE = 30_000

DATA = tiny.client_data([0, 1, 2])
SENT = jnp.array([4.0, -2.0, 1.0])  # the downlink


def private_upload(method, privacy, client=0, seed=0):
    ctx = tiny.context(client, seed=seed)
    return private(method, privacy).client_update(BUCKET, jnp.full(3, 7.0), SENT, DATA, ctx)[:2]


@pytest.mark.parametrize("clip", [0.1, 5.0, 1e3])
def test_updates_are_clipped_over_all_that_is_sent(clip):
    change = np.array([3.0, 0.0, -4.0], np.float32)
    method = stub(lambda client, data: change, masked=True)
    _, uplink = private_upload(method, Privacy("client", clip))
    model, row = reference.clipped([change, change], clip)
    np.testing.assert_allclose(uplink["model"], SENT + model, rtol=1e-6)
    np.testing.assert_allclose(uplink["rows"].values[0], SENT + row, rtol=1e-6)
    assert uplink["count"].value == 1  # whatever it is


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_client_that_is_not_finite_sends_nothing_and_keeps_its_state(value):
    method = stub(lambda client, data: jnp.full(3, value))
    client, uplink = private_upload(method, Privacy("client", 1.0))
    np.testing.assert_array_equal(client, 7.0)
    np.testing.assert_array_equal(uplink["model"], SENT)


@pytest.mark.parametrize("unit", ["client", "upload", "sample"])
def test_an_infinite_loss_keeps_no_upload_from_arriving(unit):
    """The arrival of an upload would reveal the loss."""
    method = stub()

    def client_update(bucket, client, downlink, data, ctx):
        return *method.client_update(bucket, client, downlink, data, ctx)[:2], {"loss": jnp.inf}

    private_method = private(method._replace(client_update=client_update), Privacy(unit))
    ctx = tiny.context(0, seed=0)
    _, _, metrics = private_method.client_update(BUCKET, jnp.full(3, 7.0), SENT, DATA, ctx)
    assert metrics["loss"] == 0


def test_a_clients_state_is_part_of_its_update():
    """A newcomer's upload is what it is compared with: nothing is left beyond the clip."""
    _, uplink = private_upload(stub(lambda client, data: 1e6 * client), Privacy("client", 1.0))
    np.testing.assert_allclose(np.linalg.norm(uplink["model"] - SENT), 1.0, rtol=1e-5)


@pytest.mark.parametrize("kind", ["scaled", "shift"])
def test_an_attacker_is_clipped_too(kind):
    method = attacked(stub(), Attack(kind, 1.0, 1e6), 4)
    _, uplink = private_upload(method, Privacy("client", 0.5))
    np.testing.assert_allclose(np.linalg.norm(uplink["model"] - SENT), 0.5, rtol=1e-5)


def test_uploads_have_noise_of_their_own():
    method = stub(lambda client, data: 0.0, masked=True)

    def run(seed, privacy):
        return private_upload(method, privacy, 0, seed)[1]["model"] - SENT

    each = jax.jit(jax.vmap(lambda seed: run(seed, Privacy("upload", 0.5, 3.0))))
    many = np.asarray(each(jnp.arange(WIDE // 3)))
    np.testing.assert_allclose(np.std(many), 1.5, rtol=5 / np.sqrt(2 * WIDE))
    correlations = np.corrcoef(many.T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(WIDE / 3)
    secrets = (), (), (1,), (1, 2**32 - 1)
    alike = [run(0, Privacy("upload", 0.5, 3.0, secret=secret)) for secret in secrets]
    np.testing.assert_array_equal(alike[0], alike[1])
    np.testing.assert_array_equal(alike[0], many[0])
    assert len({float(x[0]) for x in alike}) == 3


def parts():
    """Three clients of one bucket and two of another, one lost; columns of a mask differ."""

    mask = np.array([[True, False], [False, True], [True, True]])

    def uplink(rows, values=2):
        wide = np.full((rows, WIDE), np.nan, np.float32)
        wide[:values] = 1.0
        return {
            "whole": wide,
            "rows": Masked(np.ones((rows, 2, WIDE), np.float32), mask[:rows]),
            "count": Metadata(np.ones(rows, np.float32)),
        }

    a = Received(uplink(3, 3), tiny.infos([4, 0, 2], 10), np.array([True, True, True]))
    b = Received(uplink(2, 1), tiny.infos([1, 3], 10), np.array([True, False]))
    return {"linear0": jax.tree.map(jnp.asarray, a), "linear1": jax.tree.map(jnp.asarray, b)}


def noised(clean, key):
    """The uploads with noise on their sums, in one program; buckets in the order that it has."""
    order = []

    @jax.jit
    def run(key):
        noisy = noisy_sums(FEDERATION, clean, 1.5, key)
        order.extend(noisy)  # a program's results are sorted by name
        return noisy

    noisy = jax.device_get(run(key))
    return {name: noisy[name] for name in order}


def sums_of(received) -> list[np.ndarray]:
    """Sums over who arrived, less what they are in truth: whole uploads, and rows sent."""
    whole, rows = np.zeros(WIDE), np.zeros((2, WIDE))
    for r in received.values():
        for i in np.flatnonzero(r.arrived):
            whole += np.asarray(r.uplink["whole"][i], np.float64) - 1
            values, mask = (np.asarray(x[i]) for x in r.uplink["rows"][:2])
            rows += np.where(mask[:, None], values - 1.0, 0)
    return [whole, *rows]


def test_every_sum_has_the_noise_that_it_is_told():
    clean, key = parts(), jax.random.key(0)
    noisy = noised(clean, key)
    sums = sums_of(noisy)
    for x in sums:
        np.testing.assert_allclose(x.std(), 1.5, rtol=5 / np.sqrt(2 * WIDE))
        assert abs(x.mean()) < 5 * 1.5 / np.sqrt(WIDE)
    assert np.abs(np.corrcoef(sums)[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(WIDE)
    assert list(noisy) == list(clean) and noisy["linear1"].arrived.tolist() == [True, False]
    # Neither the order of buckets nor that of clients, nor padding, changes what is drawn.
    turned = {name: jax.tree.map(lambda x: x[::-1], clean[name]) for name in ("linear1", "linear0")}
    for x, y in zip(sums, sums_of(noised(turned, key))):
        np.testing.assert_allclose(x, y, atol=1e-5)
    other = sums_of(noised(clean, jax.random.key(1)))
    assert np.abs(np.corrcoef(sums[0], other[0])[0, 1]) < 0.03


def test_sums_of_other_shapes_have_noise_each():
    clean = parts()
    uplink = clean["linear1"].uplink | {"whole": np.ones((2, WIDE - 1), np.float32)}
    narrow = clean["linear1"]._replace(uplink=uplink)
    noisy = noised(clean | {"linear1": narrow}, jax.random.key(0))
    by_part = [(r.uplink["whole"] - 1.0)[r.arrived].sum(0) for r in noisy.values()]
    for x in by_part:
        np.testing.assert_allclose(x.std(), 1.5, rtol=5 / np.sqrt(2 * WIDE))
    assert abs(np.corrcoef(by_part[0][:-1], by_part[1])[0, 1]) < 5 / np.sqrt(WIDE)


def test_noise_leaves_no_negative_variances():
    state = {"stats": {"norm": {"mean": jnp.array([-1.0]), "var": jnp.array([-1.0])}}}
    method = stub()._replace(server_update=lambda *arguments: (state, {}))
    new, _ = private(method, Privacy("upload")).server_update(FEDERATION, None, {}, tiny.context())
    assert new["stats"]["norm"] == {"mean": -1, "var": 0}
    alone = stub()._replace(server_update=lambda *arguments: (-jnp.ones(2), {}))
    new, _ = private(alone, Privacy("upload")).server_update(FEDERATION, None, {}, tiny.context())
    np.testing.assert_array_equal(new, -1)


def test_a_server_is_told_of_one_sample_each_and_of_noise():
    clean = parts()

    def server(privacy):
        method = private(stub(), privacy)
        update = jax.jit(lambda ctx: method.server_update(FEDERATION, None, clean, ctx)[0])
        return jax.device_get(update(tiny.context()))

    for unit, std in (("client", 1.5), ("upload", 0.0)):
        seen = server(Privacy(unit, 0.5, 3.0))
        assert seen["linear0"].info.num_samples.tolist() == [1, 1, 1]
        np.testing.assert_allclose(sums_of(seen)[0].std(), std, rtol=5 / np.sqrt(2 * WIDE))
    secrets = (), (), (5,)
    first, again, other = (sums_of(server(Privacy("client", secret=x)))[0] for x in secrets)
    np.testing.assert_array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(WIDE)


@functools.cache
def server_after(privacy: Privacy | None, weighting: str = "uniform", seed: int = 0):
    """FedAvg's server before and after two clients have trained."""
    recipe = fl.LocalTraining(optax.sgd(0.5), batch_size=2)
    method = private(fl.fedavg(recipe, weighting=weighting), privacy)
    federation, bucket, shapes = tiny.ONE_BUCKET, tiny.BUCKET, [[0, 1, 2, 3], [1, 1, 3]]
    server = method.init_server(federation, jax.random.key(seed))

    def run(server):
        uplinks = []
        for i, labels in enumerate(shapes):
            data, ctx = tiny.client_data(labels, seed=i), tiny.context(i, seed=seed + i)
            client = method.receive(bucket, method.init_client(bucket, ctx), server, data, ctx)
            uplinks.append(method.client_update(bucket, client, server, data, ctx)[1])
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *uplinks)
        received = Received(stacked, tiny.infos(range(2), [4, 3]), jnp.ones(2, bool))
        ctx = tiny.context(seed=seed)
        return method.server_update(federation, server, {bucket.name: received}, ctx)[0]

    return server, jax.jit(run)(server)


def test_without_noise_and_clipping_a_round_is_what_it_was():
    _, plain = server_after(None)
    start, end = server_after(Privacy("client", 1e6, 0.0), "samples")  # which here are one each
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), end, plain)
    assert not np.allclose(end["head"]["kernel"], start["head"]["kernel"], atol=1e-3)


def test_settings_that_vary_are_private_too():
    method = fl.varied(lambda settings: stub(lambda client, data: settings * jnp.ones(3)), 1.0)
    bound = private(method, Privacy("client", 0.5)).at(100.0)
    _, uplink, _ = bound.client_update(BUCKET, jnp.zeros(3), SENT, DATA, tiny.context(0))
    np.testing.assert_allclose(np.linalg.norm(uplink["model"] - SENT), 0.5, rtol=1e-5)

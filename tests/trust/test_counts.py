"""Counts in uploads: which are refused, and how much a client weighs by them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.context import Received
from fedjax_ht.core.counts import counts_fit, with_scaled_counts
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.shared.averaging import ModelUplink
from fedjax_ht.simulation.serving import server_round
from fedjax_ht.trust.attacks import attacked
from fedjax_ht.trust.counts import with_bounded_counts
from fedjax_ht.trust.defences import DEFENCES, defended, norm_bound
from fedjax_ht.trust.options import Attack, Privacy
from fedjax_ht.trust.privacy import private
from tests import tiny
from tests.trust.stub import FEDERATION, stub

SAMPLES = (100, 100, 100, 100)
INT32 = 2**31 - 1
FEDAVG = fl.fedavg(fl.LocalTraining(optax.sgd(0.1)))


def received(counts, samples=SAMPLES) -> Received:
    """Returns uploads with these counts, of clients with these training samples."""
    n = len(samples)
    uplink = {"model": jnp.ones((n, 2)), "count": counts}
    return Received(uplink, tiny.infos(range(n), samples), jnp.ones(n, bool))


def fit(counts, samples=SAMPLES) -> list[bool]:
    return counts_fit(stub(), received(Metadata(counts), samples)).tolist()


@functools.cache
def step_behind(defences):
    """Returns FedAvg's compiled round of the server behind defences."""
    method = defended(FEDAVG, [DEFENCES[name]() for name in defences])
    return jax.jit(server_round(method, tiny.ONE_BUCKET, 1000.0))


@pytest.mark.parametrize("count", [INT32, 101, -1, -250, -299, -300, -301, -(2**31)])
@pytest.mark.parametrize("defences", [(), ("norm_bound",), ("norm_bound", "median")], ids=len)
def test_false_counts_of_one_client_neither_multiply_nor_freeze_the_model(count, defences):
    """FedAvg, where clients weigh by their samples: -299 beside 300 made 300 times the model."""
    server = FEDAVG.init_server(tiny.ONE_BUCKET, jax.random.key(0))
    models = jax.tree.map(lambda x: jnp.stack([x + 0.01 * (i + 1) for i in range(4)]), server)
    uplink = ModelUplink(models, Metadata(jnp.array([100, 100, 100, count], jnp.int32)))
    uploads = {"linear0": received(())._replace(uplink=uplink)}
    new, result = step_behind(defences)(server, uploads, jax.random.key(0), jnp.int32(1))
    assert result.miscounted.tolist() == [False] * 3 + [True] and bool(result.finite)
    for before, after in zip(jax.tree.leaves(server), jax.tree.leaves(new)):
        np.testing.assert_allclose(after, before + 0.02, atol=1e-5)  # the other three's mean


def test_a_client_counts_at_most_its_samples():
    assert fit(jnp.array([100, 0, 99, 101], jnp.int32)) == [True, True, True, False]
    assert fit(jnp.array([1.5, -0.5, np.nan, np.inf])) == [True, False, False, False]
    by_class = jnp.array([[50, 50, 0], [50, 51, 0], [101, -1, 0], [INT32, INT32, 2]], jnp.int32)
    assert fit(by_class) == [True, False, False, False]
    mask = jnp.array([[True, False]] * 4)
    values = jnp.array([[100.0, 7.0], [100.0, np.nan], [101.0, 0.0], [np.nan, 0.0]])
    assert fit(Masked(values, mask)) == [True, True, False, False]  # what is not sent is not read
    assert fit(jnp.ones((4, 200), bool)) == [True] * 4  # flags
    huge = (2**24 + 1,) * 4
    assert fit(jnp.array([2**24 + 1, 0, 1, INT32], jnp.int32), huge) == [True, True, True, False]
    assert fit(jnp.array([1, 2, 0, -1], jnp.int32), (0,) * 4) == [False, False, True, False]


def test_a_method_says_what_it_counts():
    """Two epochs of batches of 4 train on each of 100 samples twice."""
    recipe = fl.LocalTraining(optax.sgd(0.1), epochs=2, batch_size=4)
    method = stub(wire=fl.Wire(counts="steps"))._replace(training=recipe)
    by_class = jnp.array([[100, 100], [150, 50], [100, 101], [-1, 1]], jnp.int32)
    assert counts_fit(method, received(Metadata(by_class))).tolist() == [True, True, False, False]
    counts = jnp.array([100, 101, 0, 0], jnp.int32)  # a count of clients, not of classes
    assert counts_fit(method, received(Metadata(counts))).tolist() == [True, False, True, True]
    uploads = received(Metadata(jnp.array([-5, INT32, 7, 0], jnp.int32)))
    assert counts_fit(stub(wire=fl.Wire(counts="other")), uploads).tolist() == [True] * 4
    uploads = received(Metadata(jnp.array([1, 2, 100, 0], jnp.int32)))
    for unit, expected in (("upload", [True, False, False, True]), ("sample", [True] * 4)):
        method = private(stub(), Privacy(unit, clip=1.0, noise=1.0))
        assert counts_fit(method, uploads).tolist() == expected


def test_a_defence_bounds_what_a_client_weighs():
    samples = (5000, 100, 90, 110)  # as the first has said from the beginning
    uploads = received(Metadata(jnp.array(samples, jnp.int32)), samples)
    method = stub()

    def counted(robust, wire=method.wire):
        update = defended(method._replace(wire=wire), robust).server_update

        @jax.jit
        def counts_seen(uploads):
            seen, _ = update(FEDERATION, None, {"a": uploads}, None)
            return seen["a"].uplink["count"].value

        return counts_seen(uploads).tolist()

    assert counted([norm_bound(2.0)]) == [200, 100, 90, 110]
    assert counted([norm_bound(0.5)]) == [100, 100, 90, 100]  # not below their median
    assert counted([norm_bound(3.0), DEFENCES["median"]()]) == [200, 100, 90, 110]
    assert counted([norm_bound(3.0)]) == [300, 100, 90, 110]
    assert counted([DEFENCES["multi_krum"](0.1)])[0] == 200
    assert counted([norm_bound(2.0)], fl.Wire(counts="other")) == [5000, 100, 90, 110]


def test_bounded_counts_keep_their_shares_over_buckets_and_classes():
    few = received(Metadata(jnp.array([[3, 1], [4, 0]], jnp.int32)), (4, 4))
    many = received(Metadata(Masked(jnp.array([[30.0, 10.0]]), jnp.ones((1, 2), bool))), (40,))
    absent = many._replace(arrived=jnp.zeros(1, bool))
    none = received((), (7,))
    bounded = with_bounded_counts({"a": few, "b": many, "c": absent, "d": none}, 2.0)
    assert bounded["a"].uplink["count"].value.tolist() == [[3, 1], [4, 0]]
    assert bounded["b"].uplink["count"].value.values.tolist() == [[6.0, 2.0]]
    assert bounded["d"] is none


def test_an_attacker_counts_more_than_it_has():
    uplink = {"model": jnp.ones(3), "count": Metadata(jnp.int32(7))}
    uplink["flag"] = Metadata(jnp.array(True))
    for factor, expected in ((3.0, 21), (0.0, 0), (1e30, 2**31 - 2**8), (0.5, 3)):
        scaled = with_scaled_counts(uplink, jnp.float32(factor))
        assert int(scaled["count"].value) == expected and bool(scaled["flag"].value)
        assert scaled["count"].value.dtype == jnp.int32 and scaled["model"].tolist() == [1, 1, 1]
    method = attacked(stub(), Attack("counts", 1.0, 1e6), 4)
    data, ctx = tiny.client_data([0, 1, 1]), tiny.context(0, seed=0)
    _, sent, _ = method.client_update(FEDERATION.buckets[0], jnp.zeros(3), jnp.zeros(3), data, ctx)
    assert int(sent["count"].value) == 1e6 * int(ctx.info.num_samples)

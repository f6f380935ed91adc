import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.batches import ClassSums
from fedjax_ht.core.codes import Code
from fedjax_ht.core.contract import guarded
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.message_forms import uplink_form
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.round import Channel
from fedjax_ht.core.wire import (
    FIRST_ROWS,
    SHORTEST,
    TRANSFORMS,
    Masked,
    Metadata,
    WireCost,
    all_finite,
    chain,
    dense,
    first_rows,
    from_leaves,
    gaussian_noise,
    leaves_of,
    payload_leaves,
    sent,
    wire_elements,
    with_payload,
)
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean
from fedjax_ht.methods.shared.pairs import Pairs
from fedjax_ht.methods.shared.prototypes import prototype_uplink
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.trust.disclosure import check_uploads
from fedjax_ht.trust.options import Attack
from tests.federations import NUM_CLIENTS, federation_data, play, to_host, uniform_federation

TRAINING = LocalTraining(optax.sgd(0.1))
MASK = jnp.array([True, False, True])
ROWS = Masked(jnp.zeros((3, 5)), MASK)


def cost(message):
    return WireCost(*map(int, wire_elements(message)))


COSTS = {
    "nothing": ((), (0, 0, 0, 0)),
    "plain": (jnp.zeros((2, 3)), (6, 24, 0, 0)),
    "dtypes": (
        {"a": jnp.zeros(4, jnp.float16), "b": [jnp.zeros(3, jnp.int8), jnp.float32(0)]},
        (8, 15, 0, 0),
    ),
    "masked": (ROWS, (10, 40, 2, 8)),
    "masked deep": (Masked(jnp.zeros((3, 2, 2), jnp.float16), MASK), (8, 16, 2, 8)),
    "all masked": (Masked(jnp.zeros((3, 5)), jnp.zeros(3, bool)), (0, 0, 0, 0)),
    "mask 2d": (Masked(jnp.zeros((3, 2)), jnp.array([[1, 0], [1, 1], [0, 0]]) > 0), (3, 12, 3, 12)),
    "first rows": (Masked(jnp.zeros((3, 5)), jnp.arange(3) < 2, FIRST_ROWS), (10, 40, 0, 0)),
    "all or nothing": (Masked(jnp.zeros((3, 5)), jnp.array(True), FIRST_ROWS), (15, 60, 0, 0)),
    "bits": (Masked(jnp.zeros(20), jnp.arange(20) < 5, SHORTEST), (5, 20, 3, 3)),
    "indices": (Masked(jnp.zeros(40), jnp.arange(40) < 1, SHORTEST), (1, 4, 1, 4)),
    "metadata": (Metadata(jnp.zeros(3, jnp.int32)), (0, 0, 3, 12)),
    # two counts, each with its index
    "counts": (Metadata(Masked(jnp.zeros(3), MASK)), (0, 0, 4, 16)),
    "mixed": ((jnp.zeros(2), Metadata(jnp.int32(0)), ROWS), (12, 48, 3, 12)),
}


@pytest.mark.parametrize("kind", COSTS)
def test_costs_of_a_message(kind):
    message, expected = COSTS[kind]
    assert cost(message) == WireCost(*expected)


def test_a_message_may_have_3_gib():
    """More bytes than int32 holds, sent whole and by rows. Nothing of that size is allocated."""

    @jax.jit
    def costs(x):
        values = jnp.broadcast_to(x, (3 << 10, 1 << 18))
        rows = Masked(values, jnp.broadcast_to(x == 0, len(values)), FIRST_ROWS)
        return [jax.tree.map(jnp.uint32, wire_elements(each)) for each in (values, rows)]

    for each in costs(jnp.float32(0)):
        assert int(each.payload_bytes) == 3 << 30


def test_sample_counts_are_metadata():
    sums = ClassSums(jnp.ones((4, 3)), jnp.array([5.0, 0.0, 2.0, 0.0]))
    up = prototype_uplink(sums, with_counts=True)
    assert cost(up) == WireCost(6, 24, 2 + 2 * 2, 8 + 2 * 8)
    np.testing.assert_array_equal(up.counts.value.values[up.counts.value.mask], [5, 2])


def message():
    return {
        "plain": jnp.zeros(20_000),
        "ints": jnp.arange(3),
        "masked": Masked(jnp.ones((20_000, 1)), jnp.arange(20_000) % 2 == 0),
        "labels": Masked(jnp.arange(4), jnp.ones(4, bool)),
        "counts": Metadata(jnp.full(5, 7.0)),
        "masked_counts": Metadata(Masked(jnp.full(5, 7.0), jnp.ones(5, bool))),
    }


def test_a_message_is_made_of_its_leaves():
    before = message()
    leaves = leaves_of(before)
    assert len(leaves) == len(before)
    assert jax.tree.structure(from_leaves(before, leaves)) == jax.tree.structure(before)
    assert from_leaves(before, leaves)["counts"] is before["counts"]


def test_rows_that_are_not_sent_become_zero():
    values = jnp.array([[1.0, 2.0], [jnp.nan, jnp.nan], [3.0, 4.0]])
    before = {"rows": Masked(values, MASK), "counts": Metadata(Masked(values[:, 0], MASK))}
    kept, whole = sent(before), dense(before)
    np.testing.assert_array_equal(whole["rows"], [[1, 2], [0, 0], [3, 4]])
    np.testing.assert_array_equal(whole["counts"].value, [1, 0, 3])
    np.testing.assert_array_equal(kept["rows"].values, whole["rows"])
    np.testing.assert_array_equal(kept["rows"].mask, MASK)
    assert dense((1, values))[1] is values


def test_a_payload_is_taken_out_and_put_back():
    before = message()
    names = list(sorted(before))  # the order of `jax.tree`
    payload = payload_leaves(before)
    assert [names[place] for place in payload] == ["masked", "plain"]
    doubled = {"plain": 2 * before["plain"], "masked": 2 * before["masked"].values}
    after = with_payload(before, {place: doubled[names[place]] for place in payload})
    np.testing.assert_array_equal(after["masked"].values, 2.0)
    assert after["masked"].mask is before["masked"].mask and after["ints"] is before["ints"]
    assert after["plain"] is doubled["plain"] and after["counts"] is before["counts"]


def test_gaussian_noise_touches_the_float_payload_alone():
    before = message()
    after = gaussian_noise(scale=0.5, coefficient=0.2)(jax.random.key(0), before)
    assert jax.tree.structure(before) == jax.tree.structure(after) and cost(after) == cost(before)
    for name in ("ints", "labels", "counts", "masked_counts"):
        jax.tree.map(np.testing.assert_array_equal, before[name], after[name])
    np.testing.assert_array_equal(before["masked"].mask, after["masked"].mask)
    for noise in (after["plain"], after["masked"].values - 0.8):  # x (1 - p) + N(0, s^2)
        np.testing.assert_allclose(noise.std(), 0.5, rtol=0.03)
        np.testing.assert_allclose(noise.mean(), 0, atol=0.02)
    # each leaf its own draw
    assert np.abs(np.corrcoef(after["plain"], after["masked"].values[:, 0])[0, 1]) < 0.05


def test_noise_is_a_function_of_the_key():
    noise = gaussian_noise(1.0, 1.0)
    first, same, other = (noise(jax.random.key(k), jnp.zeros(3)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert not np.any(first == other)


def test_noise_may_be_for_one_field():
    """FedKTL's Table 10: other noise on images than on vectors."""
    sent = jnp.arange(4000) < 3000
    pairs = Pairs(Masked(jnp.zeros((4000, 2, 2, 1)), sent), Masked(jnp.ones((4000, 3)), sent))
    vectors = TRANSFORMS["gaussian_noise"](0.05, 0.2, "vectors")
    images = gaussian_noise(0.2, 0.2, "images")
    vectors_only = vectors(jax.random.key(0), pairs)
    np.testing.assert_array_equal(vectors_only.images.values, pairs.images.values)
    both = chain((vectors, images))(jax.random.key(0), pairs)
    assert jax.tree.structure(both) == jax.tree.structure(pairs)
    deviations = vectors_only.vectors.values.std(), both.vectors.values.std()
    np.testing.assert_allclose(deviations, 0.05, rtol=0.03)
    np.testing.assert_allclose(vectors_only.vectors.values.mean(), 0.8, atol=0.01)
    np.testing.assert_allclose(both.images.values.std(), 0.2, rtol=0.03)
    np.testing.assert_array_equal(both.vectors.mask, sent)
    assert images(jax.random.key(0), pairs._replace(vectors=())).vectors == ()
    with pytest.raises(ValueError, match="gaussian_noise is for field 'pixels'; the message has"):
        gaussian_noise(1.0, 1.0, "pixels")(jax.random.key(0), pairs)
    with pytest.raises(ValueError, match="gaussian_noise is for field 'images'; the message has"):
        images(jax.random.key(0), {"a": jnp.zeros(3)})
    faults = {(-0.1, 0.2): "scale", (0.1, 1.5): "coefficient", (0.1, -0.5): "coefficient"}
    for bad, name in faults.items():
        with pytest.raises(ValueError, match=f"{name} is .*; it must be a number"):
            gaussian_noise(*bad)


def test_chain_applies_transforms_in_order_with_their_own_keys():
    double, add = lambda key, x: 2 * x, lambda key, x: x + 1
    assert chain((double, add))(jax.random.key(0), 3) == 7
    assert chain((add, double))(jax.random.key(0), 3) == 8
    untouched = object()
    assert chain(())(jax.random.key(0), untouched) is untouched
    noise = gaussian_noise(1.0, 0.0)
    once, twice = (chain((noise,) * n)(jax.random.key(0), jnp.zeros(3)) for n in (1, 2))
    assert not np.allclose(twice, 2 * once)


def test_the_first_rows_are_as_many_as_are_named():
    assert first_rows((4,), 2).tolist() == [True, True, False, False]
    assert first_rows((2, 2), 3).tolist() == [[True, True], [True, False]]
    assert not first_rows((3,), 0).any() and first_rows((3,), 3).all() and first_rows((), 1)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_message_is_finite_where_it_is_read(bad):
    values = jnp.ones((3, 2)).at[1].set(bad)
    assert all_finite({"a": Masked(values, MASK), "n": jnp.arange(3), "b": jnp.zeros(2)})
    assert not all_finite({"a": Masked(values, ~MASK), "b": jnp.zeros(2)})
    assert not all_finite({"a": values[1, 0], "b": jnp.zeros(2)})
    assert all_finite({})


SIZE = 20
BYTES = SIZE + 4  # integers, and their unit
FEDERATION = uniform_federation()
BUCKET = FEDERATION.buckets[0]
CHANNEL = Channel(chain(()), chain(()))


def encode(bucket, uplink, downlink, ctx):
    unit = jnp.maximum(jnp.max(jnp.abs(uplink - downlink)) / 127, 1e-30)
    return jnp.int8(jnp.round((uplink - downlink) / unit)), unit


def decode(bucket, message, downlink, ctx):
    integers, unit = message
    return downlink + integers * unit


CODE = Code(encode, decode)


def wanderer(code: Code | None = CODE, sent=lambda uplink: uplink) -> Method:
    """Returns a method whose server is a vector that every client moves by 0.01 and a little."""

    def client_update(bucket, client, downlink, data, ctx):
        moved = jnp.where(data.splits["train"].count > 0, 0.01 + 0.001 * ctx.info.id, 0.0)
        return client, sent(downlink + moved), {}

    def server_update(federation, server, received, ctx):
        (uploads,) = received.values()
        weights = client_weights(uploads)
        mean = weighted_mean(uploads.uplink, weights)
        return jnp.where(weights.any(), mean, server), {}

    return Method(
        name="wanderer",
        training=LocalTraining(optax.sgd(0.1)),
        init_server=lambda federation, key: jnp.zeros(SIZE),
        client_update=client_update,
        server_update=server_update,
        wire=Wire(server_reads="sums", code=code),
    )


@functools.cache
def round_of(attack: Attack):
    options = SimulationOptions(attack=attack)
    simulation = make_simulation(wanderer(), FEDERATION, federation_data(FEDERATION), options)
    return play(simulation, to_host(simulation.init()), range(NUM_CLIENTS))


def test_the_coded_form_is_counted_and_the_server_reads_floats():
    state, report = round_of(Attack())
    assert report.uplink.payload_bytes == NUM_CLIENTS * BYTES
    assert report.uplink.payload_elements == NUM_CLIENTS * (SIZE + 1)
    trained = [i for i in range(NUM_CLIENTS) if i != 3]  # client 3 has no samples
    np.testing.assert_allclose(state.server, 0.01 + 0.001 * np.mean(trained), rtol=1e-5)


UNREADABLE = {
    "int8": jnp.int8,
    "bits": lambda uplink: (uplink, jnp.packbits(uplink > 0)),
    "rows": lambda uplink: Masked(jnp.int8(uplink), uplink > 0),
    "flags": lambda uplink: uplink > 0,
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_numbers_that_nobody_could_read_are_refused(kind):
    method = guarded(wanderer(None, UNREADABLE[kind]))
    line = r"client_update of 'wanderer' sends \w+ outside Metadata, which attacks, defences and"
    with pytest.raises(ValueError, match=line):
        uplink_form(method, FEDERATION, BUCKET, CHANNEL)


def test_counts_may_be_integers():
    method = guarded(wanderer(None, lambda uplink: (uplink, Metadata(jnp.int32(1)))))
    assert uplink_form(method, FEDERATION, BUCKET, CHANNEL)[1].value.dtype == jnp.int32


def test_noise_on_sums_takes_no_code_and_noise_on_uploads_none_that_remembers():
    with pytest.raises(ValueError, match=r"coded after clipping, and rounding may bring"):
        check_uploads(wanderer(), FEDERATION, sums=True)
    check_uploads(wanderer(), FEDERATION, sums=False)
    with pytest.raises(ValueError, match="remember the coding error"):
        check_uploads(wanderer(CODE._replace(remembers=True)), FEDERATION, sums=False)

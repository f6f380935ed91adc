import functools

import jax
import numpy as np
import pytest

from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.trust.defences import DEFENCES, defended
from fedjax_ht.trust.geometry import geometric_centre, lengths
from fedjax_ht.trust.vectors import Vectors, comparable, vectors_of
from tests.federations import TRAINING, identical
from tests.reference import robust as reference
from tests.trust.uploads import buckets

N, D = 7, 5
RNG = np.random.default_rng(0)
HONEST = RNG.normal(1.0, 0.3, (N, D)).astype(np.float32)
WITH_GIANT = np.concatenate([HONEST, np.full((1, D), 1e30, np.float32)])


def one_vector(x, present=None) -> Vectors:
    """[n, d] as one vector a client, in two pieces."""
    x = np.asarray(x, np.float32)[:, None]
    present = np.ones((len(x), 1), bool) if present is None else np.asarray(present)[:, None]
    held = np.ones((1, 1, 1), bool)
    return Vectors((x[..., :2], x[..., 2:]), (held, held), present)


@functools.cache
def compiled(name: str, *options: float):
    """Compiles a defence: Vectors -> what it leaves of them."""
    defence = DEFENCES[name](*options)
    return jax.jit(lambda vectors: defence.apply(vectors, True))


def vectors_left(vectors: Vectors, name: str, *options: float) -> np.ndarray:
    """Returns the vectors [n, d] that a defence leaves of the clients."""
    return np.concatenate(compiled(name, *options)(vectors).values, -1)[:, 0]


@pytest.mark.parametrize("n", [1, 6, 7])
def test_agreements_are_those_of_the_reference(n):
    x = HONEST[:n]
    expected = {
        "median": reference.coordinate_median(x),
        "trimmed_mean": reference.trimmed_mean(x, 0.2),
        "geometric_median": reference.geometric_median(x),
    }
    for name, value in expected.items():
        got = vectors_left(one_vector(x), name)
        rtol = 2e-3 if "geo" in name and n > 1 else 1e-6
        np.testing.assert_allclose(got, np.broadcast_to(value, (n, D)), rtol=rtol)


@pytest.mark.parametrize("clients", [1, 3])
def test_zeros_of_a_minority_do_not_hold_the_geometric_median(clients):
    x = np.concatenate([HONEST, np.zeros((clients, D), np.float32)])
    got = vectors_left(one_vector(x), "geometric_median")[0]
    np.testing.assert_allclose(got, reference.geometric_median(x), rtol=1e-2)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "geometric_median"])
def test_absent_clients_do_not_count(name):
    absent = np.concatenate([HONEST, np.full((3, D), np.nan, np.float32)])
    present = np.arange(N + 3) < N
    vectors = one_vector(np.where(present[:, None], absent, 0), present)
    expected = vectors_left(one_vector(HONEST), name)[0]
    np.testing.assert_allclose(vectors_left(vectors, name)[0], expected, 1e-6)


@pytest.mark.parametrize("share", [0.1, 0.45])
def test_multi_krum_keeps_whom_the_reference_keeps(share):
    x = np.concatenate([HONEST, [[5.0] * D, [-3.0] * D]]).astype(np.float32)
    krum = compiled("multi_krum", share)
    kept = krum(one_vector(x)).present[:, 0]
    assert np.flatnonzero(kept).tolist() == reference.multi_krum(x, share)
    giant = np.asarray(krum(one_vector(WITH_GIANT)).present[:, 0])
    assert not giant[-1] and giant.sum() == len(reference.multi_krum(WITH_GIANT, share))
    many = np.random.default_rng(0).normal(size=(50, D)).astype(np.float32)
    for x, kept in ((many, 35), (many[:1], 1)):  # 0.3 * 50 is above 15 in float32
        assert compiled("multi_krum", 0.3)(one_vector(x)).present.sum() == kept


def test_shares_are_rounded_after_the_error_of_float32():
    x = np.concatenate([np.full((63, 1), -1e6), np.zeros((87, 1))]).astype(np.float32)
    assert not vectors_left(one_vector(x), "trimmed_mean", 0.42).any()  # 0.42 * 150 is 62.99...


@pytest.mark.parametrize("bound", [0.5, 3.0])
def test_norm_bound_is_that_of_the_reference(bound):
    x = np.concatenate([HONEST, HONEST[:1] * -4, HONEST[1:2] * 30]).astype(np.float32)

    def centre(x):
        return np.concatenate([c[0] for c in jax.jit(geometric_centre)(one_vector(x))])

    expected = reference.norm_bound(x, bound, centre)
    found = vectors_left(one_vector(x), "norm_bound", bound)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", DEFENCES)
def test_a_finite_giant_moves_nobody_far(name):
    left = jax.device_get(compiled(name)(one_vector(WITH_GIANT)))
    values = np.concatenate(left.values, -1)[:, 0][left.present[:, 0]]
    # A trimmed mean of eight cuts one on each side.
    assert np.isfinite(values).all() and np.abs(values.mean(0) - HONEST.mean(0)).max() < 1.0


def test_lengths_of_giants_do_not_overflow():
    x = np.full((1, D), 3e38, np.float32)
    compiled_lengths = jax.jit(lengths)
    np.testing.assert_allclose(compiled_lengths(one_vector(x)), 3e38, rtol=1e-6)
    assert compiled_lengths(one_vector(np.zeros((1, D), np.float32))) == 0


def test_a_defence_of_single_uploads_is_no_server_of_sums():
    method = fedproto(TRAINING)
    assert method.wire.server_reads == "sums" and defended(method, ()).wire.server_reads == "sums"
    assert defended(method, (DEFENCES["median"](),)).wire.server_reads == "uploads"


def there_and_back(received):
    groups, put_back = vectors_of(received)
    return groups, put_back(groups)


@pytest.mark.parametrize("widths, nested", [((3, 3), False), ((3, 2), True), ((3, 2), False)])
def test_uploads_go_back_to_where_they_were(widths, nested):
    received = buckets(widths)
    parts = comparable(received, nested)
    assert len(parts) == (1 if nested or widths[0] == widths[1] else 2)
    for part in parts:
        groups, back = jax.device_get(jax.jit(there_and_back)(part))
        assert [v.present.shape[1] for v in groups] == [1, 4, 1] and len(groups[2].values) == 2
        for name, r in back.items():
            sent = jax.device_get(received[name])
            arrived = sent.arrived
            np.testing.assert_array_equal(r.arrived, arrived)
            assert identical(r.info, sent.info)
            old, new = sent.uplink, r.uplink
            np.testing.assert_array_equal(new["count"].value, old["count"].value)
            np.testing.assert_array_equal(new["model"]["w"][arrived], old["model"]["w"][arrived])
            for key in ("rows", "entries"):
                mask = old[key].mask & arrived.reshape(-1, *(1,) * (old[key].mask.ndim - 1))
                np.testing.assert_array_equal(new[key].mask & mask, mask)
                np.testing.assert_array_equal(new[key].values[mask], old[key].values[mask])


def test_leaves_of_fewer_rows_are_compared_where_they_lie_in_larger_ones():
    """As adapters of several ranks, whose rows beyond a rank are not sent."""
    received = {"a": buckets(rows=4)["a"], "b": buckets(rows=2)["b"]}
    groups, back = jax.device_get(jax.jit(there_and_back)(received))
    assert groups[1].present.shape == (5, 4) and not groups[1].present[3:, 2:].any()
    for name, r in back.items():
        old, new = jax.device_get(received[name]).uplink["rows"], r.uplink["rows"]
        mask = old.mask & r.arrived[:, None]
        np.testing.assert_array_equal(new.mask & mask, mask)
        np.testing.assert_array_equal(new.values[mask], old.values[mask])


def test_smaller_slices_are_compared_where_they_lie_in_larger_ones():
    received = buckets((3, 2))

    @jax.jit
    def agree(received):
        groups, put_back = vectors_of(received)
        median = DEFENCES["median"]()
        return groups, put_back([median.apply(v, True) for v in groups])

    groups, agreed = jax.device_get(agree(received))
    received, vectors = jax.device_get(received), groups[2]
    w = vectors.values[1].reshape(5, 3, 2)
    np.testing.assert_array_equal(w[3:, :2], received["b"].uplink["model"]["w"])
    held = vectors.held[1].reshape(5, 3, 2)[:, :, 0]
    np.testing.assert_array_equal(held, [[1, 1, 1]] * 3 + [[1, 1, 0]] * 2)
    wide, narrow = received["a"].uplink["model"]["b"][[0, 2]], received["b"].uplink["model"]["b"]
    both = np.concatenate([wide[:, :2], narrow])
    expected = [*np.median(both, axis=0), np.median(wide[:, 2])]
    np.testing.assert_allclose(agreed["a"].uplink["model"]["b"][0], expected, rtol=1e-6)
    np.testing.assert_allclose(agreed["b"].uplink["model"]["b"][1], expected[:2], rtol=1e-6)


def test_a_vector_that_is_left_out_has_not_arrived():
    @jax.jit
    def leave_out(received):
        groups, put_back = vectors_of(received)
        gone = [v._replace(present=v.present.at[0].set(False)) for v in groups]
        return put_back([groups[0], gone[1], groups[2]]), put_back([groups[0], groups[1], gone[2]])

    rows_only, left = jax.device_get(leave_out(buckets()))
    assert not rows_only["a"].uplink["rows"].mask[0].any() and rows_only["a"].arrived[0]
    assert not left["a"].arrived[0] and left["a"].arrived[2] and left["b"].arrived.all()

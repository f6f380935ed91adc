import jax
import numpy as np
import pytest

from fedjax_ht.trust.defences import DEFENCES
from fedjax_ht.trust.vectors import comparable, vectors_of
from tests.federations import identical
from tests.trust.uploads import buckets


def there_and_back(received):
    groups, put_back = vectors_of(received)
    return groups, put_back(groups)


@pytest.mark.parametrize(
    "widths, nested", [((3, 3), False), ((3, 3), True), ((3, 2), True), ((3, 2), False)]
)
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
    np.testing.assert_array_equal(
        vectors.held[1].reshape(5, 3, 2)[:, :, 0], [[1, 1, 1]] * 3 + [[1, 1, 0]] * 2
    )
    every = [
        np.asarray(received["a"].uplink["model"]["b"])[[0, 2]],
        np.asarray(received["b"].uplink["model"]["b"]),
    ]
    expected = [
        *np.median(np.concatenate([every[0][:, :2], every[1]]), axis=0),
        np.median(every[0][:, 2]),
    ]
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

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.method import ClientInfo, Received, Wire
from fedjax_ht.core.uploads import Vectors, comparable, vectors_of
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.trust.robust import (
    DEFENCES,
    HUGE,
    Defence,
    defended,
    far_off,
    lengths,
    middle,
    summaries,
    without_outliers,
)
from tests.federations import TRAINING
from tests.reference import robust as reference

N, D = 7, 5
RNG = np.random.default_rng(0)
HONEST = RNG.normal(1.0, 0.3, (N, D)).astype(np.float32)
WITH_GIANT = np.concatenate([HONEST, np.full((1, D), 1e30, np.float32)])


def one_vector(x, present=None) -> Vectors:
    """[n, d] as one vector a client, in two pieces."""
    x = jnp.asarray(x)[:, None]
    present = jnp.ones((len(x), 1), bool) if present is None else jnp.asarray(present)[:, None]
    held = jnp.ones((1, 1, 1), bool)
    return Vectors((x[..., :2], x[..., 2:]), (held, held), present)


def said(defence: Defence, vectors: Vectors) -> np.ndarray:
    """What is left of each client, [n, d]."""
    return np.asarray(jnp.concatenate(defence.apply(vectors, True).values, -1)[:, 0])


@pytest.mark.parametrize("n", [1, 2, 6, 7])
def test_agreements_are_those_of_the_reference(n):
    x = HONEST[:n]
    expected = {
        "median": reference.coordinate_median(x),
        "trimmed_mean": reference.trimmed_mean(x, 0.2),
        "geometric_median": reference.geometric_median(x),
    }
    for name, value in expected.items():
        if name == "geometric_median" and n == 2:
            continue  # any point between the two is one
        got = said(DEFENCES[name](), one_vector(x))
        np.testing.assert_allclose(
            got, np.broadcast_to(value, (n, D)), rtol=2e-3 if "geo" in name and n > 1 else 1e-6
        )


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "geometric_median"])
def test_who_is_absent_has_no_say(name):
    absent = np.concatenate([HONEST, np.full((3, D), np.nan, np.float32)])
    present = np.arange(N + 3) < N
    vectors = one_vector(np.where(present[:, None], absent, 0), present)
    np.testing.assert_allclose(
        said(DEFENCES[name](), vectors)[0], said(DEFENCES[name](), one_vector(HONEST))[0], 1e-6
    )


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45])
def test_multi_krum_keeps_whom_the_reference_keeps(share):
    x = np.concatenate([HONEST, [[5.0] * D, [-3.0] * D]]).astype(np.float32)
    kept = DEFENCES["multi_krum"](share).apply(one_vector(x), True).present[:, 0]
    assert np.flatnonzero(kept).tolist() == reference.multi_krum(x, share)
    giant = DEFENCES["multi_krum"](share).apply(one_vector(WITH_GIANT), True).present[:, 0]
    assert not giant[-1] and giant.sum() == len(reference.multi_krum(WITH_GIANT, share))


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_norm_bound_is_that_of_the_reference(bound):
    x = np.concatenate([HONEST, HONEST[:1] * -4, HONEST[1:2] * 30]).astype(np.float32)

    def centre(x):
        return np.concatenate([c[0] for c in middle(one_vector(x.astype(np.float32)))])

    expected = reference.norm_bound(x, bound, centre)
    np.testing.assert_allclose(
        said(DEFENCES["norm_bound"](bound), one_vector(x)), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", DEFENCES)
def test_a_finite_giant_moves_nobody_far(name):
    left = DEFENCES[name]().apply(one_vector(WITH_GIANT), True)
    values = np.asarray(jnp.concatenate(left.values, -1)[:, 0])[np.asarray(left.present[:, 0])]
    # A trimmed mean of eight cuts one on each side.
    assert np.isfinite(values).all() and np.abs(values.mean(0) - HONEST.mean(0)).max() < 1.0


def test_lengths_of_giants_do_not_overflow():
    x = np.full((1, D), 3e38, np.float32)
    np.testing.assert_allclose(lengths(one_vector(x)), 3e38, rtol=1e-6)
    assert lengths(one_vector(np.zeros((1, D), np.float32))) == 0


def received(uplink, arrived, first: int = 0) -> Received:
    n = len(arrived)
    ids = jnp.arange(first, first + n, dtype=jnp.int32)
    return Received(uplink, ClientInfo(ids, jnp.ones(n, jnp.int32), ids), jnp.asarray(arrived))


def buckets(widths=(3, 3), rows=4):
    """Two buckets of three and two clients that send a model, rows by class, single entries, and a
    count."""

    def one(n, width, seed):
        rng = np.random.default_rng(seed)

        def normal(*shape):
            return jnp.asarray(rng.normal(1, 0.3, shape), jnp.float32)

        return {
            "model": {"w": normal(n, width, 2), "b": normal(n, width)},
            "rows": Masked(normal(n, rows, width), jnp.asarray(rng.random((n, rows)) < 0.7)),
            "entries": Masked(normal(n, 2, 2), jnp.asarray(rng.random((n, 2, 2)) < 0.7)),
            "count": Metadata(jnp.arange(n)),
        }

    return {
        "a": received(one(3, widths[0], 0), [True, False, True]),
        "b": received(one(2, widths[1], 1), [True, True], 3),
    }


@pytest.mark.parametrize(
    "widths, nested", [((3, 3), False), ((3, 3), True), ((3, 2), True), ((3, 2), False)]
)
def test_uploads_go_back_to_where_they_were(widths, nested):
    given = buckets(widths)
    parts = comparable(given, nested)
    assert len(parts) == (1 if nested or widths[0] == widths[1] else 2)
    for part in parts:
        groups, put_back = vectors_of(part)
        assert [v.present.shape[1] for v in groups] == [1, 4, 1] and len(groups[2].values) == 2
        for name, r in put_back(groups).items():
            there = given[name].arrived
            np.testing.assert_array_equal(r.arrived, there)
            assert r.info is given[name].info
            old, new = given[name].uplink, r.uplink
            np.testing.assert_array_equal(new["count"].value, old["count"].value)
            np.testing.assert_array_equal(new["model"]["w"][there], old["model"]["w"][there])
            for key in ("rows", "entries"):
                mask = old[key].mask & there.reshape(-1, *(1,) * (old[key].mask.ndim - 1))
                np.testing.assert_array_equal(new[key].mask & mask, mask)
                np.testing.assert_array_equal(new[key].values[mask], old[key].values[mask])


def test_smaller_slices_are_compared_where_they_lie_in_larger_ones():
    given = buckets((3, 2))
    vectors = vectors_of(given)[0][2]
    w = vectors.values[1].reshape(5, 3, 2)
    np.testing.assert_array_equal(w[3:, :2], given["b"].uplink["model"]["w"])
    np.testing.assert_array_equal(
        vectors.held[1].reshape(5, 3, 2)[:, :, 0], [[1, 1, 1]] * 3 + [[1, 1, 0]] * 2
    )
    groups, put_back = vectors_of(given)
    agreed = put_back([DEFENCES["median"]().apply(v, True) for v in groups])
    every = [
        np.asarray(given["a"].uplink["model"]["b"])[[0, 2]],
        np.asarray(given["b"].uplink["model"]["b"]),
    ]
    expected = [
        *np.median(np.concatenate([every[0][:, :2], every[1]]), axis=0),
        np.median(every[0][:, 2]),
    ]
    np.testing.assert_allclose(agreed["a"].uplink["model"]["b"][0], expected, rtol=1e-6)
    np.testing.assert_allclose(agreed["b"].uplink["model"]["b"][1], expected[:2], rtol=1e-6)


def test_a_vector_that_is_left_out_has_not_arrived():
    groups, put_back = vectors_of(buckets())
    gone = [v._replace(present=v.present.at[0].set(False)) for v in groups]
    rows_only = put_back([groups[0], gone[1], groups[2]])
    assert not rows_only["a"].uplink["rows"].mask[0].any() and rows_only["a"].arrived[0]
    left = put_back([groups[0], groups[1], gone[2]])
    assert not left["a"].arrived[0] and left["a"].arrived[2] and left["b"].arrived.all()


def test_who_is_far_off_is_named_wherever_the_giant_is():
    given = buckets((30, 30))
    usual = how_far("alike", 6, given)
    assert usual.shape == (6,) and usual[1] == usual[5] == 0 and (usual < 10).all()
    model = given["b"].uplink["model"]
    places = {
        "w": lambda u: u | {"model": model | {"w": model["w"].at[1, 2, 1].set(-1e30)}},
        "row": lambda u: (
            u
            | {
                "rows": Masked(
                    u["rows"].values * jnp.array([1.0, 1e30])[:, None, None], u["rows"].mask
                )
            }
        ),
    }
    for change in places.values():
        far = how_far(
            "alike", 6, given | {"b": given["b"]._replace(uplink=change(given["b"].uplink))}
        )
        assert far[4] > 1e20 and (jnp.delete(far, 4) < 10).all()


def how_far(uplinks: str, num_clients: int, given: dict[str, Received]) -> jax.Array:
    """`far_off` of uploads of a method with such `uplinks`."""
    return far_off(SimpleNamespace(wire=Wire(uplinks)), num_clients, summaries(given))


def test_far_off_names_a_vector_that_points_elsewhere():
    x = RNG.normal(1, 0.01, (8, 400)).astype(np.float32)
    x[5] *= -1
    for uplinks, found in (("alike", [5]), ("own", [])):
        far = how_far(uplinks, 8, {"a": received(jnp.asarray(x), [True] * 8)})
        assert np.flatnonzero(far > 10).tolist() == found


@pytest.mark.parametrize("giant", [1e38, -3e38, [1e38, -3e38]], ids=str)
def test_far_off_names_giants_whose_squares_and_differences_overflow(giant):
    values = RNG.normal(0, 0.1, (8, 6, 40)).astype(np.float32)
    values[5] = np.resize(np.float32(giant), 40)
    mask = np.ones((8, 6), bool)
    mask[2, 3:], values[2, 3:] = False, np.nan
    rows = Masked(jnp.asarray(values), jnp.asarray(mask))
    for uplink in (jnp.asarray(values[:, 0]), rows):
        far = how_far("alike", 8, {"a": received(uplink, [True] * 8)})
        assert far[5] > 1e20 and (jnp.delete(far, 5) < 10).all()


def test_far_off_is_the_same_in_other_units():
    x = RNG.normal(1, 0.01, (8, 400)).astype(np.float32)
    x[5] *= -1
    usual, large = (
        how_far("alike", 8, {"a": received(jnp.asarray(values), [True] * 8)})
        for values in (x, x * np.float32(2.0**126))
    )
    np.testing.assert_allclose(large, usual, rtol=1e-5)


def test_far_off_sees_the_largest_entry_of_a_long_upload():
    """Which is none of those by which lengths are told."""
    x = RNG.normal(1, 0.1, (8, 70_000)).astype(np.float32)
    x[3, 1] = 1e6
    far = how_far("alike", 8, {"a": received(jnp.asarray(x), [True] * 8)})
    assert np.flatnonzero(far > 10).tolist() == [3]


def test_equal_uploads_are_not_far_off():
    same = (
        jnp.broadcast_to(jax.random.normal(jax.random.key(0), (50,)), (6, 50))
        .at[0]
        .multiply(1 + 2e-7)
    )
    assert (how_far("alike", 6, {"a": received(same, [True] * 6)}) < 2).all()


def plain(x) -> dict[str, Received]:
    """Uploads of a model each, [n, d]."""
    return {"a": received(jnp.asarray(x, jnp.float32), [True] * len(x))}


def refused(given: dict[str, Received], times: float = 1000.0, num_clients: int = 8) -> list[int]:
    """Ids of the clients refused, none of which has arrived."""
    kept, outliers = without_outliers(num_clients, given, summaries(given), times)
    for name, r in given.items():
        np.testing.assert_array_equal(kept[name].arrived, r.arrived & ~outliers[r.info.id])
        assert kept[name].uplink is r.uplink and kept[name].info is r.info
    return np.flatnonzero(outliers).tolist()


@pytest.mark.parametrize("widths", [(3, 3), (3, 2)])
@pytest.mark.parametrize("giant", [2e3, -1e30, 3e38])
def test_an_outlier_is_refused_wherever_its_giant_is(widths, giant):
    given = buckets(widths)
    assert refused(given) == []
    uplink = given["b"].uplink
    model, rows = uplink["model"], uplink["rows"]
    places = (
        uplink | {"model": model | {"w": model["w"].at[1, 1, 1].set(giant)}},
        uplink | {"rows": Masked(rows.values.at[1, 2].set(giant), rows.mask.at[1, 2].set(True))},
    )
    for place in places:
        with_giant = given | {"b": given["b"]._replace(uplink=place)}
        assert refused(with_giant) == [4]
        assert refused(with_giant, 0.0) == refused(with_giant, HUGE) == []
    absent = given["b"]._replace(uplink=place, arrived=jnp.array([True, False]))
    assert refused(given | {"b": absent}) == []
    unsent = Masked(rows.values.at[1, 2].set(giant), rows.mask.at[1, 2].set(False))
    assert refused(given | {"b": given["b"]._replace(uplink=uplink | {"rows": unsent})}) == []


@pytest.mark.parametrize(
    ("variance", "outliers"), [(1e5, []), (1e7, [2]), (-1e30, [2]), (3e38, [2])]
)
def test_running_variances_count_by_their_square_roots(variance, outliers):
    """Of inputs 300 times as large as the others' they are 10^5 times as large."""
    names = [{"mean": 0.1, "var": 1.0}, {"mean": 0.1, "var": 1.0}, {"mean": 0.1, "var": variance}]
    clients = [{"params": {"scale": 1.0}, "stats": {"base": {"norm": own}}} for own in names]
    uplink = jax.tree.map(lambda *xs: jnp.array(xs)[:, None] * jnp.ones(4), *clients)
    assert refused({"a": received(uplink, [True] * 3)}) == outliers


def test_long_uploads_of_large_entries_are_refused_by_their_length():
    x = np.zeros((8, 1000), np.float32)
    x[:, 0], x[:, 1:] = 1.0, 1e-4
    x[6, 1:] = 100.0
    assert refused(plain(x)) == [6] and refused(plain(x), 1e5) == []


@pytest.mark.parametrize(
    "usual, numbers",
    [
        pytest.param([1.0], [1e9], id="two uploads"),
        pytest.param([], [1e9], id="an upload"),
        pytest.param([0.0] * 7, [1.0], id="all others unchanged"),
        pytest.param([1e-7] * 7, [1.0], id="all others at rest"),
        pytest.param([0.0] * 4, [1.0] * 4, id="half unchanged"),
        pytest.param([1.0] * 5, [0.0, 1e-9, 900.0], id="within the bound"),
    ],
)
def test_honest_uploads_are_never_refused(usual, numbers):
    x = np.repeat(np.array([*usual, *numbers], np.float32)[:, None], 5, axis=1)
    assert refused(plain(x)) == []


def test_a_rare_class_with_large_prototypes_is_no_outlier():
    values = np.full((8, 4, 3), 1e-2, np.float32)
    values[:, 3] = 20.0
    values[5, 2] = 50.0
    mask = np.zeros((8, 4), bool)
    mask[:, :3], mask[:3, 3] = True, True
    uplink = Masked(jnp.asarray(values), jnp.asarray(mask))
    assert refused({"a": received(uplink, [True] * 8)}, 1e4) == []


def test_whose_single_uploads_are_looked_at_is_no_server_of_sums():
    method = fedproto(TRAINING)
    assert method.wire.server_reads == "sums" and defended(method, ()).wire.server_reads == "sums"
    assert defended(method, (DEFENCES["median"](),)).wire.server_reads == "uploads"

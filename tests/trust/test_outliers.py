import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import Received
from fedjax_ht.core.wire import Masked
from fedjax_ht.trust.outliers import MOST, size_ratios, without_outliers
from tests.trust.uploads import buckets, received

RNG = np.random.default_rng(0)


@functools.partial(jax.jit, static_argnums=0)
def ratios(num_clients: int, received: dict[str, Received]) -> jax.Array:
    return size_ratios(num_clients, received)


def how_large(num_clients: int, received: dict[str, Received]) -> np.ndarray:
    return np.asarray(ratios(num_clients, received))


@pytest.mark.parametrize("masked", [False, True])
def test_sizes_are_those_of_a_slow_reference(masked):
    arrived = np.arange(7) != 2
    rows = RNG.normal(size=(7, 5, 3)).astype(np.float32) * 2.0 ** np.arange(7)[:, None, None]
    mask = RNG.random((7, 5)) < 0.6
    mask[:, 0] = True
    if masked:
        uplink = Masked(jnp.asarray(rows), jnp.asarray(mask))
        entries = [np.abs(of_client[sent]) for of_client, sent in zip(rows, mask)]
    else:
        uplink = {"w": jnp.asarray(rows), "b": jnp.asarray(rows[:, 0])}
        entries = [np.abs(np.append(of_client, of_client[0])) for of_client in rows]
    expected = np.zeros(7)
    for size in (np.max, lambda x: np.sqrt(np.mean(x**2))):
        sizes = np.array(list(map(size, entries)))
        median = np.sort(sizes[arrived])[2]  # the lower one of six
        expected = np.maximum(expected, np.where(arrived, sizes / median, 0))
    uploads = {"a": received(uplink, arrived.tolist())}
    np.testing.assert_allclose(how_large(7, uploads), expected, rtol=1e-5)


def changed(x: jax.Array, place: tuple[int, ...], value: float) -> jax.Array:
    x = np.array(x)
    x[place] = value
    return jnp.asarray(x)


@pytest.mark.parametrize("giant", [1e38, -3e38, [1e38, -3e38]], ids=str)
def test_giants_whose_squares_overflow_are_named(giant):
    values = RNG.normal(0, 0.1, (8, 6, 40)).astype(np.float32)
    values[5] = np.resize(np.float32(giant), 40)
    mask = np.ones((8, 6), bool)
    mask[2, 3:], values[2, 3:] = False, np.nan
    rows = Masked(jnp.asarray(values), jnp.asarray(mask))
    for uplink in (jnp.asarray(values[:, 0]), rows):
        sizes = how_large(8, {"a": received(uplink, [True] * 8)})
        assert 1e20 < sizes[5] <= MOST and (np.delete(sizes, 5) < 10).all()


def test_uploads_that_are_all_giants_are_compared_by_their_largest_entries():
    x = RNG.normal(1, 0.01, (8, 400)).astype(np.float32)
    x[5] *= 50
    for unit in (1.0, 2.0**120):
        sizes = how_large(8, plain(x * np.float32(unit)))
        assert 40 < sizes[5] < 60 and (np.delete(sizes, 5) < 2).all()


def test_one_large_entry_of_a_long_upload_is_named():
    long = RNG.normal(1, 0.1, (8, 70_000)).astype(np.float32)
    long[5, 1] = 1e6
    assert np.flatnonzero(how_large(8, plain(long)) > 10).tolist() == [5]


def test_equal_uploads_are_not_far_off():
    same = np.tile(RNG.normal(size=50).astype(np.float32), (6, 1))
    same[0] *= np.float32(1 + 2e-7)
    assert (how_large(6, plain(same)) < 2).all()


def plain(x) -> dict[str, Received]:
    """Uploads of a model each, [n, d]."""
    return {"a": received(jnp.asarray(x, jnp.float32), [True] * len(x))}


@functools.partial(jax.jit, static_argnums=(1, 2))
def arrivals(received: dict[str, Received], times: float, num_clients: int):
    """Returns bucket name -> rows that arrived after `without_outliers`, and who is refused."""
    kept, outliers = without_outliers(received, size_ratios(num_clients, received), times)
    for name, r in received.items():
        assert kept[name].uplink is r.uplink and kept[name].info is r.info
    return {name: r.arrived for name, r in kept.items()}, outliers


def refused(
    received: dict[str, Received], times: float = 1000.0, num_clients: int = 8
) -> list[int]:
    """Ids of the clients refused, none of which has arrived."""
    arrived, outliers = jax.device_get(arrivals(received, times, num_clients))
    for name, r in received.items():
        ids = np.asarray(r.info.id)
        np.testing.assert_array_equal(arrived[name], np.asarray(r.arrived) & ~outliers[ids])
    return np.flatnonzero(outliers).tolist()


def with_row(rows: Masked, value: float, sent: bool) -> Masked:
    """Returns rows of which one is made of such values, and sent or not."""
    return Masked(changed(rows.values, (1, 2), value), changed(rows.mask, (1, 2), sent))


@pytest.mark.parametrize("widths", [(3, 3), (3, 2)])
@pytest.mark.parametrize("giant", [2e3, -1e30, 3e38])
def test_an_outlier_is_refused_wherever_its_giant_is(widths, giant):
    received = buckets(widths)
    assert refused(received) == []
    uplink = received["b"].uplink
    model, rows = uplink["model"], uplink["rows"]
    places = (
        uplink | {"model": model | {"w": changed(model["w"], (1, 1, 1), giant)}},
        uplink | {"rows": with_row(rows, giant, True)},
    )
    for place in places:
        with_giant = received | {"b": received["b"]._replace(uplink=place)}
        assert refused(with_giant) == [4]
        assert refused(with_giant, 0.0) == refused(with_giant, MOST) == []
    absent = received["b"]._replace(uplink=place, arrived=jnp.array([True, False]))
    assert refused(received | {"b": absent}) == []
    unsent = with_row(rows, giant, False)
    assert refused(received | {"b": received["b"]._replace(uplink=uplink | {"rows": unsent})}) == []


@pytest.mark.parametrize(
    ("variance", "outliers"), [(1e5, []), (1e7, [2]), (-1e30, [2]), (3e38, [2])]
)
def test_running_variances_count_by_their_square_roots(variance, outliers):
    """Inputs that are 300 times as large have variances that are 10^5 times as large."""
    names = [{"mean": 0.1, "var": 1.0}, {"mean": 0.1, "var": 1.0}, {"mean": 0.1, "var": variance}]
    clients = [{"params": {"scale": 1.0}, "stats": {"base": {"norm": norm}}} for norm in names]
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

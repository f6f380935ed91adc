"""What a server makes of a secure sum, and for whom there is one."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.method import ClientInfo, Context, Received, Wire
from fedjax_ht.core.wire import Masked, Metadata, is_leaf, leaves_of
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.rounds import _taking_part
from fedjax_ht.deploy.sums import as_vector, summed_clients, uplinks_of
from fedjax_ht.methods import method_factory
from fedjax_ht.trust.disclosure import COUNT, SAMPLES, STATE, traced_round
from tests.deploy.sites import small_config
from tests.federations import (
    MODULES,
    NUM_CLASSES,
    NUM_CLIENTS,
    SHAPE,
    TRAINING,
    federation_for,
    mixed_federation,
)
from tests.method_wires import settings
from tests.reference import sums as reference

UNIFORM = {"weighting": "uniform"}


def random_uplink(form, rng):
    """Numbers and masks of anything; what is not sent is anything, too."""

    def drawn(leaf):
        if isinstance(leaf, Masked):
            return Masked(drawn(leaf.values), rng.random(leaf.mask.shape) < 0.5)
        return rng.normal(size=leaf.shape).astype(leaf.dtype)

    return jax.tree.map(drawn, form, is_leaf=is_leaf)


def test_a_sum_becomes_the_references_shares():
    rng, number = np.random.default_rng(1), jax.ShapeDtypeStruct
    form = {
        "plain": number((2, 3), jnp.float32),
        "half": number((3,), jnp.bfloat16),
        "rows": Masked(number((4, 3), jnp.float32), number((4,), bool)),
        "entries": Masked(number((2, 2), jnp.float32), number((2, 2), bool)),
        "one": number((), jnp.float32),
    }
    own = [random_uplink(form, rng) for _ in range(5)]
    for uplink in own:
        uplink["rows"].mask[0] = False  # a row that nobody sends
    total = np.sum([as_vector(uplink).astype(float) for uplink in own], 0)
    clients = (7, 2, 5, 11, 3)
    made = uplinks_of(form, total, clients)
    assert list(made) == sorted(clients)
    rows = list(made.values())
    everything = np.ones((5, 1), bool)
    for name, leaf in form.items():
        masked = isinstance(leaf, Masked)
        values = np.stack([np.asarray(u[name].values if masked else u[name], float) for u in own])
        flat = values.reshape(5, -1)
        sent = np.stack([u[name].mask for u in own]).reshape(5, -1) if masked else everything
        wide = np.repeat(sent, flat.shape[1] // sent.shape[1], 1)
        shares, there = reference.shares(flat, wide)
        got = np.stack(
            [np.asarray(u[name].values if masked else u[name], float) for u in rows]
        ).reshape(5, -1)
        tolerance = 1e-2 if name == "half" else 1e-6
        np.testing.assert_allclose(got, shares, atol=tolerance)
        assert all(
            (u[name].values if masked else u[name]).dtype == (leaf.values if masked else leaf).dtype
            for u in rows
        )
        if masked:
            got = np.stack([u[name].mask for u in rows]).reshape(5, -1)
            assert (np.repeat(got, flat.shape[1] // sent.shape[1], 1) == there).all()
    assert not any(
        np.shares_memory(a["plain"], b["plain"]) and (a["plain"] != b["plain"]).any()
        for a in rows
        for b in rows
    )
    for wrong in (total[1:], total + np.nan, total + 0.4, total + 3):
        with pytest.raises(ValueError, match="it is no sum of 5 uplinks"):
            uplinks_of(form, wrong, clients)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedproto", {}),
        ("fd", {}),
        ("lg_fedavg", UNIFORM),
        ("fedavg", UNIFORM),
        ("fedral", UNIFORM),
        ("fml", {}),
        ("fedapen", {}),
        ("fedssa", {"owners": "summed", "clock": "round"}),
    ],
)
def test_a_server_makes_of_sums_what_it_makes_of_uplinks(name, options):
    """Numbers of samples differ, one client has not arrived, and the sums are rounded as SecAgg+
    rounds them."""
    federation, rng = federation_for(name), np.random.default_rng(0)
    method = method_factory(name)(TRAINING, **settings(name) | options)
    forms = {b.name: traced_round(method, federation, b)[0][2] for b in federation.buckets}
    groups, lost = summed_clients(method, federation, forms), NUM_CLIENTS - 1
    named = {i: b.name for b in federation.buckets for i in federation.members(b)}
    own = {i: random_uplink(forms[named[i]], rng) for i in range(NUM_CLIENTS)}
    made = {lost: own[lost]}
    for clients in groups.values():
        there = [i for i in clients if i != lost]
        total = np.sum([as_vector(own[i]).astype(float) for i in there], 0)
        made |= uplinks_of(forms[named[there[0]]], np.round(total * 2**18) / 2**18, there)

    def serve(server, uplinks):
        received = {}
        for bucket in federation.buckets:
            ids = np.array(federation.members(bucket), np.int32)
            info = ClientInfo(ids, 1 + ids, np.zeros_like(ids))
            received[bucket.name] = Received(uplinks[bucket.name], info, ids != lost)
        ctx = Context(
            jax.random.key(1), jnp.int32(1), None, method.pretrained.variables, jax.random.key(2)
        )
        return method.server_update(federation, server, received, ctx)[0]

    def stacked(uplinks):
        return {
            b.name: jax.tree.map(
                lambda *xs: np.stack(xs), *(uplinks[i] for i in federation.members(b))
            )
            for b in federation.buckets
        }

    server = method.init_server(federation, jax.random.key(0))
    run = jax.jit(serve)
    for mine, theirs in zip(
        *(jax.tree.leaves(run(server, stacked(uplinks))) for uplinks in (made, own))
    ):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
    for uplinks in zip(leaves_of(made[0]), leaves_of(own[0])):
        mine, theirs = (leaf.values if isinstance(leaf, Masked) else leaf for leaf in uplinks)
        # nothing of a client is left in its place
        assert (np.asarray(mine) != theirs).mean() > 0.9


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("local", "send nothing that could be summed"),
        ("fedtgp", "reads more than sums of uplinks"),
        ("fedavg", "say which rows or counts they have"),
        ("fedclassavg", "say which rows or counts they have"),
        ("heterofl", "say which rows or counts they have"),
    ],
)
def test_methods_whose_sum_is_not_enough_are_refused(name, words):
    federation, method = federation_for(name), method_factory(name)(TRAINING, **settings(name))
    forms = {b.name: traced_round(method, federation, b)[0][2] for b in federation.buckets}
    with pytest.raises(ValueError, match=words) as error:
        summed_clients(method, federation, forms)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_uplinks_of_one_shape_are_summed_together_and_never_of_two_clients_alone():
    sums, one = (
        SimpleNamespace(name="mine", wire=Wire(server_reads="sums")),
        jax.ShapeDtypeStruct((3,), jnp.float32),
    )
    other, federation = jax.ShapeDtypeStruct((4,), jnp.float32), mixed_federation()
    assert summed_clients(sums, federation, {"narrow": one, "wide": one}) == {
        "narrow, wide": tuple(range(8))
    }
    apart = summed_clients(sums, federation, {"narrow": one, "wide": other})
    assert apart == {"narrow": (0, 1, 2, 3, 5), "wide": (4, 6, 7)}
    few = make_federation(MODULES, SHAPE, NUM_CLASSES, assignment=["narrow"] * 3 + ["wide"] * 2)
    with pytest.raises(
        ValueError, match="2 clients have uplinks of the shape of wide; a sum is of 3 to 1023"
    ):
        summed_clients(sums, few, {"narrow": one, "wide": other})


def test_a_round_goes_on_without_a_group_of_two_and_who_has_no_samples_is_not_asked():
    said, groups = [], {"a": (0, 1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}
    counts = {"train": np.array([5, 0, 5, 5, 5, 5, 5, 5, 5, 5])}
    server = SimpleNamespace(groups=groups, counts=counts, warn=said.append)
    found = _taking_part(server, SimpleNamespace(round=2), {0, 1, 2, 3, 4, 6})
    assert found == {"a": [0, 2, 3]}
    assert said == [
        "round 3: 2 of the clients of b take part, and a sum takes 3; it goes on without them"
    ]


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        (
            "fedavg",
            {},
            "fedavg weighs clients by numbers of "
            "samples.*--config.method.options.weighting=uniform",
        ),
        ("lg_fedavg", {}, "lg_fedavg weighs clients"),
        ("fedproto", {"robust": (("median",),)}, "robust is median, which compares single uploads"),
        ("fedgh", {}, "the server of fedgh reads more than sums of uplinks"),
    ],
    ids=["fedavg", "lg_fedavg", "robust", "fedgh"],
)
def test_what_a_config_shows_is_refused_before_anybody_is_asked(method, change, words):
    config = small_config(method)
    config.update_from_flattened_dict(change)
    make_plan(config)
    with pytest.raises(ValueError, match=words):
        make_plan(config, secure_sums=True)


NO_ROWS = [  # methods whose sums tell no client's classes
    ("lg_fedavg", UNIFORM),
    ("fedavg", UNIFORM),
    ("fedral", UNIFORM),
    ("fml", {}),
    ("fedapen", {}),
    ("fedssa", {"owners": "summed", "clock": "round", "semantic": False}),
]
ROWS = [("fedproto", {}), ("fd", {}), ("fedssa", {"owners": "summed", "clock": "round"})]


def sum_by_row(uplinks) -> tuple[np.ndarray, np.ndarray]:
    """What a server sees of clients that send rows by class: the rows' sums [C, K] and how many
    sent each [C]."""
    total = np.sum([as_vector(uplink) for uplink in uplinks], 0)
    (leaf,) = (leaf for leaf in leaves_of(uplinks[0]) if isinstance(leaf, Masked))
    assert total.size == leaf.values.size + leaf.mask.size
    rows, counts = np.split(total, [leaf.values.size])
    return rows.reshape(leaf.values.shape), counts


@pytest.mark.parametrize(("name", "options"), ROWS)
def test_counts_of_rows_tell_which_classes_a_client_has(name, options):
    """As docs/deploy.md says: a row of one client alone is that client's, and the counts of two
    rounds between which one client is lost differ by that one's classes."""
    federation, rng = federation_for(name), np.random.default_rng(0)
    method = method_factory(name)(TRAINING, **settings(name) | options)
    (_, _, form), (_, _, sources) = traced_round(method, federation, federation.buckets[0])
    (mask,) = (leaf.mask for leaf in leaves_of(sources) if isinstance(leaf, Masked))
    assert SAMPLES in mask
    uplinks = [random_uplink(form, rng) for _ in range(4)]
    masked = [leaf for uplink in uplinks for leaf in leaves_of(uplink) if isinstance(leaf, Masked)]
    for i, leaf in enumerate(masked):
        leaf.mask[0] = i == 3
    rows, counts = sum_by_row(uplinks)
    assert counts[0] == 1
    np.testing.assert_array_equal(rows[0], masked[3].values[0])
    _, later = sum_by_row(uplinks[:3])
    np.testing.assert_array_equal(counts - later, masked[3].mask)


@pytest.mark.parametrize(("name", "options"), NO_ROWS)
def test_sums_without_rows_by_class_tell_no_classes(name, options):
    """Nothing of what is sent hangs on samples but plain arrays and values: no mask, no count."""
    federation = federation_for(name)
    method = method_factory(name)(TRAINING, **settings(name) | options)
    for bucket in federation.buckets:
        (_, _, form), (_, _, sources) = traced_round(method, federation, bucket)
        assert not any(isinstance(leaf, Metadata) for leaf in leaves_of(form))
        for leaf in leaves_of(sources):
            assert not isinstance(leaf, Masked) or not {STATE, SAMPLES, COUNT} & leaf.mask

"""Secure sums: what a server makes of a sum, for which methods, and what a sum tells."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.method import Wire
from fedjax_ht.core.wire import Masked, Metadata, is_leaf, leaves_of
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.replies import groups_in_round
from fedjax_ht.deploy.secure_sums import split_sum, sum_groups, uplink_vector
from fedjax_ht.trust.disclosure import COUNT, SAMPLES, STATE, traced_round
from tests.deploy.sites import small_config
from tests.federations import (
    MODULES,
    NUM_CLASSES,
    NUM_CLIENTS,
    SHAPE,
    federation_for,
    mixed_federation,
)
from tests.reference import sums as reference
from tests.standard import method_of

UNIFORM = {"weighting": "uniform"}
WITHOUT_ROWS = [  # methods whose sums tell no client's classes
    ("lg_fedavg", UNIFORM),
    ("fedavg", UNIFORM),
    ("fedral", UNIFORM),
    ("fml", {}),
    ("fedapen", {}),
]


def random_uplink(form, rng):
    """Draws an uplink, rows that are not sent included."""

    def draw(leaf):
        if isinstance(leaf, Masked):
            mask = rng.random(leaf.mask.shape) < 0.5
            return leaf._replace(values=draw(leaf.values), mask=mask)
        return rng.normal(size=leaf.shape).astype(leaf.dtype)

    return jax.tree.map(draw, form, is_leaf=is_leaf)


def total_of(uplinks) -> np.ndarray:
    return np.sum([uplink_vector(uplink).astype(float) for uplink in uplinks], 0)


def uplink_forms(method, federation) -> dict:
    """Returns bucket name -> the form of its clients' uplinks."""
    forms = {}
    for bucket in federation.buckets:
        (_, _, forms[bucket.name]), _ = traced_round(method, federation, bucket)
    return forms


def values_and_mask(uplinks, name):
    """Stacks a leaf of uplinks: values float64 [P, D], and a mask bool [P, D], True where plain."""
    leaves = [uplink[name] for uplink in uplinks]
    if not isinstance(leaves[0], Masked):
        values = np.stack([np.asarray(leaf, float).ravel() for leaf in leaves])
        return values, np.ones_like(values, bool)
    values = np.stack([np.asarray(leaf.values, float).ravel() for leaf in leaves])
    masks = np.stack([leaf.mask.ravel() for leaf in leaves])
    return values, np.repeat(masks, values.shape[1] // masks.shape[1], 1)


def test_a_sum_becomes_the_references_shares():
    rng, number = np.random.default_rng(1), jax.ShapeDtypeStruct
    form = {
        "plain": number((2, 3), jnp.float32),
        "half": number((3,), jnp.bfloat16),
        "rows": Masked(number((4, 3), jnp.float32), number((4,), bool)),
        "entries": Masked(number((2, 2), jnp.float32), number((2, 2), bool)),
        "one": number((), jnp.float32),
    }
    sent = [random_uplink(form, rng) for _ in range(5)]
    for uplink in sent:
        uplink["rows"].mask[0] = False  # a row that no client sends
    total = total_of(sent)
    clients = (7, 2, 5, 11, 3)
    made = split_sum(form, total, clients)
    assert list(made) == sorted(clients)
    rows = list(made.values())
    for name, leaf in form.items():
        shares, share_mask = reference.shares(*values_and_mask(sent, name))
        values, mask = values_and_mask(rows, name)
        np.testing.assert_allclose(values, shares, atol=1e-2 if name == "half" else 1e-6)
        np.testing.assert_array_equal(mask, share_mask)
        dtypes = [array.dtype for array in jax.tree.leaves([row[name] for row in rows])]
        assert dtypes == [array.dtype for array in jax.tree.leaves(leaf)] * 5
    for wrong in (total[1:], total + np.nan, total + 0.4, total + 3):
        with pytest.raises(ValueError, match="it is not a sum of 5 uplinks"):
            split_sum(form, wrong, clients)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedproto", {}),
        ("lg_fedavg", UNIFORM),
        ("fedral", UNIFORM),
        ("fedapen", {}),
        ("fedssa", {"owners": "summed", "clock": "round"}),
    ],
)
def test_a_server_makes_of_sums_what_it_makes_of_uplinks(name, options):
    """Clients have different numbers of samples, one is absent; sums are rounded as by SecAgg+."""
    federation, rng = federation_for(name), np.random.default_rng(0)
    method = method_of(name, **options)
    forms = uplink_forms(method, federation)
    groups, lost = sum_groups(method, federation, forms), NUM_CLIENTS - 1
    named = {i: b.name for b in federation.buckets for i in federation.members(b)}
    sent = {i: random_uplink(forms[named[i]], rng) for i in range(NUM_CLIENTS)}
    made = {lost: sent[lost]}
    for clients in groups.values():
        present = [i for i in clients if i != lost]
        total = total_of([sent[i] for i in present])
        made |= split_sum(forms[named[present[0]]], np.round(total * 2**18) / 2**18, present)

    def serve(server, uplinks):
        received = {}
        for bucket in federation.buckets:
            ids = np.array(federation.members(bucket), np.int32)
            info = ClientInfo(ids, 1 + ids, np.zeros_like(ids))
            received[bucket.name] = Received(uplinks[bucket.name], info, ids != lost)
        keys, variables = jax.random.split(jax.random.key(1)), method.needs.pretrained.variables
        round = jnp.int32(1)
        ctx = Context(keys[0], round, None, pretrained=variables, shared_key=keys[1])
        return method.server_update(federation, server, received, ctx)[0]

    def stacked(uplinks):
        by_bucket = {}
        for bucket in federation.buckets:
            rows = [uplinks[i] for i in federation.members(bucket)]
            by_bucket[bucket.name] = jax.tree.map(lambda *xs: np.stack(xs), *rows)
        return by_bucket

    server = method.init_server(federation, jax.random.key(0))
    run = jax.jit(serve)
    of_sums, of_uplinks = run(server, stacked(made)), run(server, stacked(sent))
    for actual, expected in zip(jax.tree.leaves(of_sums), jax.tree.leaves(of_uplinks)):
        np.testing.assert_allclose(actual, expected, atol=2e-5)
    for share, leaf in zip(leaves_of(made[0]), leaves_of(sent[0])):
        if isinstance(leaf, Masked):
            share, leaf = share.values, leaf.values
        # nothing of a client is left in its place
        assert (np.asarray(share) != leaf).mean() > 0.9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("local", "send nothing to sum"),
        ("fedtgp", "reads more than sums of uplinks"),
        ("fedavg", "reveal which rows or counts they have"),
        ("heterofl", "reveal which rows or counts they have"),
    ],
)
def test_methods_whose_sum_is_not_enough_are_refused(name, message):
    federation, method = federation_for(name), method_of(name)
    forms = uplink_forms(method, federation)
    with pytest.raises(ValueError, match=message) as error:
        sum_groups(method, federation, forms)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_uplinks_of_one_shape_are_summed_together_and_never_of_two_clients_alone():
    method = SimpleNamespace(name="mine", wire=Wire(server_reads="sums"))
    form = jax.ShapeDtypeStruct((3,), jnp.float32)
    other, federation = jax.ShapeDtypeStruct((4,), jnp.float32), mixed_federation()
    expected = {"narrow, wide": tuple(range(8))}
    assert sum_groups(method, federation, {"narrow": form, "wide": form}) == expected
    apart = sum_groups(method, federation, {"narrow": form, "wide": other})
    assert apart == {"narrow": (0, 1, 2, 3, 5), "wide": (4, 6, 7)}
    few = make_federation(MODULES, SHAPE, NUM_CLASSES, assignment=["narrow"] * 3 + ["wide"] * 2)
    with pytest.raises(ValueError, match="2 clients have uplinks shaped like wide's; a sum takes"):
        sum_groups(method, few, {"narrow": form, "wide": other})


def test_a_round_goes_on_without_a_group_of_two_and_clients_without_samples():
    lines, groups = [], {"a": (0, 1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}
    counts = {"train": np.array([5, 0, 5, 5, 5, 5, 5, 5, 5, 5])}
    server = SimpleNamespace(
        groups=groups, counts=counts, transport=SimpleNamespace(tell=lines.append)
    )
    present = groups_in_round(server, SimpleNamespace(round=2), {0, 1, 2, 3, 4, 6})
    assert present == {"a": [0, 2, 3]}
    (line,) = lines
    assert line.startswith("round 3: 2 of the clients of b take part, but a sum needs 3; ")


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("fedavg", {}, "fedavg weights clients by sample count"),
        ("fedproto", {"robust": (("median",),)}, "robust is median, which compares single uploads"),
        ("fedgh", {}, "the server of fedgh reads more than sums of uplinks"),
    ],
    ids=["fedavg", "robust", "fedgh"],
)
def test_wrong_configs_are_refused_before_any_request(method, change, message):
    config = small_config(method)
    config.update(change)
    make_plan(config)
    with pytest.raises(ValueError, match=message):
        make_plan(config, secure_sums=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [*WITHOUT_ROWS, ("fedssa", {"owners": "summed", "clock": "round", "semantic": False})],
)
def test_sums_without_rows_by_class_tell_no_classes(name, options):
    """Only plain arrays and values depend on samples: no mask and no count."""
    federation = federation_for(name)
    method = method_of(name, **options)
    for bucket in federation.buckets:
        (_, _, form), (_, _, sources) = traced_round(method, federation, bucket)
        assert not any(isinstance(leaf, Metadata) for leaf in leaves_of(form))
        for leaf in leaves_of(sources):
            assert not isinstance(leaf, Masked) or not {STATE, SAMPLES, COUNT} & leaf.mask

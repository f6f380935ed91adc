"""`Wire.server_reads`: what a server makes of uplinks depends on their sums alone, or does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.wire import Masked, from_leaves, is_payload, leaves_of
from fedjax_ht.data.client_data import with_public
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.trust.disclosure import traced_round
from tests.federations import COMPOSED, NUM_CLIENTS, TRAINING, federation_data, federation_for
from tests.method_wires import settings

PAIR = (0, 1)  # clients of one bucket, with equal counts; of each others'
UPLOADS = (
    *("fedtgp", "fedorgp", "fedktl", "fedgh", "fedssa", "fedgen", "fedkd", "fedbuff", "fedpac"),
    *("fedre", "ktpfl", "feddropout", "fedspu", "dense", "fedftg", "dfrd", "hetlora"),
    *("flexlora", "raflora", "flora", "fedamp", "agnostic", "fedpft"),
)
SUMS = [name for name in METHODS if name not in UPLOADS]
VARIANTS = [  # whose weights or masks are others
    ("fedavg", {"weighting": "uniform"}),
    ("fedproto", {"weighting": "samples"}),
    ("fedral", {"weighting": "uniform"}),
    ("heterofl", {"weighting": "samples"}),
    ("heterofl", {"label_split": False}),
    ("fedrolex", {"whole_head": True}),
    ("fiarse", {"variant": "released"}),
    ("fedssa", {"owners": "summed", "clock": "round"}),
]
FAST = ("fedavg", "lg_fedavg", "fd", "fedssa")


def test_servers_say_what_they_read():
    reads = {
        name: method_factory(name)(TRAINING, **settings(name)).wire.server_reads
        for name in (*METHODS, *COMPOSED)
    }
    assert {name for name, what in reads.items() if what == "sums"} == set(SUMS)


@functools.cache
def moved(name: str, **options) -> tuple[float, float]:
    """Returns how far the server's step moves when two clients' uplinks u1 and u2 become u1 + d and
    u2 - d, and the length of d, both as the largest entry. Uplinks, masks and counts are random;
    masks and counts of the two clients are the same."""
    federation, rng = federation_for(name), np.random.default_rng(0)
    method = method_factory(name)(TRAINING, **settings(name) | options)
    assert set(PAIR) <= set(federation.members(federation.buckets[federation.assignment[0]]))
    received, longest = {}, 0.0

    def entry(leaf, rows, shift):
        """An array of all of a bucket's clients; `shift`: an update that may be moved."""
        shape = (len(rows), *leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            x = rng.normal(size=shape) if shift else rng.uniform(1, 9, shape)
        else:
            x = rng.integers(0, 2, shape) if leaf.dtype == bool else rng.integers(1, 10, shape)
        if set(PAIR) <= set(rows) and not shift:
            x[rows.index(PAIR[1])] = x[rows.index(PAIR[0])]
        return x.astype(leaf.dtype)

    for bucket in federation.buckets:
        (_, _, shapes), _ = traced_round(method, federation, bucket)
        rows = list(federation.members(bucket))
        plain, other = [], []
        for leaf in leaves_of(shapes):
            if not is_payload(leaf):
                same = jax.tree.map(lambda x, rows=rows: entry(x, rows, False), leaf)
                plain.append(same)
                other.append(same)
                continue
            values = entry(leaf.values if isinstance(leaf, Masked) else leaf, rows, True)
            difference = np.zeros_like(values)
            if set(PAIR) <= set(rows):
                d = rng.normal(size=values.shape[1:]).astype(values.dtype)
                difference[[rows.index(i) for i in PAIR]] = np.stack([d, -d])
                longest = max(longest, np.abs(d).max(initial=0))
            both = [values, values + difference]
            if isinstance(leaf, Masked):
                mask = entry(leaf.mask, rows, False)
                both = [Masked(x, mask) for x in both]
            plain.append(both[0])
            other.append(both[1])
        infos = ClientInfo(
            np.array(rows, np.int32), np.full(len(rows), 5, np.int32), np.zeros(len(rows), np.int32)
        )
        arrived = np.array(rows) != NUM_CLIENTS - 1
        received[bucket.name] = [
            Received(from_leaves(shapes, leaves), infos, arrived) for leaves in (plain, other)
        ]

    def serve(server, received):
        ctx = Context(
            jax.random.key(1),
            jnp.int32(1),
            None,
            pretrained=method.needs.pretrained.variables,
            shared_key=jax.random.key(2),
        )
        if method.needs.public_samples:
            data = with_public(federation_data(federation)).buckets["narrow"]
            ctx = ctx._replace(data=jax.tree.map(jnp.asarray, data))
        return method.server_update(federation, server, received, ctx)[0]

    server = method.init_server(federation, jax.random.key(0))
    run = serve if method.needs.pretrained.host else jax.jit(serve)
    servers = [run(server, {name: both[i] for name, both in received.items()}) for i in (0, 1)]
    apart = [
        np.abs(np.asarray(a, float) - b).max(initial=0)
        for a, b in zip(*map(jax.tree.leaves, servers))
    ]
    return max(apart, default=0.0), longest


def case(name, options=None):
    marks = [] if name in FAST and not options else pytest.mark.slow
    return pytest.param(name, options or {}, marks=marks, id="-".join([name, *(options or {})]))


@pytest.mark.parametrize(
    "name, options", [*map(case, SUMS), *(case(*variant) for variant in VARIANTS)]
)
def test_a_server_of_sums_does_not_see_what_cancels(name, options):
    apart, longest = moved(name, **options)
    assert apart < 2e-6 and (longest > 0.5 or name == "local")


OTHERS = ["fedtgp", "fedgh", "fedgen", "fedssa", "feddropout", "fedkd"]


@pytest.mark.parametrize("name, options", [case(name) for name in OTHERS])
def test_a_server_of_uploads_does(name, options):
    assert moved(name)[0] > 1e-4

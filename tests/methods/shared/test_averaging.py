"""Clients without training samples weigh nothing in any mean over clients.

Means that are a method's default are tested in test_contract.py, by simulations that are compiled
already; here it is the server's step alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core import wire
from fedjax_ht.core.context import Received
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.message_forms import uplink_forms
from fedjax_ht.core.round import Channel
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.serving import server_round
from tests import tiny
from tests.federations import TRAIN_COUNTS, TRAINING, federation_for, identical

CHANNEL = Channel(wire.chain(()), wire.chain(()))


def uploads(method, federation) -> dict[str, tuple]:
    """Returns random uplinks of all clients, with nothing masked, and their infos, by bucket."""
    rng, sent = np.random.default_rng(0), {}
    forms = uplink_forms(method, federation, CHANNEL)
    for bucket in federation.buckets:
        ids = federation.members(bucket)
        rows = len(ids)

        def draw(form, rows=rows):
            if form.dtype == bool:
                return np.ones((rows, *form.shape), bool)
            assert form.dtype == jnp.float32
            return rng.normal(size=(rows, *form.shape)).astype(np.float32)

        infos = tiny.infos(ids, TRAIN_COUNTS.sum(1)[list(ids)])
        sent[bucket.name] = jax.tree.map(draw, forms[bucket.name]), infos
    return sent


@pytest.mark.parametrize("name", ["fedavg", "lg_fedavg", "fedper", "fedral", "fedmrl", "fedprox"])
def test_a_client_without_samples_weighs_nothing_in_a_uniform_mean(name):
    federation = federation_for(name)
    method = METHODS[name](TRAINING, weighting="uniform")
    root = jax.random.key(0)
    first = functools.partial(method.init_server, federation)
    server = jax.jit(first)(round_key(root, Purpose.INIT_SERVER, 0))
    sent = uploads(method, federation)
    serve = jax.jit(server_round(method, federation))

    def served(*arrived):
        received = {}
        for bucket, (uplink, info) in sent.items():
            received[bucket] = Received(uplink, info, np.isin(info.id, arrived))
        return serve(server, received, root, jnp.int32(0))[0]

    assert TRAIN_COUNTS[3].sum() == 0
    alone = served(0, 4)
    assert identical(served(0, 4, 3), alone)
    assert not identical(alone, served(3))
    assert not identical(alone, served(0, 4, 2))

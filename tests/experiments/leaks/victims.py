"""Clients whose uploads are looked at."""

import jax
import jax.numpy as jnp
import optax

from experiments.leaks.imitation import Victim, imitation, observe, upload
from fedjax_ht.core.context import Turn
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.samples import Data
from fedjax_ht.methods import METHODS
from tests import tiny

ONE_STEP = LocalTraining(optax.sgd(0.1), batch_size=1, steps=1, shuffle=False)
ROOT = jax.random.key(0)


def victim_of(name, **options):
    """The only client of a federation of linear models in its first round, and its state."""
    federation = tiny.linear_federation(clients=1, buckets=1, **options)
    method, bucket = METHODS[name](ONE_STEP), federation.buckets[0]
    context = tiny.context(0)

    @jax.jit
    def start(root):
        server = method.init_server(federation, root)
        downlink = method.broadcast(federation, bucket, server, context)
        return downlink, method.init_client(bucket, context)

    downlink, state = start(ROOT)
    data = Data((), (), tiny.client_data([0]).preprocess, {})
    turn = Turn(ROOT, jnp.int32(0), context.info)
    return Victim(method, bucket, downlink, turn, data), state


def image_of(label: int, seed: int = 1):
    """A 2x2 image and its label."""
    return jax.random.uniform(jax.random.key(seed), (1, 2, 2, 1)), jnp.array([label])


def seen_of(victim, state, images, labels):
    """The client's upload of these images as one sees it who knows its state."""

    @jax.jit
    def look(state, images, labels):
        sent = upload(victim, state, images, labels)
        return observe(victim, sent, state, images.shape, labels)

    return look(state, images, labels)


def attacked(victim, state, images, labels):
    """The client's upload of these images as one sees it who knows its state, and its imitation."""
    seen = seen_of(victim, state, images, labels)
    return jax.jit(imitation(victim, seen.known, images.shape)), seen

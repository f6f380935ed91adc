"""Clients whose uploads are looked at."""

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.samples import Data
from fedjax_ht.methods import METHODS
from fedjax_ht.trust.leaks.imitation import Victim, imitation, observe, upload
from tests import tiny

ONE_STEP = LocalTraining(optax.sgd(0.1), batch_size=1, steps=1, shuffle=False)
ROOT = jax.random.key(0)


def victim_of(name, federation):
    """The only client of a federation in its first round, and its state."""
    method, bucket = METHODS[name](ONE_STEP), federation.buckets[0]
    context = tiny.context(0)
    downlink = method.broadcast(federation, bucket, method.init_server(federation, ROOT), context)
    data = Data((), (), tiny.client_data([0]).preprocess, {})
    return Victim(
        method, bucket, downlink, ROOT, jnp.int32(0), context.info, data
    ), method.init_client(bucket, context)


def image_of(label: int, seed: int = 1):
    """A 2x2 image and its label."""
    return jax.random.uniform(jax.random.key(seed), (1, 2, 2, 1)), jnp.array([label])


def attacked(victim, state, images, labels, uplink=None):
    """The client's upload of these images as one sees it who knows its state, and its imitation."""

    @jax.jit
    def look(state, images, labels):
        return observe(
            victim, upload(victim, state, images, labels, uplink), state, images.shape, labels
        )

    seen = look(state, images, labels)
    return jax.jit(imitation(victim, seen.known, images.shape)), seen

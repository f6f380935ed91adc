"""Clients that attack the federation, to measure the robustness of methods and defences.

An attacker trains like the others and changes its upload, or trains on wrong labels. In the
following kinds, x is the honest upload, r the upload without any training (0 for prototypes), and s
the strength:

    label_flip   learns class C - 1 - y for label y; uploads honestly
    sign_flip    r - s (x - r)
    scaled       r + s (x - r)
    noise        x + s |x - r| N(0, 1), with |.| the root mean square of an array
    shift        x + s |x| d, where all attackers share a fixed direction d; the prototypes of all
                 classes move in the same way
    counts       x, with each sample count (`Metadata`) multiplied by s, to get a larger weight

Only `counts` changes counts. No attack changes which rows are sent.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.counts import has_counts, with_scaled_counts
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.local_training import no_training
from fedjax_ht.core.message_forms import uplink_forms
from fedjax_ht.core.method import Method, around
from fedjax_ht.core.round import Channel, without_samples
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import leaves_of, payload_leaves, values_of, with_payload
from fedjax_ht.trust.options import Attack


def attackers(attack: Attack, num_clients: int) -> np.ndarray:
    """Draws the attackers uniformly; a larger share includes those of a smaller one.

    Args:
      attack: the attack; without a kind there are no attackers.
      num_clients: number of clients in the federation.

    Returns:
      bool [num_clients].
    """
    if attack.kind is None:
        return np.zeros(num_clients, bool)
    order = host_generator(attack.seed, Purpose.ATTACK, 0).permutation(num_clients)
    bad = np.zeros(num_clients, bool)
    bad[order[: int(np.floor(attack.share * num_clients + 0.5))]] = True
    return bad


def attacked(method: Method, attack: Attack, num_clients: int) -> Method:
    """Returns the method in a federation where some clients attack.

    Args:
      method: any method.
      attack: the attack; without a kind, the method itself is returned.
      num_clients: number of clients in the federation.
    """
    if attack.kind is None:
        return method
    return around(method, functools.partial(_attacked, attack, attackers(attack, num_clients)))


def _attacked(attack: Attack, bad: np.ndarray, method: Method) -> Method:
    def flipped(bucket, data, ctx):
        """Returns the data, with wrong labels for attackers."""
        if attack.kind != "label_flip":
            return data
        wrong = bucket.num_classes - 1 - data.labels
        return data._replace(labels=jnp.where(jnp.asarray(bad)[ctx.info.id], wrong, data.labels))

    def receive(bucket, client, downlink, data, ctx):
        return method.receive(bucket, client, downlink, flipped(bucket, data, ctx), ctx)

    def client_update(bucket, client, downlink, data, ctx):
        data = flipped(bucket, data, ctx)
        new, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        if attack.kind == "label_flip":
            return new, uplink, metrics
        attacks = jnp.asarray(bad)[ctx.info.id]
        if attack.kind == "counts":
            factor = jnp.where(attacks, attack.strength, 1)
            return new, with_scaled_counts(uplink, factor), metrics
        # Without samples there is no attack: privacy clips updates from such an upload.
        attacks &= data.splits["train"].count > 0
        # All clients compute the attack, since clients of a bucket share a program.
        data = without_samples(data)._replace(trainer=jax.tree_util.Partial(no_training))
        _, untrained, _ = method.client_update(bucket, client, downlink, data, ctx)
        return new, _attacked_upload(attack, attacks, uplink, untrained, ctx.key), metrics

    def check(federation):
        method.check(federation)
        forms = uplink_forms(method, federation, Channel()).values()
        if attack.kind == "counts" and not any(map(has_counts, forms)):
            raise ValueError(
                f"attack.kind is 'counts', but clients of {method.name} send no counts; choose "
                "another kind"
            )

    return method._replace(check=check, receive=receive, client_update=client_update)


def _attacked_upload(
    attack: Attack, attacks: jax.Array, uplink: PyTree, untrained: PyTree, key: jax.Array
) -> PyTree:
    """Computes the upload of a client that attacks if `attacks` is True.

    The arguments include its honest upload, and one without training.
    """
    references, arrays = leaves_of(untrained), {}
    for place, leaf in payload_leaves(uplink).items():
        x, reference = values_of(leaf), values_of(references[place])
        arrays[place] = jnp.where(attacks, _wrong_array(attack, x, reference, key, place), x)
    return with_payload(uplink, arrays)


def _wrong_array(
    attack: Attack, x: jax.Array, reference: jax.Array, key: jax.Array, place: int
) -> jax.Array:
    if attack.kind == "sign_flip":
        return reference - attack.strength * (x - reference)
    if attack.kind == "scaled":
        return reference + attack.strength * (x - reference)
    if attack.kind == "noise":
        noise_key = jax.random.fold_in(jax.random.fold_in(key, Purpose.ATTACK), place)
        noise = jax.random.normal(noise_key, x.shape, x.dtype)
        return x + attack.strength * _root_mean_square(x - reference) * noise
    # The key depends only on the seed and the leaf, and the direction spans only the last axis: it
    # is the same for all clients, rounds and classes.
    shared_key = jax.random.fold_in(jax.random.key(attack.seed), place)
    direction = jax.random.normal(shared_key, x.shape[-1:], x.dtype)
    return x + attack.strength * _root_mean_square(x) * direction


def _root_mean_square(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(x**2))

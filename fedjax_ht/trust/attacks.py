"""Clients that work against the federation, to see what a method and a defence stand.

An attacker trains as the others do, and says something else; or learns from wrong labels and says
what it learned. By kind, where x is its upload, r what it would have uploaded without any training
(of prototypes 0), and s the strength:

    label_flip   learns class C - 1 - y where it has y; uploads honestly
    sign_flip    r - s (x - r)
    scaled       r + s (x - r)
    noise        x + s |x - r| N(0, 1), with |.| the root mean square of an array
    shift        x + s |x| d, a direction d that all attackers share and keep: of prototypes, all
    classes' move alike

Counts (`Metadata`), and which rows are sent, stay as they are.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bounds import NonNegative, Seed, Share, check_fields
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.method import Method, PyTree, around
from fedjax_ht.core.round import without_samples
from fedjax_ht.core.wire import Masked, Metadata

Kind = Literal["label_flip", "sign_flip", "scaled", "noise", "shift"]


class Attack(NamedTuple):
    """kind: see the module's text. share: of the clients, to the nearest number. strength: s. seed:
    of who attacks, and of the direction of a shift; all trials of a run have the same attackers."""

    kind: Kind
    share: Share
    strength: NonNegative = 1.0
    seed: Seed = 0


def attackers(attack: Attack, num_clients: int) -> np.ndarray:
    """bool [num_clients], drawn uniformly; a larger share has those of a smaller one among its
    own."""
    order = host_generator(attack.seed, Purpose.ATTACK, 0).permutation(num_clients)
    bad = np.zeros(num_clients, bool)
    bad[order[: int(np.floor(attack.share * num_clients + 0.5))]] = True
    return bad


def attacked(method: Method, attack: Attack | None, num_clients: int) -> Method:
    """The method in a federation where some clients attack; the method itself without an attack.

    Raises:
      ValueError: a field of the attack is out of range.
    """
    if attack is None:
        return method
    check_fields(attack, "attack.")
    return around(method, functools.partial(_attacked, attack, attackers(attack, num_clients)))


def _attacked(attack: Attack, bad: np.ndarray, method: Method) -> Method:
    def flipped(bucket, data, ctx):
        """The data with wrong labels, of an attacker."""
        if attack.kind != "label_flip":
            return data
        wrong = bucket.num_classes - 1 - data.labels
        return data._replace(labels=jnp.where(jnp.asarray(bad)[ctx.info.id], wrong, data.labels))

    def receive(bucket, client, downlink, data, ctx):
        return method.receive(bucket, client, downlink, flipped(bucket, data, ctx), ctx)

    def client_update(bucket, client, downlink, data, ctx):
        own = flipped(bucket, data, ctx)
        new, uplink, metrics = method.client_update(bucket, client, downlink, own, ctx)
        if attack.kind == "label_flip":
            return new, uplink, metrics
        _, untrained, _ = method.client_update(bucket, client, downlink, without_samples(own), ctx)
        wrong = _said(attack, uplink, untrained, ctx.key)
        attacks = jnp.asarray(bad)[ctx.info.id]
        return new, jax.tree.map(lambda a, b: jnp.where(attacks, a, b), wrong, uplink), metrics

    return method._replace(receive=receive, client_update=client_update)


def _said(attack: Attack, uplink: PyTree, untrained: PyTree, key: jax.Array) -> PyTree:
    """What an attacker uploads instead."""

    def is_leaf(x):
        return isinstance(x, Masked | Metadata)

    leaves, structure = jax.tree.flatten(uplink, is_leaf=is_leaf)
    shared = jax.random.key(attack.seed)

    def wrong(i: int, x, reference):
        if isinstance(x, Masked):
            return Masked(wrong(i, x.values, reference.values), x.mask)
        if isinstance(x, Metadata) or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        if attack.kind == "sign_flip":
            return reference - attack.strength * (x - reference)
        if attack.kind == "scaled":
            return reference + attack.strength * (x - reference)
        if attack.kind == "noise":
            own = jax.random.fold_in(jax.random.fold_in(key, Purpose.ATTACK), i)
            return x + attack.strength * _size(x - reference) * jax.random.normal(
                own, x.shape, x.dtype
            )
        direction = jax.random.normal(jax.random.fold_in(shared, i), x.shape[-1:], x.dtype)
        return x + attack.strength * _size(x) * direction

    found = [
        wrong(i, x, r)
        for i, (x, r) in enumerate(zip(leaves, jax.tree.leaves(untrained, is_leaf=is_leaf)))
    ]
    return jax.tree.unflatten(structure, found)


def _size(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(x**2))

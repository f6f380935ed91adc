"""A client's round as an attacker plays it: its own `client_update` on any images, so that any
method can be asked.

What is compared is the change: an upload less the one that the client would have made without
training on a sample. Of a model that is, after one step of SGD, the gradient times the learning
rate; of prototypes they themselves.

Labels are known. With one image per step they can be read off a classifier's gradient (Zhao et al.
2020); here the attacker is given them. So are the client's random draws, but for the noise that
hides it (`trust.privacy`): an attacker imitates its clipping alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp

from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.method import ClientInfo, Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, client_context, client_step, receive, without_samples
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.trust.privacy import Privacy, private

SAME = 1e-6  # relative square of rounding


class Victim(NamedTuple):
    """One client's round, as the server knows it but for `state` and images.

    Attributes:
      method: with a recipe of one step on all its images, in stored order, such as
        LocalTraining(steps=1, shuffle=False, batch_size=B).
      bucket: of the client.
      downlink: what it was sent.
      root, round, info: where the round stands; with the client's random draws, which are taken as
        known.
      data: of which the rule from pixels to what a model sees is taken.
      privacy: what the client hides by clipping and noise, or None. `secret` decides the noise.
    """

    method: Method
    bucket: Bucket
    downlink: PyTree
    root: jax.Array
    round: jax.Array
    info: ClientInfo
    data: Data
    privacy: Privacy | None = None


class Held(NamedTuple):
    """What an attacker has of a client besides what it knows of its round.

    Attributes:
      state: the client's before the round, or what is taken for it.
      labels: int32 [B].
      sent: the upload, of which the masks are read: which classes' prototypes there are, say.
      nothing: float32 [n], the payload of an upload without training.
    """

    state: PyTree
    labels: jax.Array
    sent: PyTree
    nothing: jax.Array


class Seen(NamedTuple):
    """What an attacker works with; change: float32 [n], of the upload."""

    held: Held
    change: jax.Array


# (held, images [B, H, W, C]) -> the change, float32 [n]
Simulate = Callable[[Held, jax.Array], jax.Array]


def payload(message: PyTree, like: PyTree | None = None) -> jax.Array:
    """All floats that a message sends, float32 [n], counts left out; with `like`, those that it
    sent."""

    def is_leaf(x):
        return isinstance(x, Masked | Metadata)

    parts = []
    leaves = (
        jax.tree.leaves(m, is_leaf=is_leaf) for m in (message, message if like is None else like)
    )
    for leaf, sent in zip(*leaves):
        if isinstance(leaf, Masked):
            mask = sent.mask.reshape(sent.mask.shape + (1,) * (leaf.values.ndim - leaf.mask.ndim))
            leaf = jnp.where(mask, leaf.values, 0)
        if not isinstance(leaf, Metadata) and jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            parts.append(jnp.ravel(leaf))
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def noiseless(victim: Victim) -> Victim:
    """The victim as an attacker can imitate it."""
    return (
        victim
        if victim.privacy is None
        else victim._replace(privacy=victim.privacy._replace(noise=0.0))
    )


def upload(
    victim: Victim, state: PyTree, images: jax.Array, labels: jax.Array, uplink=None
) -> PyTree:
    """What a client sends whose only training samples are these.

    Args:
      victim: whose round.
      state: of the client before the round.
      images, labels: float [B, H, W, C] in [0, 1], int32 [B].
      uplink: (key, message) -> message, such as noise, or None.
    """

    def same(key, message):
        return message

    step = client_step(
        private(victim.method, victim.privacy), victim.bucket, Channel(uplink or same, same)
    )
    return step(
        state, victim.downlink, _own(victim, images, labels), *_place(victim, labels)
    ).uplink


def untrained(victim: Victim, state: PyTree, images: jax.Array, labels: jax.Array) -> PyTree:
    """What the client would send if it took the downlink as with these samples, and then trained on
    none."""
    method, own, place = (
        private(victim.method, victim.privacy),
        _own(victim, images, labels),
        _place(victim, labels),
    )
    client = receive(method, victim.bucket, state, victim.downlink, own, *place)
    nothing, ctx = (
        without_samples(own)._replace(round=victim.round),
        client_context(Purpose.TRAIN, *place),
    )
    return method.client_update(victim.bucket, client, victim.downlink, nothing, ctx)[1]


def _own(victim: Victim, images: jax.Array, labels: jax.Array) -> Data:
    split = Split(jnp.arange(len(labels)), jnp.int32(len(labels)))
    return Data(images, labels, victim.data.preprocess, {"train": split})


def _place(victim: Victim, labels: jax.Array) -> tuple[jax.Array, jax.Array, ClientInfo]:
    return victim.root, victim.round, victim.info._replace(num_samples=jnp.int32(len(labels)))


def seen_of(
    victim: Victim, sent: PyTree, state: PyTree, shape: tuple[int, ...], labels: jax.Array
) -> Seen:
    """What an attacker makes of an upload.

    Args:
      victim: whose round.
      sent: the upload.
      state: of the client before the round, or what is taken for it.
      shape: (B, H, W, C) of the images.
      labels: int32 [B].

    Raises:
      ValueError: the method's clients send nothing that could depend on images.
    """
    nothing = payload(untrained(noiseless(victim), state, jnp.zeros(shape), labels), like=sent)
    if not nothing.size:
        raise ValueError(
            f"clients of {victim.method.name} send no numbers, so that there is nothing to invert"
        )
    return Seen(Held(state, labels, sent, nothing), payload(sent) - nothing)


def imitation(victim: Victim, held: Held, shape: tuple[int, ...]) -> Simulate:
    """The client's round as a function of images, with a gradient.

    Args:
      victim: whose round.
      held: any of these shapes.
      shape: (B, H, W, C) of the images.
    """
    clear = noiseless(victim)

    def simulate(held: Held, images: jax.Array) -> jax.Array:
        return (
            payload(upload(clear, held.state, images, held.labels), like=held.sent) - held.nothing
        )

    return unrolled(simulate, held, jnp.zeros(shape))


def tells_apart(simulate: Simulate, a: Held, b: Held, images: jax.Array) -> bool:
    """Whether a client in one state sends another change of these images than in the other."""
    changes = (simulate(a, images), simulate(b, images)), (a.nothing, b.nothing)
    return any(jnp.sum((x - y) ** 2) > SAME * jnp.sum(x**2) for x, y in changes)


def unrolled(function: Callable, *args) -> Callable:
    """The same function of arguments of these shapes with all loops written out, so that it has a
    gradient.

    A client's training loops as often as its number of samples says, which has no gradient in
    reverse. Here that number is known; without jit, loops whose lengths are known are Python's.
    """
    with jax.disable_jit(), jax.ensure_compile_time_eval():
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    flat, structure = jax.extend.core.jaxpr_as_fun(closed), jax.tree.structure(shape)
    return lambda *args: jax.tree.unflatten(structure, flat(*jax.tree.leaves(args)))

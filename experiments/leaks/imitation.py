"""An attacker's replay of a client's round: the client's `client_update` on images of its choice.

It works for any method. The attacker compares changes: an upload minus the one that the client
would have sent without training. For a model after one step of SGD, the change is the gradient
times the learning rate; for prototypes it is the prototypes themselves.

The attacker knows the labels; with one image per step, a classifier's gradient gives them away
(Zhao et al. 2020). It also knows the client's random draws, except for the noise that hides the
client (`trust.privacy`): it can only imitate the clipping.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import Turn
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel, client_step, without_samples
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Transform, dense, payload_leaves, values_of, with_payload
from fedjax_ht.trust.options import Privacy
from fedjax_ht.trust.privacy import private

SAME = 1e-6  # relative square of rounding


class Victim(NamedTuple):
    """One client's round. The server knows all of it except the client's state and images.

    Attributes:
      method: a method with a recipe of one step on all the client's images, in stored order, such
        as LocalTraining(steps=1, shuffle=False, batch_size=B).
      bucket: the bucket of the client.
      downlink: the message that the client received.
      turn: the client and the round. They determine the client's random draws, which are taken as
        known.
      data: a dataset; its rule from pixels to a model's inputs is used.
      privacy: the clipping and noise that hide the client, or None. `secret` decides the noise.
    """

    method: Method
    bucket: Bucket
    downlink: PyTree
    turn: Turn
    data: Data
    privacy: Privacy | None = None


class Knowledge(NamedTuple):
    """An attacker's knowledge of a client beyond that of its round.

    Attributes:
      state: the client's state before the round, or a guess at it.
      labels: the images' classes, int32 [B].
      sent: the upload; its masks are read, such as the classes that have prototypes.
      untrained: float32 [n], the payload of an upload without training.
    """

    state: PyTree
    labels: jax.Array
    sent: PyTree
    untrained: jax.Array


class Observation(NamedTuple):
    """An upload as an attacker sees it.

    Attributes:
      known: the attacker's knowledge of the client.
      change: float32 [n], the upload's payload minus the one without training.
    """

    known: Knowledge
    change: jax.Array


# (known, images [B, H, W, C]) -> the change, float32 [n]
Simulate = Callable[[Knowledge, jax.Array], jax.Array]


def payload(message: PyTree, like: PyTree | None = None) -> jax.Array:
    """Concatenates the payload of a message, float32 [n]; entries that are not sent are 0.

    Args:
      message: a message of one client.
      like: a message of the same form whose masks decide what is sent; None is `message`.
    """
    like = message if like is None else like
    # The values of this message under the masks of the other one.
    arrays = {place: values_of(leaf) for place, leaf in payload_leaves(message).items()}
    shown = dense(with_payload(like, arrays))
    parts = [jnp.ravel(values) for values in payload_leaves(shown).values()]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def noiseless(victim: Victim) -> Victim:
    """Returns the victim without its noise, which an attacker cannot imitate."""
    if victim.privacy is None:
        return victim
    return victim._replace(privacy=victim.privacy._replace(noise=0.0))


def upload(
    victim: Victim,
    state: PyTree,
    images: jax.Array,
    labels: jax.Array,
    uplink: Transform | None = None,
) -> PyTree:
    """Computes the upload of a client that trains on these samples alone.

    Args:
      victim: the client's round.
      state: the client's state before the round.
      images, labels: the client's images, float [B, H, W, C] in [0, 1], and their classes, int32
        [B].
      uplink: a transform (key, message) -> message of the upload, such as noise, or None.
    """

    def same(key, message):
        return message

    method, channel = private(victim.method, victim.privacy), Channel(uplink or same, same)
    step = client_step(method, victim.bucket, channel)
    data, turn = _data_of(victim, images, labels), _turn(victim, labels)
    _, result = step(state, victim.downlink, data, turn)
    return result.uplink


def untrained_upload(victim: Victim, state: PyTree, images: jax.Array, labels: jax.Array) -> PyTree:
    """Computes the upload of a client that receives the message, but trains on no sample."""
    method = private(victim.method, victim.privacy)
    data, turn = _data_of(victim, images, labels), _turn(victim, labels)
    ctx = turn.context(Purpose.RECEIVE)
    client = method.receive(victim.bucket, state, victim.downlink, data, ctx)
    nothing, ctx = without_samples(data)._replace(round=turn.round), turn.context(Purpose.TRAIN)
    return method.client_update(victim.bucket, client, victim.downlink, nothing, ctx)[1]


def _data_of(victim: Victim, images: jax.Array, labels: jax.Array) -> Data:
    if victim.method.needs.public_samples:
        raise ValueError(
            f"clients of {victim.method.name} read a public set, whose part of a round is not "
            "imitated; choose another method"
        )
    split = Split(jnp.arange(len(labels)), jnp.int32(len(labels)))
    return Data(
        inputs=images,
        labels=labels,
        preprocess=victim.data.preprocess,
        splits={"train": split},
    )


def _turn(victim: Victim, labels: jax.Array) -> Turn:
    info = victim.turn.info._replace(num_samples=jnp.int32(len(labels)))
    return victim.turn._replace(info=info)


def observe(
    victim: Victim, sent: PyTree, state: PyTree, shape: tuple[int, ...], labels: jax.Array
) -> Observation:
    """Computes the change that an upload shows to an attacker.

    Args:
      victim: the client's round.
      sent: the upload that the client sent.
      state: the client's state before the round, or a guess at it.
      shape: shape of the images, (B, H, W, C).
      labels: the images' classes, int32 [B].

    Raises:
      ValueError: the method's clients send nothing that depends on images.
    """
    nothing = untrained_upload(noiseless(victim), state, jnp.zeros(shape), labels)
    untrained = payload(nothing, like=sent)
    if not untrained.size:
        raise ValueError(
            f"clients of {victim.method.name} send no numbers, so that there is nothing to invert"
        )
    known = Knowledge(state=state, labels=labels, sent=sent, untrained=untrained)
    return Observation(known, payload(sent) - untrained)


def imitation(victim: Victim, known: Knowledge, shape: tuple[int, ...]) -> Simulate:
    """Turns the client's round into a differentiable function of images.

    Args:
      victim: the client's round.
      known: arrays of the shapes that the function will get.
      shape: (B, H, W, C) of the images.
    """
    clear = noiseless(victim)

    def simulate(known: Knowledge, images: jax.Array) -> jax.Array:
        made = upload(clear, known.state, images, known.labels)
        return payload(made, like=known.sent) - known.untrained

    return unrolled(simulate, known, jnp.zeros(shape))


def state_matters(simulate: Simulate, a: Knowledge, b: Knowledge, images: jax.Array) -> bool:
    """Returns True if a client in state `a` sends another change of these images than in `b`."""
    changes = (simulate(a, images), simulate(b, images)), (a.untrained, b.untrained)
    return any(jnp.sum((x - y) ** 2) > SAME * jnp.sum(x**2) for x, y in changes)


def unrolled(function: Callable, *args) -> Callable:
    """Unrolls all loops of a function, so that it has a gradient.

    The number of training steps depends on the number of samples, and such a loop has no reverse
    gradient. Here that number is known; without jit, loops of known length run in Python.

    Args:
      function: (*args) -> pytree of arrays.
      args: arrays of the shapes that the function will get.
    """
    with jax.disable_jit(), jax.ensure_compile_time_eval():
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    flat, structure = jax.extend.core.jaxpr_as_fun(closed), jax.tree.structure(shape)

    def run(*args):
        return jax.tree.unflatten(structure, flat(*jax.tree.leaves(args)))

    return run

"""A client's round as an attacker plays it: the client's `client_update` on images of its choice.

So every method can be attacked. What is compared is the change: an upload minus the one that the
client would have made without training on a sample. For a model that is, after one step of SGD, the
gradient times the learning rate; for prototypes it is the prototypes themselves.

Labels are known. With one image per step they can be read off a classifier's gradient (Zhao et al.
2020); here the attacker is given them. So are the client's random draws, but for the noise that
hides it (`trust.privacy`): an attacker imitates its clipping alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo, client_context
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel, client_step, receive, without_samples
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Transform, dense, payload_leaves, values_of, with_payload
from fedjax_ht.trust.options import Privacy
from fedjax_ht.trust.privacy import private

SAME = 1e-6  # relative square of rounding


class Victim(NamedTuple):
    """One client's round, of which the server knows all but the client's state and images.

    Attributes:
      method: a method with a recipe of one step on all the client's images, in stored order, such
        as LocalTraining(steps=1, shuffle=False, batch_size=B).
      bucket: the bucket of the client.
      downlink: the message that the client received.
      root, round, info: the trial's root key, the number of the round and the client's information;
        with the client's random draws, which are taken as known.
      data: a dataset whose rule from pixels to a model's inputs is taken.
      privacy: the clipping and noise that hide the client, or None. `secret` decides the noise.
    """

    method: Method
    bucket: Bucket
    downlink: PyTree
    root: jax.Array
    round: jax.Array
    info: ClientInfo
    data: Data
    privacy: Privacy | None = None


class Knowledge(NamedTuple):
    """An attacker's knowledge of a client beyond that of its round.

    Attributes:
      state: the client's state before the round, or a guess at it.
      labels: the images' classes, int32 [B].
      sent: the upload, of which the masks are read, such as the classes that have prototypes.
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
    """Concatenates the payload of a message, float32 [n], with 0 for entries that are not sent.

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
    """Returns the victim without its noise, which is as far as an attacker can imitate it."""
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
    """Computes the upload of a client whose only training samples are these.

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
    data, place = _data_of(victim, images, labels), _place(victim, labels)
    _, result = step(state, victim.downlink, data, *place)
    return result.uplink


def untrained_upload(victim: Victim, state: PyTree, images: jax.Array, labels: jax.Array) -> PyTree:
    """Computes the upload of a client that receives with these samples and trains on none."""
    method = private(victim.method, victim.privacy)
    data, (root, round, info) = _data_of(victim, images, labels), _place(victim, labels)
    client = receive(
        method, victim.bucket, state, victim.downlink, data, root=root, round=round, info=info
    )
    nothing = without_samples(data)._replace(round=victim.round)
    ctx = client_context(Purpose.TRAIN, root, round, info)
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


def _place(victim: Victim, labels: jax.Array) -> tuple[jax.Array, jax.Array, ClientInfo]:
    return victim.root, victim.round, victim.info._replace(num_samples=jnp.int32(len(labels)))


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
      ValueError: the method's clients send nothing that could depend on images.
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
    """Makes the client's round a function of images that has a gradient.

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
    """Writes out all loops of a function, so that it has a gradient.

    A client's training loops as often as its number of samples says, which has no gradient in
    reverse. Here that number is known; without jit, loops whose lengths are known are Python's.

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

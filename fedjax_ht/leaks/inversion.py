"""Gradient inversion: images whose upload is like the one that a client sent.

    squared  |u(x) - u|^2 / |u|^2, Adam: DLG's distance (Zhu et al., NeurIPS 2019), relative to what was sent
    cosine   1 - cos(u(x), u) + tv * total variation of x, Adam on the signs of the gradients (Geiping et al., NeurIPS
             2020)

u is an upload less the one that would have been made of no samples: of a model its change, which after one step of SGD
is the gradient times the learning rate; of prototypes they themselves. u(x) is the client's own `client_update` on
images x, so that any method, any model and any payload can be asked.

Settled here:
* Labels are known. With one image per step they can be read off a classifier's gradient (Zhao et al. 2020); here the
  attacker is given them.
* Images stay within [0, 1] after every step (Geiping et al.; DLG has no such bound). DLG's L-BFGS is Adam here.
* The step falls to zero along a cosine.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from scipy.optimize import linear_sum_assignment

from fedjax_ht.core.bounds import Count, NonNegative, Positive, check_fields
from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.method import ClientInfo, Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, client_step
from fedjax_ht.core.wire import Masked, Metadata

Simulate = Callable[[PyTree, jax.Array], jax.Array]  # (client's state, images [B, H, W, C]) -> what is sent, float [n]


class Search(NamedTuple):
    """How images are looked for.

    Attributes:
      distance: see the module's text.
      tv: weight of the total variation, the mean absolute difference of neighbours along both axes.
      steps, rate: of Adam, in units of pixels from 0 to 1.
      starts: random first images, of which the one that ends nearest to the upload is taken.
    """

    distance: Literal["squared", "cosine"] = "squared"
    tv: NonNegative = 0.0
    steps: Count = 1000
    rate: Positive = 0.1
    starts: Count = 1


DLG, GEIPING = Search(), Search("cosine", tv=0.01)


class Found(NamedTuple):
    """images float32 [B, H, W, C] in [0, 1]; loss: of what was minimised, at its end."""

    images: jax.Array
    loss: jax.Array


def payload(message: PyTree, like: PyTree | None = None) -> jax.Array:
    """All floats that a message sends, float32 [n], counts left out; with `like`, those that it sent."""
    is_leaf = lambda x: isinstance(x, Masked | Metadata)  # noqa: E731
    parts = []
    leaves = (jax.tree.leaves(m, is_leaf=is_leaf) for m in (message, message if like is None else like))
    for leaf, sent in zip(*leaves):
        if isinstance(leaf, Masked):
            mask = sent.mask.reshape(sent.mask.shape + (1,) * (leaf.values.ndim - leaf.mask.ndim))
            leaf = jnp.where(mask, leaf.values, 0)
        if not isinstance(leaf, Metadata) and jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            parts.append(jnp.ravel(leaf))
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


class Victim(NamedTuple):
    """One client's round, as the server knows it but for `state` and images.

    Attributes:
      method: with a recipe of one step on all its images, in stored order, such as LocalTraining(steps=1,
        shuffle=False, batch_size=B).
      bucket: of the client.
      downlink: what it was sent.
      root, round, info: where the round stands; with the client's random draws, which are taken as known.
      data: of which the rule from pixels to what a model sees is taken.
    """

    method: Method
    bucket: Bucket
    downlink: PyTree
    root: jax.Array
    round: jax.Array
    info: ClientInfo
    data: Data


def upload(victim: Victim, state: PyTree, images: jax.Array, labels: jax.Array, uplink=None, count=None) -> PyTree:
    """What a client sends whose only training samples are these.

    Args:
      victim: whose round.
      state: of the client before the round.
      images, labels: float [B, H, W, C] in [0, 1], int32 [B].
      uplink: (key, message) -> message, such as noise, or None.
      count: how many of the images count; None is all.
    """
    same = lambda key, message: message  # noqa: E731
    split = Split(jnp.arange(len(labels)), jnp.int32(len(labels) if count is None else count))
    own = Data(images, labels, victim.data.preprocess, {"train": split})
    step = client_step(victim.method, victim.bucket, Channel(uplink or same, same))
    info = victim.info._replace(num_samples=jnp.int32(len(labels)))
    return step(state, victim.downlink, own, victim.root, victim.round, info).uplink


class Attacked(NamedTuple):
    """What an attacker works with: simulate as of `Simulate`; seen float32 [n], what the client sent."""

    simulate: Simulate
    seen: jax.Array


def attack_on(victim: Victim, state: PyTree, images: jax.Array, labels: jax.Array, uplink=None) -> Attacked:
    """A client's upload of these images, from its own `state`, and the function by which an attacker imitates it.

    Raises:
      ValueError: the method's clients send nothing that could depend on images.
    """
    sent = upload(victim, state, images, labels, uplink)
    nothing = payload(upload(victim, state, images, labels, count=0), like=sent)
    if not nothing.size:
        raise ValueError(f"clients of {victim.method.name} send no numbers, so that there is nothing to invert")

    def simulate(own: PyTree, x: jax.Array) -> jax.Array:
        return payload(upload(victim, own, x, labels), like=sent) - nothing

    return Attacked(unrolled(simulate, state, images), payload(sent) - nothing)


def unrolled(function: Callable, *args) -> Callable:
    """The same function of arguments of these shapes with all loops written out, so that it has a gradient.

    A client's training loops as often as its number of samples says, which has no gradient in reverse. Here that number
    is known; without jit, loops whose lengths are known are Python's.
    """
    with jax.disable_jit(), jax.ensure_compile_time_eval():
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    flat, structure = jax.extend.core.jaxpr_as_fun(closed), jax.tree.structure(shape)
    return lambda *args: jax.tree.unflatten(structure, flat(*jax.tree.leaves(args)))


def total_variation(images: jax.Array) -> jax.Array:
    """Mean absolute difference of neighbouring pixels of [B, H, W, C], along both axes."""
    return sum(jnp.mean(jnp.abs(jnp.diff(images, axis=axis))) for axis in (1, 2))


def relative_square(found: jax.Array, seen: jax.Array) -> jax.Array:
    """|found - seen|^2 / |seen|^2."""
    return jnp.sum((found - seen) ** 2) / jnp.maximum(jnp.sum(seen**2), jnp.finfo(jnp.float32).tiny)


def one_less_cosine(found: jax.Array, seen: jax.Array) -> jax.Array:
    """1 - cos of the angle between two uploads; 1 where one is zero."""
    square = jnp.sum(found**2) * jnp.sum(seen**2)
    return 1 - jnp.sum(found * seen) * lax.rsqrt(jnp.maximum(square, jnp.finfo(jnp.float32).tiny))


DISTANCES = {"squared": relative_square, "cosine": one_less_cosine}


def invert(simulate: Simulate, state: PyTree, seen: jax.Array, shape: tuple, key: jax.Array, search: Search) -> Found:
    """Looks for images whose upload is like the one seen.

    Args:
      simulate: see `Simulate`, with a gradient.
      state: of the client, or what the attacker takes for it.
      seen: float [n].
      shape: (B, H, W, C).
      key: of the first images, uniform noise.
      search: how.

    Raises:
      ValueError: a field of the search is out of range.
    """
    check_fields(search, "search.")
    return _invert(simulate, state, seen, tuple(shape), key, jnp.float32(search.tv), search._replace(tv=0.0))


@functools.partial(jax.jit, static_argnames=("simulate", "shape", "search"))
def _invert(simulate: Simulate, state, seen, shape: tuple, key, tv: jax.Array, search: Search) -> Found:
    distance, signs = DISTANCES[search.distance], search.distance == "cosine"
    optimizer = optax.adam(optax.cosine_decay_schedule(search.rate, search.steps))

    def loss(images):
        return distance(simulate(state, images), seen) + tv * total_variation(images)

    def step(_, carry):
        images, memory = carry
        gradient = jax.grad(loss)(images)
        updates, memory = optimizer.update(jnp.sign(gradient) if signs else gradient, memory)
        return jnp.clip(images + updates, 0, 1), memory

    def start(key):
        first = jax.random.uniform(key, shape)
        images, _ = lax.fori_loop(0, search.steps, step, (first, optimizer.init(first)))
        return Found(images, loss(images))

    found = lax.map(start, jax.random.split(key, search.starts))
    return jax.tree.map(lambda x: x[jnp.nanargmin(found.loss)], found)


def in_order(found: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Found images [B, H, W, C] in the order of the real ones that they are nearest to, as an upload has no order."""
    cost = ((found[None] - real[:, None]) ** 2).mean((2, 3, 4))
    return found[linear_sum_assignment(cost)[1]]

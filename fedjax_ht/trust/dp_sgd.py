"""Local training in which no single sample shows: DP-SGD (Abadi et al., CCS 2016), in place of
`local_training.train`.

    in every step each of n samples is in the batch with probability B / n, by itself;  g_i =
    gradient of its loss alone g = (sum_i g_i min(1, clip / |g_i|) + N(0, (noise clip)^2)) / B;  the
    recipe's optimiser descends on g

These are Poisson's batches, which accountants know best; B is their mean size. As many blocks of B
samples are summed as one has, so that none is cut short. A client with fewer than B samples has all
of them in every batch, and their number for B. The number of steps is that of the recipe, which a
client's number of samples decides. What a loss compares between samples of a batch falls away: it
sees one sample at a time. Its key, and an augmentation's, are each sample's own.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.keys import privacy_key
from fedjax_ht.core.local_training import (
    Batch,
    LocalTraining,
    LossFn,
    TrainingResult,
    descend,
    num_steps,
    take_batch,
)
from fedjax_ht.core.method import Data, PyTree, Split


def norm_of(tree: PyTree) -> jax.Array:
    """L2 norm of all arrays together, in float32; of a pytree without any 0."""
    return jnp.sqrt(
        sum(
            (jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)),
            jnp.float32(0),
        )
    )


def clipped(tree: PyTree, clip: float) -> PyTree:
    """The arrays as one vector of norm at most `clip`, of the same direction; zeros where it is not
    finite."""
    norm = norm_of(tree)
    factor = clip / jnp.maximum(norm, clip)
    return jax.tree.map(
        lambda x: jnp.where(jnp.isfinite(norm), x * factor.astype(x.dtype), 0), tree
    )


def gaussian(key: jax.Array, tree: PyTree, scale: float) -> PyTree:
    """Noise N(0, scale^2) of the arrays' shapes."""
    leaves, structure = jax.tree.flatten(tree)
    drawn = [
        scale * jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, drawn)


def clipped_sum(
    gradient_of, batch: Batch, keys: jax.Array, clip: float
) -> tuple[PyTree, jax.Array]:
    """Sums over a batch's real samples: of their gradients, each clipped, and of their losses.

    Args:
      gradient_of: (Batch of one sample, key) -> (loss, gradient).
      batch: B samples.
      keys: [B].
      clip: L2 norm of a sample's gradient.
    """

    def one(sample: Batch, key):
        value, gradient = gradient_of(
            jax.tree.map(lambda x: x[None], sample)._replace(mask=jnp.ones(1, bool)), key
        )

        def counts(x):
            return jnp.where(sample.mask, x, 0)

        return jax.tree.map(counts, (clipped(gradient, clip), value))

    return jax.tree.map(lambda x: x.sum(0), jax.vmap(one)(batch, keys))


def poisson_batch(key: jax.Array, source: Split, size: int) -> Split:
    """The samples of one step, in front: each with probability size / count, 1 where there are
    fewer.

    A sample's own bits decide, whatever the padding. (They are 23, so that the probability is up to
    1e-7 off.)
    """
    chance = size / jnp.maximum(source.count, size).astype(jnp.float32)
    position = jnp.arange(source.indices.shape[0])
    chosen = (jax.random.uniform(key, position.shape) < chance) & (position < source.count)
    return Split(source.indices[jnp.argsort(~chosen, stable=True)], chosen.sum(dtype=jnp.int32))


def dp_train(
    clip: float,
    noise: float,
    secret: Sequence[int],
    training: LocalTraining,
    loss_fn: LossFn,
    params: PyTree,
    stats: PyTree,
    data: Data,
    key: jax.Array,
    num_classes: int,
    split: str = "train",
) -> TrainingResult:
    """Trains as the module's text says; from `training` on arguments are those of
    `local_training.train`.

    Args:
      clip, noise: see the module's text.
      secret: see `keys.privacy_key`.
    """
    source, size = data.splits[split], training.batch_size
    steps, black = num_steps(training, source.count), getattr(data.preprocess, "black", 0.0)
    mean_size = jnp.clip(source.count, 1, size)
    draw_key, noise_key = jax.random.split(privacy_key(key, secret))
    sample_key = jax.random.split(key)[0]

    def step(number, state):
        params, opt_state, total = state

        def gradient_of(sample: Batch, key):
            loss_key, augment_key = jax.random.split(key)
            if training.augment is not None:
                sample = sample._replace(x=training.augment(augment_key, sample.x, black))
            return jax.value_and_grad(
                lambda params: loss_fn(params, stats, sample, loss_key).value
            )(params)

        drawn = poisson_batch(jax.random.fold_in(draw_key, number), source, size)

        def block(i, sums):
            batch = take_batch(data, drawn.indices, drawn.count, i * size, size)
            keys = jax.random.split(
                jax.random.fold_in(jax.random.fold_in(sample_key, number), i), size
            )
            return jax.tree.map(jnp.add, sums, clipped_sum(gradient_of, batch, keys, clip))

        nothing = jax.tree.map(jnp.zeros_like, params), jnp.float32(0)
        gradients, losses = lax.fori_loop(0, (drawn.count + size - 1) // size, block, nothing)
        added = gaussian(jax.random.fold_in(noise_key, number), params, clip * noise)
        gradients = jax.tree.map(lambda g, n: (g + n) / mean_size, gradients, added)
        params, opt_state = descend(training, data, gradients, opt_state, params)
        return params, opt_state, total + losses / mean_size

    start = params, training.optimizer.init(params), jnp.float32(0)
    params, _, total = lax.fori_loop(0, steps, step, start)
    return TrainingResult(params, stats, total / jnp.maximum(steps, 1), None)

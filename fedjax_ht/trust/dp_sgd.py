"""DP-SGD (Abadi et al., CCS 2016): local training that hides every single sample.

It takes the place of `local_training.train`. In every step

    each of n samples is in the batch with probability B / n, independently of the others
    g_i = gradient of sample i's loss
    g = (sum_i g_i min(1, clip / |g_i|) + N(0, (noise clip)^2)) / B
    the recipe's optimiser descends on g

These are Poisson's batches, which accountants know best; B is their mean size. As many blocks of B
samples are summed as a batch has, so that none is cut short. A client with fewer than B samples has
all of them in every batch, and their number for B. The number of steps is that of the recipe, which
a client's number of samples decides.

The loss sees one sample at a time, with a key and an augmentation of its own; terms that compare
samples of a batch vanish.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.batches import Batch, take_batch
from fedjax_ht.core.keys import privacy_key
from fedjax_ht.core.local_training import LocalTraining, LossFn, TrainingResult, descend, num_steps
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree


def norm_of(tree: PyTree) -> jax.Array:
    """Computes the L2 norm of all arrays together, a float32 scalar; 0 without any array."""
    total = jnp.float32(0)
    for x in jax.tree.leaves(tree):
        total = total + jnp.sum(jnp.square(x.astype(jnp.float32)))
    return jnp.sqrt(total)


def clipped(tree: PyTree, clip: float) -> PyTree:
    """Scales all arrays together to a norm of at most `clip`; zeros if the norm is not finite."""
    norm = norm_of(tree)
    factor = clip / jnp.maximum(norm, clip)

    def scaled(x):
        return jnp.where(jnp.isfinite(norm), x * factor.astype(x.dtype), 0)

    return jax.tree.map(scaled, tree)


def gaussian(key: jax.Array, tree: PyTree, scale: float) -> PyTree:
    """Draws noise N(0, scale^2) of the arrays' shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    drawn = []
    for i, x in enumerate(leaves):
        drawn.append(scale * jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype))
    return jax.tree.unflatten(structure, drawn)


def clipped_sum(
    gradient_of: Callable, batch: Batch, keys: jax.Array, clip: float
) -> tuple[PyTree, jax.Array]:
    """Sums the clipped gradients, and the losses, of a batch's real samples.

    Args:
      gradient_of: (Batch of one sample, key) -> (loss, gradient).
      batch: a batch of B samples.
      keys: random keys, [B], one for each sample.
      clip: L2 norm of a sample's gradient.
    """

    def gradient_and_loss(sample: Batch, key):
        # A batch of one; its mask is True, so that a loss of a masked sample is no 0 / 0.
        alone = jax.tree.map(lambda x: x[None], sample)._replace(mask=jnp.ones(1, bool))
        value, gradient = gradient_of(alone, key)

        def if_real(x):
            # `where` and no product: a masked sample's gradient may be NaN.
            return jnp.where(sample.mask, x, 0)

        return jax.tree.map(if_real, (clipped(gradient, clip), value))

    return jax.tree.map(lambda x: x.sum(0), jax.vmap(gradient_and_loss)(batch, keys))


def poisson_batch(key: jax.Array, source: Split, size: int) -> Split:
    """Draws each sample with probability size / count, or 1 where there are fewer.

    Args:
      key: the key of the step.
      source: the samples; `count` of them are real.
      size: mean number of samples drawn.

    Returns:
      The samples drawn, in front.
    """
    # A sample's own bits decide, whatever the padding. They are 23, so that the probability is up
    # to 1e-7 off.
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
    """Trains as the module's text says.

    Args:
      clip, noise: bound on a sample's gradient and noise multiplier, see the module's text.
      secret: words that are folded into the key of the noise, see `keys.privacy_key`.
      training, loss_fn, params, stats, data, key, num_classes, split: arguments as for
        `local_training.train`.

    Returns:
      The result, of which `stats` are those given: running statistics of a batch would show its
      samples.
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
            if training.augmentation is not None:
                sample = sample._replace(x=training.augmentation(augment_key, sample.x, black))

            def loss(params):
                return loss_fn(params, stats, sample, loss_key).value

            return jax.value_and_grad(loss)(params)

        drawn = poisson_batch(jax.random.fold_in(draw_key, number), source, size)

        def block(i, sums):
            batch = take_batch(data, drawn.indices, drawn.count, i * size, size)
            block_key = jax.random.fold_in(jax.random.fold_in(sample_key, number), i)
            keys = jax.random.split(block_key, size)
            return jax.tree.map(jnp.add, sums, clipped_sum(gradient_of, batch, keys, clip))

        nothing = jax.tree.map(jnp.zeros_like, params), jnp.float32(0)
        gradients, losses = lax.fori_loop(0, (drawn.count + size - 1) // size, block, nothing)
        added = gaussian(jax.random.fold_in(noise_key, number), params, clip * noise)
        gradients = jax.tree.map(lambda g, n: (g + n) / mean_size, gradients, added)
        params, opt_state = descend(training, data, gradients, opt_state, params)
        return params, opt_state, total + losses / mean_size

    start = params, training.optimizer.init(params), jnp.float32(0)
    params, _, total = lax.fori_loop(0, steps, step, start)
    loss = total / jnp.maximum(steps, 1)
    return TrainingResult(params=params, stats=stats, loss=loss, class_sums=None)

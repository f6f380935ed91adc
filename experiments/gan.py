"""Adversarial training of the embedded generator, as pure functions.

discriminator  E softplus(D(G(z)) - D(x)) + (gamma / 2) (E ||grad D(x)||^2 + E ||grad D(G(z))||^2),
               the penalties every few steps and that many times as strong (lazily, Karras et al.,
               CVPR 2020)
generator      E softplus(D(x) - D(G(z))), on the same pairs and the discriminator before its step
shipped        an exponential moving average of the generator

The relativistic pairing loss with both penalties is R3GAN's (Huang et al., NeurIPS 2024). The
non-saturating loss with only the first penalty produced one kind of garment after the other.

A conditional generator sees the class of the real image of its pair, and the discriminator adds the
product of its features with a row of the class (projection, Miyato and Koyama, ICLR 2018). A batch
has several images of each of a few classes, and the discriminator sees their standard deviation
class by class. Among images of all classes it would not notice that those of one class are all
alike, and soon they would be.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.augment import flip
from fedjax_ht.lab.generators import embedded
from fedjax_ht.lab.generators.embedded import activate, dense, normal
from fedjax_ht.ops import conv2d

# outside loops and vmap, as here, XLA's own convolution takes half as long as a product of patches
LOWERING = "native"
GROUP = 32  # images over which a discriminator sees the standard deviation
GROUP_OF_CLASS = 8  # the same for each class, if there are classes


class Recipe(NamedTuple):
    """Hyper-parameters of a generator's training; the shipped generators have the defaults.

    Attributes:
      channels: channels of maps of 4, 8, 16 and 32 pixels; the discriminator lacks the last.
      latent_dim: H.
      batch_size: images per step.
      learning_rate: learning rate of both Adam(0, 0.99).
      penalty: gamma.
      penalty_every: steps from one pair of penalties to the next.
      average_images: half-life of the moving average, in images.
      average_share: largest half-life, as a share of the images seen so far.
      num_classes: number of classes of a conditional generator; 0 for an unconditional one.
    """

    channels: tuple[int, int, int, int] = (128, 96, 48, 16)
    latent_dim: int = 512
    batch_size: int = 32
    learning_rate: float = 3e-3
    penalty: float = 0.3
    penalty_every: int = 8
    average_images: int = 20_000
    average_share: float = 0.05
    num_classes: int = 0


class GanState(NamedTuple):
    """The state of a training, which a step changes.

    Attributes:
      step: number of steps so far.
      generator, discriminator: weights of the networks.
      generator_optimizer, discriminator_optimizer: states of Adam.
      average: moving average of the generator, which is shipped.
      losses: moving averages of "discriminator" and "generator" loss and of "penalty", the sum of
        both.
    """

    step: jax.Array
    generator: PyTree
    discriminator: PyTree
    generator_optimizer: PyTree
    discriminator_optimizer: PyTree
    average: PyTree
    losses: dict[str, jax.Array]


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """Returns the optimizer of both networks."""
    return optax.adam(recipe.learning_rate, b1=0.0, b2=0.99)


@functools.partial(jax.jit, static_argnums=(0, 1))
def init_gan(recipe: Recipe, image_channels: int, seed: int) -> GanState:
    """Initialises networks for images of 1 or 3 channels."""
    keys = jax.random.split(jax.random.key(seed))
    sizes = recipe.channels, recipe.latent_dim, image_channels, recipe.num_classes
    generator = embedded.init_variables(keys[0], *sizes)
    discriminator = init_discriminator(keys[1], recipe.channels, image_channels, recipe.num_classes)
    start = optimizer(recipe).init
    losses = {name: jnp.float32(0) for name in ("discriminator", "generator", "penalty")}
    return GanState(
        step=jnp.int32(0),
        generator=generator,
        discriminator=discriminator,
        generator_optimizer=start(generator),
        discriminator_optimizer=start(discriminator),
        average=generator,
        losses=losses,
    )


def init_discriminator(
    key: jax.Array,
    channels: tuple[int, int, int, int],
    image_channels: int,
    num_classes: int = 0,
) -> PyTree:
    """Draws the discriminator's weights from N(0, 1); biases are zero.

    A layer's gain is applied where it is used.
    """
    low, middle, high, _ = channels
    kernels = {
        "image": (1, 1, 4 * image_channels, high),
        "16a": (3, 3, high, high),
        "16b": (3, 3, high, high),
        "8a": (3, 3, high, middle),
        "8b": (3, 3, middle, middle),
        "4": (3, 3, middle + 1, low),
    }
    names = (*kernels, "dense", "score")
    keys = dict(zip(names, jax.random.split(key, len(names))))
    discriminator = {
        name: {"kernel": normal(keys[name], shape), "bias": jnp.zeros(shape[-1])}
        for name, shape in kernels.items()
    }
    discriminator["dense"] = {
        "weight": normal(keys["dense"], (16 * low, low)),
        "bias": jnp.zeros(low),
    }
    # Without a bias, which cancels in a difference of scores.
    discriminator["score"] = normal(keys["score"], (low,))
    if num_classes:  # zeros: at first it ignores classes
        discriminator["classes"] = jnp.zeros((num_classes, low))
    return discriminator


def discriminate(
    discriminator: PyTree, images: jax.Array, labels: jax.Array | None = None
) -> jax.Array:
    """Scores images: float [B], high for images that look real.

    Args:
      discriminator: weights of the discriminator.
      images: float [B, 32, 32, C] in [-1, 1]; B is a multiple of min(B, 32).
      labels: int [B], the intended classes of the images, in `batch_rows`' order; None without
        classes.
    """
    group = GROUP if labels is None else GROUP_OF_CLASS

    def layer(name, x):
        return activate(_conv(discriminator[name], x))

    x = layer("image", _unshuffle(images))
    x = _halve(layer("16b", layer("16a", x)))
    x = _halve(layer("8b", layer("8a", x)))
    x = layer("4", _with_spread(x, group))
    x = activate(dense(discriminator["dense"], x.reshape(len(x), -1)))
    score = discriminator["score"]
    if labels is None:
        return x @ score / math.sqrt(x.shape[-1])
    return jnp.sum(x * (score + discriminator["classes"][labels]), -1) / math.sqrt(x.shape[-1])


def _conv(layer: PyTree, x: jax.Array) -> jax.Array:
    kernel = layer["kernel"]
    kernel = kernel / math.sqrt(math.prod(kernel.shape[:3]))
    return conv2d(x, kernel, padding=kernel.shape[0] // 2, lowering=LOWERING) + layer["bias"]


def _halve(x: jax.Array) -> jax.Array:
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def _unshuffle(x: jax.Array) -> jax.Array:
    """Turns blocks of 2x2 pixels into channels."""
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // 2, 2, width // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(n, height // 2, width // 2, 4 * channels)


def _with_spread(x: jax.Array, group: int) -> jax.Array:
    """Appends a channel: the mean standard deviation within the sample's group of at most `group`.

    It reveals repeated images. With n groups, sample i belongs to group i mod n.
    """
    groups = x.reshape(min(group, len(x)), -1, *x.shape[1:])
    spread = jnp.sqrt(groups.var(0) + 1e-8).mean((1, 2, 3))
    return jnp.concatenate(
        [x, jnp.tile(spread, len(groups))[:, None, None, None] * jnp.ones_like(x[..., :1])], -1
    )


def batch_rows(key: jax.Array, classes: jax.Array, recipe: Recipe) -> jax.Array:
    """Draws the images of a batch.

    Args:
      key: key of the draws.
      classes: int [N], the images' classes; ascending for a conditional generator.
      recipe: hyper-parameters.

    Returns:
      int [B], indices into `classes`. For a conditional generator, image i is of class i mod n of n
      drawn classes, `GROUP_OF_CLASS` of each; classes are drawn by their share of the images.
    """
    if not recipe.num_classes:
        return jax.random.randint(key, (recipe.batch_size,), 0, len(classes))
    class_key, row_key = jax.random.split(key)
    group = min(GROUP_OF_CLASS, recipe.batch_size)
    drawn = classes[jax.random.randint(class_key, (recipe.batch_size // group,), 0, len(classes))]
    first, end = (jnp.searchsorted(classes, drawn, side=side) for side in ("left", "right"))
    return jax.random.randint(row_key, (group, len(drawn)), first, end).reshape(-1)


@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=1)
def train_step(
    recipe: Recipe,
    state: GanState,
    images: jax.Array,
    classes: jax.Array,
    seed: jax.Array,
    penalise: bool,
) -> GanState:
    """Takes one step of both networks; all randomness is a function of (seed, step).

    Args:
      recipe: hyper-parameters.
      state: state before the step; donated.
      images: uint8 [N, 32, 32, 1 or 3], all training images.
      classes: int [N], their classes, ascending; used only by a conditional generator.
      seed: int scalar.
      penalise: True adds the penalties; see `is_penalised`.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), state.step), 3)
    rows = batch_rows(keys[0], classes, recipe)
    labels = classes[rows] if recipe.num_classes else None
    real = flip(keys[1], images[rows].astype(jnp.float32) / 127.5 - 1)
    z = jax.random.normal(keys[2], (recipe.batch_size, embedded.NOISE_DIM))
    fake, generator_vjp = jax.vjp(
        lambda g: embedded.render(g, embedded.map_noise(g, z, labels), LOWERING), state.generator
    )

    def penalty(discriminator):
        both = [
            jax.grad(lambda x: discriminate(discriminator, x, labels).sum())(x)
            for x in (real, fake)
        ]
        return sum(jnp.mean(jnp.sum(gradient**2, (1, 2, 3))) for gradient in both)

    # Scores are computed once, for the gradients of both networks.
    real_scores, real_vjp = jax.vjp(lambda d: discriminate(d, real, labels), state.discriminator)
    fake_scores, fake_vjp = jax.vjp(
        lambda d, x: discriminate(d, x, labels), state.discriminator, fake
    )
    share = 1 / recipe.batch_size
    lead = jax.nn.sigmoid(fake_scores - real_scores) * share
    gradients = jax.tree.map(jnp.add, real_vjp(-lead)[0], fake_vjp(lead)[0])
    (generator_gradients,) = generator_vjp(fake_vjp(lead - share)[1])
    penalties = state.losses["penalty"]
    if penalise:
        penalties, more = jax.value_and_grad(penalty)(state.discriminator)
        weight = recipe.penalty / 2 * recipe.penalty_every
        gradients = jax.tree.map(lambda x, y: x + weight * y, gradients, more)

    adam = optimizer(recipe)
    updates, discriminator_optimizer = adam.update(gradients, state.discriminator_optimizer)
    discriminator = optax.apply_updates(state.discriminator, updates)
    updates, generator_optimizer = adam.update(generator_gradients, state.generator_optimizer)
    generator = optax.apply_updates(state.generator, updates)
    seen = (state.step + 1) * recipe.batch_size
    half_life = jnp.minimum(recipe.average_images, recipe.average_share * seen)
    average = optax.incremental_update(
        generator, state.average, 1 - 0.5 ** (recipe.batch_size / half_life)
    )
    losses = {
        "discriminator": jax.nn.softplus(fake_scores - real_scores).mean(),
        "generator": jax.nn.softplus(real_scores - fake_scores).mean(),
        "penalty": penalties,
    }
    losses = optax.incremental_update(losses, state.losses, jnp.maximum(0.02, 1 / (state.step + 1)))
    return GanState(
        step=state.step + 1,
        generator=generator,
        discriminator=discriminator,
        generator_optimizer=generator_optimizer,
        discriminator_optimizer=discriminator_optimizer,
        average=average,
        losses=losses,
    )


def is_penalised(recipe: Recipe, step: int) -> bool:
    """Returns whether the step with this number, counted from 0, has the penalties."""
    return step % recipe.penalty_every == 0

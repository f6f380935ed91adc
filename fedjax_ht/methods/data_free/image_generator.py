"""The image generator of DFRD, DENSE and FedFTG, and the controls that measure its worth.

It merges noise with a trainable embedding of the label, and applies transposed 4x4 convolutions as
in DCGAN (Radford et al., ICLR 2016). `Images` lists other images that can train a server's model.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.batches import inputs_at
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.data_free.options import Distillation, Merge
from fedjax_ht.methods.shared.supervised import count_labels
from fedjax_ht.models.layers import MOMENTUM, Norm
from fedjax_ht.ops import conv_transpose2d

CHANNELS = (512, 256, 128, 64)  # of the maps of 4, 8, 16 and 32 pixels
STD = 0.02  # of the initial kernels, and of the norms' scales about 1
EMBEDDED = ("mul", "add", "cat")  # merges with an embedding
WITH_GENERATOR = ("generator", "untrained")  # of `Images`
PASSES = 30  # batches for the statistics of an untrained generator


class Generated(NamedTuple):
    """Images of a generator, and the inputs that they were made from.

    Attributes:
      images: float [B, H, W, channels] in [-1, 1], used as normalised ones.
      merged: float [B, D], the generator's input.
      embedding: float [B, d], E(y); () if the merge has none.
    """

    images: jax.Array
    merged: jax.Array
    embedding: Any


class TransposedConv(nn.Module):
    """A transposed 4x4 convolution without bias; its parameter is "kernel" [4, 4, C, features]."""

    features: int
    stride: int
    padding: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _kernel, (4, 4, x.shape[-1], self.features))
        return conv_transpose2d(x, kernel, self.stride, self.padding)


class ConditionalGenerator(nn.Module):
    """A generator of images of at most 64 pixels a side, from noise and labels.

    A first transposed convolution makes maps of 4x4 pixels, and each further one doubles their
    size: three for 32 pixels, four for 64. Other sizes are centre crops of the next larger one (28
    of 32). Norms are ordinary batch norms, with batch statistics in training and running statistics
    otherwise. The first layer has none.

    Attributes:
      num_classes: number of classes, C.
      noise_dim: d, length of a noise vector.
      image_shape: shape of the images, (H, W, channels).
      merge: the rule that combines noise and label, see `Merge`.
    """

    num_classes: int
    noise_dim: int
    image_shape: tuple[int, int, int]
    merge: Merge = "mul"

    @nn.compact
    def __call__(self, noise: jax.Array, labels: jax.Array, train: bool) -> Generated:
        """Returns `Generated` of noise float [B, d] and labels int [B]."""
        merged, embedding = self._merged(noise, labels)
        height, width, channels = self.image_shape
        doublings = num_doublings(self.image_shape)
        x = nn.relu(TransposedConv(CHANNELS[0], 1, 0, name="conv1")(merged[:, None, None]))
        for i in range(1, doublings):
            x = TransposedConv(CHANNELS[i], 2, 1, name=f"conv{i + 1}")(x)
            x = nn.relu(Norm("batch", scale_init=_around_one, name=f"norm{i + 1}")(x, train))
        x = jnp.tanh(TransposedConv(channels, 2, 1, name=f"conv{doublings + 1}")(x))
        top, left = (x.shape[1] - height) // 2, (x.shape[2] - width) // 2
        return Generated(x[:, top : top + height, left : left + width], merged, embedding)

    def _merged(self, noise: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array | tuple]:
        """Returns the generator's input, and the embedding or (); see `Generated`."""
        if self.merge == "none":
            return noise, ()
        if self.merge == "ncat":
            one_hot = jax.nn.one_hot(labels, self.num_classes)
            return jnp.concatenate([noise, one_hot], -1), ()
        table = self.param(
            "embedding", nn.initializers.normal(1.0), (self.num_classes, self.noise_dim)
        )
        embedding = table[labels]
        if self.merge == "cat":
            return jnp.concatenate([noise, embedding], -1), embedding
        merged = noise * embedding if self.merge == "mul" else noise + embedding
        return merged, embedding


def num_doublings(image_shape: tuple[int, int, int]) -> int:
    """Returns how often 4 pixels must be doubled to fit an image of this shape, at least once.

    Raises:
      ValueError: the image is larger than 64 pixels.
    """
    side = max(image_shape[:2])
    if side > 4 * 2 ** len(CHANNELS):
        raise ValueError(
            f"images have {side} pixels a side; the generator makes at most "
            f"{4 * 2 ** len(CHANNELS)}; set a smaller dataset.image_size"
        )
    return max(1, math.ceil(math.log2(side / 4)))


def _kernel(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    # Drawn flat: a four-dimensional draw compiles far slower on CPU.
    return STD * jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def _around_one(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    return 1 + STD * jax.random.normal(key, shape, dtype)


def make_generator(federation: Federation, recipe: Distillation) -> ConditionalGenerator:
    """Makes the generator's module for a federation's images and classes."""
    shape = federation.server_model.input_shape
    return ConditionalGenerator(federation.num_classes, recipe.noise_dim, shape, recipe.merge)


def init_generator(module: ConditionalGenerator, key: jax.Array) -> PyTree:
    """Initialises {"params", "batch_stats"}; a generator for up to 8 pixels has no norms."""
    variables = module.init(key, jnp.zeros((2, module.noise_dim)), jnp.zeros(2, jnp.int32), False)
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


def moving_average(average: PyTree, generator: PyTree, decay: jax.Array | float) -> PyTree:
    """Moves an average towards the generator: decay * average + (1 - decay) * generator.

    Weights and running statistics are averaged in the same way (DFRD Eq. 6).
    """
    return jax.tree.map(lambda a, g: decay * a + (1 - decay) * g, average, generator)


def draw(
    key: jax.Array, recipe: Distillation, label_shares: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws noise float [B, d], standard normal, and labels int [B] from p(y), float [C]."""
    noise_key, label_key = jax.random.split(key)
    size = recipe.batch_size
    noise = jax.random.normal(noise_key, (size, recipe.noise_dim))
    labels = jax.random.categorical(label_key, jnp.log(label_shares), shape=(size,))
    return noise, labels


def settle_statistics(
    module: ConditionalGenerator, generator: PyTree, batch_size: int, key: jax.Array
) -> PyTree:
    """Sets a generator's running statistics to those of its own outputs, all classes equally.

    Args:
      module: the generator.
      generator: the generator's {"params", "batch_stats"}.
      batch_size: images per pass.
      key: the key of noise and labels.

    Returns:
      The generator with new "batch_stats".
    """

    def one_pass(number, generator):
        noise_key, label_key = jax.random.split(jax.random.fold_in(key, number))
        noise = jax.random.normal(noise_key, (batch_size, module.noise_dim))
        labels = jax.random.randint(label_key, (batch_size,), 0, module.num_classes)
        _, changed = module.apply(generator, noise, labels, True, mutable=["batch_stats"])
        return generator | {"batch_stats": changed.get("batch_stats", {})}

    first, left = generator["batch_stats"], (1 - MOMENTUM) ** PASSES
    last = lax.fori_loop(0, PASSES, one_pass, generator)
    # The initial statistics are of no outputs, and their variance, 1, is far too large: remove
    # their remaining share.
    stats = jax.tree.map(lambda a, b: (b - left * a) / (1 - left), first, last["batch_stats"])
    return last | {"batch_stats": stats}


class Pool(NamedTuple):
    """Training images by class.

    Attributes:
      order: int32 [max], indices into `Data.inputs`, sorted by class, padding last.
      first: int32 [C], the position in `order` of a class's first image.
      count: int32 [C], the number of a class's images.
    """

    order: jax.Array
    first: jax.Array
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def make_pool(data: Data, num_classes: int) -> Pool:
    """Sorts the samples of the split "train" by class."""
    indices, count = data.splits["train"]
    # Padding gets a class of its own, after the others.
    labels = jnp.where(jnp.arange(len(indices)) < count, data.labels[indices], num_classes)
    counts = count_labels(data, num_classes)
    return Pool(indices[jnp.argsort(labels, stable=True)], jnp.cumsum(counts) - counts, counts)


def draw_real(key: jax.Array, data: Data, pool: Pool, labels: jax.Array) -> jax.Array:
    """Draws training images of given classes, with replacement.

    Args:
      key: the key of the draws.
      data: the training samples of all clients.
      pool: the samples' indices by class, see `make_pool`.
      labels: int [B]; each class must have an image.

    Returns:
      float [B, H, W, channels], normalised.
    """
    number = jax.random.randint(key, labels.shape, 0, jnp.maximum(pool.count[labels], 1))
    return inputs_at(data, pool.order[pool.first[labels] + number])


def image_source(
    recipe: Distillation, federation: Federation, label_shares: jax.Array, data: PyTree
) -> Callable[[PyTree, jax.Array], tuple[jax.Array, jax.Array, Generated]]:
    """Makes the source of the images that train the student.

    Args:
      recipe: options of the server's training; `Distillation.images` is the kind of images.
      federation: the federation, for its images and classes.
      label_shares: float [C], p(y).
      data: the training samples of all clients, `Data` with the split "train", for images="real".

    Returns:
      (generator, key) -> noise, labels and images of a batch.
    """
    module: Any = make_generator(federation, recipe)
    pool: PyTree = ()
    if recipe.images == "real":
        pool = make_pool(data, federation.num_classes)
        # counts="none" draws classes that no client has
        label_shares = jnp.where(pool.count > 0, label_shares, 0)

    def images_of(generator, noise, labels, key) -> Generated:
        # `draw` splits the key in two, which are `fold_in` of 0 and 1.
        if recipe.images == "real":
            images = draw_real(jax.random.fold_in(key, 2), data, pool, labels)
            return Generated(images, noise, ())
        if recipe.images == "noise":
            shape = (recipe.batch_size, *federation.server_model.input_shape)
            return Generated(jax.random.normal(jax.random.fold_in(key, 2), shape), noise, ())
        return module.apply(generator, noise, labels, False)

    def batch_of(generator, key):
        noise, labels = draw(key, recipe, label_shares)
        return noise, labels, images_of(generator, noise, labels, key)

    return batch_of

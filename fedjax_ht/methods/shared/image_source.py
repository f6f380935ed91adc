"""Images that a distilling server's model is taught on: those of its generator, or a control's.

    generator    G(z, y), trained against the model
    untrained    G(z, y) as first drawn; its norms go by the statistics of its own outputs, so that
                 it is a generator like the trained one in all but the training
    real         a training image of class y, drawn from those of all clients
    noise        independent pixels from N(0, 1), as normalised ones, whatever y is

The worth of a generator's training shows between "untrained" and "real". No server could run
"real": it reads the clients' data (`Method.sees_data`). It is the ceiling of a table: where it is
not far above the method without images, no generator can be, and ablations of one mean nothing.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.batches import inputs_at
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.supervised import count_labels
from fedjax_ht.models.conditional import ConditionalGenerator
from fedjax_ht.models.norm import MOMENTUM

Images = Literal["generator", "untrained", "real", "noise"]
WITH_GENERATOR = ("generator", "untrained")
PASSES = 30  # batches for the statistics of an untrained generator


class Pool(NamedTuple):
    """Training images by class.

    Attributes:
      order: int32 [max], indices into `Data.inputs`, class after class, padding last.
      first: int32 [C], the position in `order` of a class's first image.
      count: int32 [C], the number of a class's images.
    """

    order: jax.Array
    first: jax.Array
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def make_pool(data: Data, num_classes: int) -> Pool:
    """Sorts the samples of the split "train" by class."""
    indices, count = data.splits["train"]
    # Padding gets a class of its own, behind the others.
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


def settle(
    module: ConditionalGenerator, generator: PyTree, batch_size: int, key: jax.Array
) -> PyTree:
    """Sets a generator's running statistics to those of its own outputs, over all classes alike.

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
    # The first statistics are of no outputs, and their variance, 1, is far above these: the share
    # of them that is left is taken out.
    stats = jax.tree.map(lambda a, b: (b - left * a) / (1 - left), first, last["batch_stats"])
    return last | {"batch_stats": stats}

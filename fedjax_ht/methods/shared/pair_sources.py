"""Sources of FedKTL's pairs other than prototypes: the ablation and the controls of its transfer.

    labels: latents of random classes of a conditional generator, drawn anew in every round ("+CS"
            of FedKTL's Table 7)
    valid:  one valid latent per class, drawn in the first round, and its image: pairs that belong
            together, of no client's data
    noise:  noise for image and latent, drawn in the first round: pairs that do not belong together

Nothing is uploaded and F is not used; clients train on the pairs as on others.
"""

from typing import Literal

import jax

from fedjax_ht.core.trees import PyTree
from fedjax_ht.generators import Generator
from fedjax_ht.generators.units import SAMPLES

Source = Literal["prototypes", "labels", "valid", "noise"]
FIXED = ("valid", "noise")  # drawn once


def latents_of(
    source: Source, generator: Generator, frozen: PyTree, key: jax.Array, num_classes: int
) -> jax.Array:
    """Draws one latent per class.

    Args:
      source: the source of latents, "labels", "valid" or "noise"; those of "noise" are normal, with
        the mean and the deviations of valid latents.
      generator: the generator that draws valid latents.
      frozen: the generator's variables.
      key: the key of the draws.
      num_classes: number of classes, C.

    Returns:
      float32 [C, H].
    """
    if source == "labels":
        assert generator.conditional is not None  # the method has refused other generators
        classes = jax.random.permutation(jax.random.key(0), generator.num_labels)[:num_classes]
        return generator.conditional(frozen, key, classes)
    if source == "valid":
        return generator.sample_w(frozen, key, num_classes)
    w = generator.sample_w(frozen, key, SAMPLES)
    noise = jax.random.normal(jax.random.fold_in(key, 1), (num_classes, w.shape[1]))
    return w.mean(0) + w.std(0) * noise


def noise_images(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws images of independent numbers, uniform in [0, 1): float32 of this shape."""
    return jax.random.uniform(jax.random.fold_in(key, 2), shape)

"""What FedKTL's images and latents are made of instead of prototypes: the ablation and the controls
of its transfer.

labels: latents of random classes of a conditional generator, drawn anew in every round ("+CS" of
  FedKTL's Table 7).
valid:  one valid latent a class, drawn in the first round, and its image: pairs that belong
  together, of nobody's data.
noise:  noise for image and latent, drawn in the first round: pairs that do not belong together.

Nothing is uploaded, F is not used; what a client does with the pairs is the same.
"""

from typing import Literal

import jax

from fedjax_ht.core.method import PyTree
from fedjax_ht.generators import Generator
from fedjax_ht.generators.units import SAMPLES

Source = Literal["prototypes", "labels", "valid", "noise"]
FIXED = ("valid", "noise")  # drawn once


def latents_of(
    source: Source, generator: Generator, frozen: PyTree, key: jax.Array, num_classes: int
) -> jax.Array:
    """One latent a class, float32 [C, H]. Of "noise" they are normal, with w's mean and
    deviations."""
    if source == "labels":
        classes = jax.random.permutation(jax.random.key(0), generator.num_labels)[:num_classes]
        return generator.conditional(frozen, key, classes)
    if source == "valid":
        return generator.sample_w(frozen, key, num_classes)
    w = generator.sample_w(frozen, key, SAMPLES)
    return w.mean(0) + w.std(0) * jax.random.normal(
        jax.random.fold_in(key, 1), (num_classes, w.shape[1])
    )


def noise_images(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Every number uniform in [0, 1), float32 of this shape."""
    return jax.random.uniform(jax.random.fold_in(key, 2), shape)

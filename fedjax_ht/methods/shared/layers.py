"""The layers of a model, whose entries are compared with each other."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.norms import in_norms

Compared = Literal["model", "layer"]


def layers_of(bucket: Bucket, params: PyTree, compared: Compared) -> tuple[PyTree, int]:
    """Numbers the layers within which entries are compared.

    Args:
      bucket: the bucket of the model.
      params: parameters of the model, {"base", "head"}.
      compared: "model" takes the whole model for one layer; by "layer" the head is one, and each
        module directly below the extractor.

    Returns:
      The number of its layer for each leaf of the parameters, -1 for leaves of norms; and how many
      layers there are.
    """
    numbers: dict[tuple[str, ...], int] = {}

    def number(path, norm: bool) -> int:
        if norm:
            return -1
        names = tuple(entry.key for entry in path)
        layer = names[: 2 if names[0] == "base" else 1] if compared == "layer" else ()
        return numbers.setdefault(layer, len(numbers))

    return jax.tree_util.tree_map_with_path(number, in_norms(bucket, params)), len(numbers)


def magnitudes(layers: tuple[PyTree, int], params: PyTree) -> list[list[jax.Array]]:
    """Returns the magnitudes of each layer's leaves outside of norms; `layers` is `layers_of`."""
    numbers, count = layers
    of_layers: list[list[jax.Array]] = [[] for _ in range(count)]
    for leaf, number in zip(jax.tree.leaves(params), jax.tree.leaves(numbers), strict=True):
        if number >= 0:
            of_layers[number].append(jnp.abs(leaf))
    return of_layers

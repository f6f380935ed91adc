"""Two rules that classify by a client's features only, without training and for every method.

    own_mean      the class whose mean feature, over the client's training samples, is nearest
    neighbours    the class with the largest weight among the k nearest training samples, each with
                  weight exp(-d^2 / K), for features of width K (Marfoq et al., ICML 2022, without
                  the model's own scores)

Clients without training samples make no prediction.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from fedjax_ht.core.batches import Batch, class_means, class_sums, forward_batch, take_batch
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import Array, PyTree
from fedjax_ht.ops import squared_distance


def neighbour_rules(
    neighbours: int,
    features: Callable[[PyTree, Bool[Array, " B"]], Float[Array, "B K"]],
    data: Data,
    num_classes: int,
) -> Callable[[PyTree, Bool[Array, " B"]], dict[str, Float[Array, "B C"]]]:
    """Makes the function (x, mask) -> {rule: scores} of the two rules.

    Args:
      neighbours: k.
      features: (x, mask) -> the features in which the client compares samples.
      data: the client's view of the data; memory holds the features of its training samples.
      num_classes: C.
    """
    own, size = data.splits["train"], forward_batch()
    places = own.indices.shape[0]
    k = min(neighbours, places)

    def of_batch(start):
        batch = take_batch(data, own.indices, own.count, start, size)
        return features(batch.x, batch.mask)

    rows = lax.map(of_batch, jnp.arange(0, places, size))
    rows = rows.reshape(-1, rows.shape[-1])[:places]
    labels, real = data.labels[own.indices], jnp.arange(places) < own.count
    rows = jnp.where(real[:, None], rows, 0)
    sums = class_sums(rows, Batch((), labels, real), num_classes)
    means = class_means(sums)

    def scores(x: PyTree, mask: Bool[Array, " B"]) -> dict[str, Float[Array, "B C"]]:
        queries = features(x, mask)
        nearest_mean = jnp.where(sums.counts > 0, -squared_distance(queries, means), -jnp.inf)
        exponents = -squared_distance(queries, rows) / rows.shape[-1]
        nearness, which = lax.top_k(jnp.where(real, exponents, -jnp.inf), k)
        # Far from all samples, every exp(-d^2 / K) underflows to 0, but their softmax does not.
        shares = jax.nn.softmax(nearness, -1)
        of_class = jax.nn.one_hot(labels[which], num_classes)
        votes = jnp.where(own.count > 0, jnp.sum(shares[..., None] * of_class, 1), -jnp.inf)
        return {"own_mean": nearest_mean, "neighbours": votes}

    return scores

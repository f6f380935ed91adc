"""Training on the server: epochs of mini-batches over the valid rows, as one compiled loop."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Bool, Float, Key

from fedjax_ht.core.batches import shuffled
from fedjax_ht.core.samples import Split
from fedjax_ht.core.trees import Array, PyTree


def compact(valid: Bool[Array, " M"]) -> Split:
    """Lists the valid rows as a split, so that padding between them has no effect.

    Args:
      valid: bool [M], True for the rows to list.

    Returns:
      Indices int32 [M], valid rows first and in order, and their count.
    """
    # A stable sort by the flag has a static length, unlike a list of the valid rows.
    indices = jnp.argsort(~valid, stable=True).astype(jnp.int32)
    return Split(indices, jnp.sum(valid, dtype=jnp.int32))


class RowTraining(NamedTuple):
    """Recipe of training on rows.

    Attributes:
      optimizer: the optimiser; its state is reinitialised at each call.
      epochs: passes over the valid rows.
      batch_size: number B of rows per batch.
      drop_single: True skips an epoch's last batch if it has a single row (and B is more than 1),
        as torch code does, since torch's batch norm rejects single rows.
    """

    optimizer: optax.GradientTransformation
    epochs: int
    batch_size: int
    drop_single: bool = False


def train_on_rows(
    training: RowTraining,
    loss_fn: Callable[[PyTree, PyTree, Bool[Array, " B"], Key[Array, ""]], Float[Array, ""]],
    params: PyTree,
    rows: PyTree,
    valid: Bool[Array, " M"],
    *,
    key: Key[Array, ""],
) -> tuple[PyTree, Float[Array, ""]]:
    """Trains parameters on the valid rows, reshuffled in each epoch.

    The last batch of an epoch is masked. The number of steps depends on the number of valid rows at
    run time.

    Args:
      training: the recipe.
      loss_fn: (params, batch of rows, mask bool [B], key) -> scalar.
      params: the parameters to train.
      rows: pytree with leading axis [M], in an order that does not depend on buckets or padding.
      valid: bool [M], True for the rows to train on.
      key: the key of shuffles and losses.

    Returns:
      params, and the mean loss over the last epoch (0 if there was no step).
    """
    optimizer, epochs, batch_size, drop_single = training
    source = compact(valid)
    batches = (source.count + batch_size - 1) // batch_size
    if drop_single and batch_size > 1:
        batches = batches - (source.count % batch_size == 1)
    shuffle_key, loss_key = jax.random.split(key)

    def epoch(number, carry):
        order = shuffled(jax.random.fold_in(shuffle_key, number), source)

        def step(i, carry):
            params, state, total = carry
            position = i * batch_size + jnp.arange(batch_size)
            # A position past the end reads an arbitrary row, which is masked.
            index = order[jnp.minimum(position, order.shape[0] - 1)]
            batch = jax.tree.map(lambda x: x[index], rows)
            step_key = jax.random.fold_in(loss_key, number * batches + i)
            loss, gradients = jax.value_and_grad(loss_fn)(
                params, batch, position < source.count, step_key
            )
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, total + loss

        params, state, _ = carry
        return lax.fori_loop(0, batches, step, (params, state, jnp.float32(0)))

    start = (params, optimizer.init(params), jnp.float32(0))
    params, _, total = lax.fori_loop(0, epochs, epoch, start)
    return params, total / jnp.maximum(batches, 1)

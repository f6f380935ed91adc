"""A server that trains on what it received: epochs of mini-batches over the valid rows, as one
compiled loop."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.local_training import shuffled
from fedjax_ht.core.method import PyTree, Split


def compact(valid: jax.Array) -> Split:
    """Indices of the rows where valid [M] is True, in order and first, so that padding between them
    changes nothing."""
    return Split(
        jnp.argsort(~valid, stable=True).astype(jnp.int32), jnp.sum(valid, dtype=jnp.int32)
    )


def train_on_rows(
    optimizer: optax.GradientTransformation,
    loss_fn: Callable[[PyTree, PyTree, jax.Array, jax.Array], jax.Array],
    params: PyTree,
    rows: PyTree,
    valid: jax.Array,
    key: jax.Array,
    epochs: int,
    batch_size: int,
    drop_single: bool = False,
) -> tuple[PyTree, jax.Array]:
    """Trains `params` on the valid rows, shuffled anew each epoch; the last batch of an epoch is
    masked.

    The number of steps follows the number of valid rows at run time.

    Args:
      optimizer: made new at each call.
      loss_fn: (params, batch of rows, mask bool [B], key) -> scalar.
      params: what is trained.
      rows: pytree with leading axis [M], in an order that does not depend on buckets or padding.
      valid: bool [M].
      key: folds into shuffles and losses.
      epochs: passes over the valid rows.
      batch_size: B.
      drop_single: leave an epoch's last batch out where a single row is left for it (and B is more
        than 1), as code for torch does, whose batch norm refuses one row.

    Returns:
      params, and the mean loss over the last epoch (0 if there was no step).
    """

    def stateless(params, stats, batch, mask, key):
        return loss_fn(params, batch, mask, key), stats

    params, _, loss = train_with_stats(
        optimizer, stateless, params, (), rows, valid, key, epochs, batch_size, drop_single
    )
    return params, loss


def train_with_stats(
    optimizer: optax.GradientTransformation,
    loss_fn: Callable[[PyTree, PyTree, PyTree, jax.Array, jax.Array], tuple[jax.Array, PyTree]],
    params: PyTree,
    stats: PyTree,
    rows: PyTree,
    valid: jax.Array,
    key: jax.Array,
    epochs: int,
    batch_size: int,
    drop_single: bool = False,
) -> tuple[PyTree, PyTree, jax.Array]:
    """`train_on_rows` of a model that keeps batch statistics.

    Args and returns as there, with `stats` behind `params`: loss_fn is (params, stats, batch, mask,
    key) -> (scalar, stats).
    """
    source = compact(valid)
    batches = (source.count + batch_size - 1) // batch_size
    if drop_single and batch_size > 1:
        batches = batches - (source.count % batch_size == 1)
    shuffle_key, loss_key = jax.random.split(key)

    def epoch(number, carry):
        order = shuffled(jax.random.fold_in(shuffle_key, number), source)

        def step(i, carry):
            params, stats, state, total = carry
            position = i * batch_size + jnp.arange(batch_size)
            index = order[jnp.minimum(position, order.shape[0] - 1)]
            batch = jax.tree.map(lambda x: x[index], rows)
            step_key = jax.random.fold_in(loss_key, number * batches + i)
            differentiate = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, stats), gradients = differentiate(
                params, stats, batch, position < source.count, step_key
            )
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), stats, state, total + loss

        params, stats, state, _ = carry
        return lax.fori_loop(0, batches, step, (params, stats, state, jnp.float32(0)))

    start = (params, stats, optimizer.init(params), jnp.float32(0))
    params, stats, _, total = lax.fori_loop(0, epochs, epoch, start)
    return params, stats, total / jnp.maximum(batches, 1)

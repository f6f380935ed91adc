"""The one place where clients are batched: how a bucket's participants run through a function of
one client."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_ht.core.bounds import Count
from fedjax_ht.core.method import PyTree

Lanes = Count | Literal["auto"] | Mapping[str, Count]
"""Clients that run side by side: a number for all buckets, one a bucket, or what `simulation.lanes`
makes of it."""


class Schedule(NamedTuple):
    """Participants of one bucket in the order in which they run, padded to a fixed capacity P.

    Attributes:
      slots: int32 [P], position in the stacked states; out of range for padding.
      own: pytree with leading axis P, each client's own arguments.
      count: int32 scalar, how many are real; they come first.
    """

    slots: jax.Array
    own: PyTree
    count: jax.Array


def capacity_for(participants: int, bucket_size: int, lanes: int) -> tuple[int, int]:
    """Rows to provide in a bucket so that any draw of participants fits, a multiple of the lanes;
    and the lanes, of which no more are left than there are rows."""
    most = max(1, min(participants, bucket_size))
    width = min(lanes, most)
    return -(-most // width) * width, width


def longest_first(steps: np.ndarray) -> np.ndarray:
    """Order of participants by number of steps, so that lanes of one chunk finish together. int [P]
    -> int [P]."""
    return np.argsort(-np.asarray(steps), kind="stable")


def wasted_lane_steps(steps: np.ndarray, lanes: int) -> float:
    """Share of lane-steps in which a lane has finished and waits for its chunk, for participants in
    running order."""
    padded = np.zeros(-(-len(steps) // lanes) * lanes, np.int64)
    padded[: len(steps)] = steps
    total = padded.reshape(-1, lanes).max(1).sum() * lanes
    return float(1 - padded.sum() / total) if total else 0.0


def each(fn: Callable[[PyTree], PyTree], xs: PyTree, apart: bool = False) -> PyTree:
    """fn over the leading axis of xs, stacked: one after another on CPU, or where `apart` asks for
    it, else vmapped; a single one as it is."""
    if jax.tree.leaves(xs)[0].shape[0] == 1:
        return jax.tree.map(lambda x: jnp.asarray(x)[None], fn(jax.tree.map(lambda x: x[0], xs)))
    return lax.map(fn, xs) if apart or jax.default_backend() == "cpu" else jax.vmap(fn)(xs)


def run_clients(
    fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    states: PyTree,
    schedule: Schedule,
    lanes: int,
) -> tuple[PyTree, PyTree]:
    """Runs `fn(state, own) -> (new state, output)` over a schedule, `lanes` clients at a time.

    The number of chunks is dynamic: padding beyond the last real chunk costs nothing, so one
    compiled function serves any number of participants.

    Args:
      fn: for one client; padding reaches it too where it shares a chunk with real ones.
      states: stacked [n, ...]; only the schedule's slots change, in place where the buffers are
        donated.
      schedule: P is a multiple of `lanes`.
      lanes: 1 calls `fn` without a client axis.

    Returns:
      The states, and the outputs with a leading axis [P] in schedule order, zeros for padding.
    """
    # no call is left of it; it is traced once, for its shapes and to run
    fn = jax.jit(fn, inline=True)

    def one(tree):
        return jax.tree.map(lambda x: x[0], tree)

    output_shapes = jax.eval_shape(
        lambda states, own: fn(one(states), one(own))[1], states, schedule.own
    )
    capacity = schedule.slots.shape[0]
    outputs = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), output_shapes)
    batched = fn if lanes == 1 else jax.vmap(fn)

    def read(x, start):
        return x[start] if lanes == 1 else lax.dynamic_slice_in_dim(x, start, lanes)

    def chunk(i, carry):
        states, outputs = carry
        start = i * lanes
        slot, own = jax.tree.map(lambda x: read(x, start), (schedule.slots, schedule.own))
        new, out = batched(
            jax.tree.map(lambda x: x[jnp.minimum(slot, x.shape[0] - 1)], states), own
        )
        states = jax.tree.map(lambda x, y: x.at[slot].set(y, mode="drop"), states, new)
        where = start if lanes == 1 else start + jnp.arange(lanes)
        return states, jax.tree.map(lambda x, y: x.at[where].set(y), outputs, out)

    chunks = (schedule.count + lanes - 1) // lanes
    return lax.fori_loop(0, chunks, chunk, (states, outputs))

"""Runs a bucket's participants through a function of one client; nothing else batches clients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int, Real

from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree, take


class Schedule(NamedTuple):
    """Participants of one bucket in running order, padded to a fixed capacity P.

    Attributes:
      slots: int32 [chunks, lanes], P in all: each client's index in the stacked states; clients of
        a chunk run in parallel. Out of range for padding.
      arguments: pytree with leading axis P, the arguments of each client's function besides its
        state.
      count: int32 [devices], number of real clients on each device, which precede padding; an int32
        scalar suffices for a program on one device.
    """

    slots: Int[HostArray, "chunks lanes"]
    arguments: PyTree
    count: Int[HostNumber, "*devices"]  # pyright: ignore[reportIncompatibleMethodOverride]


def capacity_for(participants: int, bucket_size: int, lanes: int) -> tuple[int, int]:
    """Returns the rows of a schedule that holds any draw of participants, and its lanes.

    Args:
      participants: number of clients in a round, over all buckets.
      bucket_size: number of clients in the bucket.
      lanes: requested number of lanes; at most the number of rows is used.

    Returns:
      The capacity P, a multiple of the lanes; and the lanes.
    """
    most = max(1, min(participants, bucket_size))
    lanes = min(lanes, most)
    return -(-most // lanes) * lanes, lanes


def longest_first(steps: Real[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
    """Orders participants by number of steps, so that lanes of one chunk finish together.

    Args:
      steps: int or float [P], each participant's steps or their cost.

    Returns:
      int [P], indices into `steps`; ties keep their order.
    """
    return np.argsort(-np.asarray(steps), kind="stable")


def each(fn: Callable[[PyTree], PyTree], xs: PyTree, apart: bool = False) -> PyTree:
    """Applies `fn` over the leading axis of `xs` and stacks the results.

    Args:
      fn: the function, applied to one entry at a time.
      xs: pytree with a leading axis.
      apart: True runs one entry after another on every device, as CPU always does; False vmaps.
    """
    if jax.tree.leaves(xs)[0].shape[0] == 1:
        # A single entry needs neither a loop nor a batch axis.
        return jax.tree.map(lambda x: jnp.asarray(x)[None], fn(take(xs, 0)))
    if apart or jax.default_backend() == "cpu":
        return lax.map(fn, xs)
    return jax.vmap(fn)(xs)


def run_clients(
    fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    states: PyTree,
    schedule: Schedule,
) -> tuple[PyTree, PyTree]:
    """Runs `fn(state, arguments) -> (new state, output)` over a schedule, chunk by chunk.

    The number of chunks is dynamic: padding beyond the last real chunk costs nothing, so one
    compiled function serves any number of participants.

    Args:
      fn: the function of one client; it also runs on padding in chunks with real clients.
      states: client states stacked [n, ...]; only the schedule's slots change, in place if the
        buffers are donated.
      schedule: the schedule of one device; with one lane `fn` is called without a client axis.

    Returns:
      The states, and the outputs with a leading axis [P] in schedule order, zeros for padding.
    """
    # Traced once, both for shapes and to run; inlined, so that the program has no call.
    fn = jax.jit(fn, inline=True)
    lanes = schedule.slots.shape[1]
    # A client axis of one would turn matrix products into batched ones.
    batched = fn if lanes == 1 else jax.vmap(fn)
    form = jax.eval_shape(lambda x, y: fn(take(x, 0), take(y, 0))[1], states, schedule.arguments)
    outputs = jax.tree.map(lambda x: jnp.zeros((schedule.slots.size, *x.shape), x.dtype), form)

    def chunk(i, carry):
        states, outputs = carry
        start = i * lanes
        slots = schedule.slots[i, 0] if lanes == 1 else schedule.slots[i]
        arguments = _rows(schedule.arguments, start, lanes)
        new_states, new_outputs = batched(at_slots(states, slots), arguments)
        # Indexed writes into the loop's carry let XLA update the stacked states in place. Padded
        # rows have slots out of range, and are dropped.
        states = jax.tree.map(lambda x, y: x.at[slots].set(y, mode="drop"), states, new_states)
        rows = start if lanes == 1 else start + jnp.arange(lanes)
        outputs = jax.tree.map(lambda x, y: x.at[rows].set(y), outputs, new_outputs)
        return states, outputs

    # A device's part of the counts has one entry.
    chunks = (jnp.reshape(schedule.count, ()) + lanes - 1) // lanes
    return lax.fori_loop(0, chunks, chunk, (states, outputs))


def at_slots(states: PyTree, slots: Int[HostArray, "*lanes"]) -> PyTree:
    """Reads the states at `slots`; out-of-range slots of padding read the last state."""
    return jax.tree.map(lambda x: x[jnp.minimum(slots, x.shape[0] - 1)], states)


def _rows(tree: PyTree, start: Int[Array, ""], lanes: int) -> PyTree:
    """Reads the rows of a chunk; with a single lane, one row without the lane axis."""
    if lanes == 1:
        return take(tree, start)
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, lanes), tree)

"""Recurrent layers along time, in chunks of steps; chunks that are padding for all are skipped.

One matrix product computes the gates' inputs of a chunk before its steps. In the backward pass,
everything that depends on stored activations alone is computed for the chunk at once, as are the
gradients of its inputs and of the weights. A step is left with one product and a few
multiplications.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from fedjax_ht.ops.arrays import Array
from fedjax_ht.ops.products import product

# steps; a product of this many rows times the batch runs at full speed, with little padding
CHUNK = 20
UNROLL = 4  # steps per turn of the loop: 3 to 6 % less time on CPU
PyTree = Any


class RecurrentWeights(NamedTuple):
    """Weights of a layer of G gates and H units.

    Attributes:
      kernel, bias: weights of the inputs, float [D, G H] and [G H].
      recurrent, recurrent_bias: weights of the previous state, float [H, G H] and [G H].
    """

    kernel: Array
    bias: Array
    recurrent: Array
    recurrent_bias: Array


class _Cell(NamedTuple):
    """The two passes through a chunk of one kind of layer.

    Attributes:
      states: number of arrays [B, H] that a chunk passes on, the first of them h.
      forward: (weights, states, x [C, B, D]) -> (states, (h [C, B, H], arrays for `backward`)).
      backward: (weights, gradients of the states after it, gradient of h, x, these arrays) ->
        (gradients of the states before it, of x, of the weights).
    """

    states: int
    forward: Callable[..., Any]
    backward: Callable[..., Any]


def lstm(
    weights: RecurrentWeights, x: Float[Array, "T B D"], steps: Int[Array, ""]
) -> Float[Array, "T B H"]:
    """Runs long short-term memory with a forget gate, as torch defines it.

    After Hochreiter and Schmidhuber, 1997:
    i, f, o = sigmoid, g = tanh of (x_t kernel + bias + h_{t-1} recurrent + recurrent_bias);  c_t =
    f c_{t-1} + i g; h_t = o tanh(c_t)

    Args:
      weights: gates in the order i, f, g, o.
      x: float [T, B, D].
      steps: int32 scalar, not differentiated; from this step on all is padding, where h is
        undefined and gets no gradient.

    Returns:
      h float [T, B, H]; it starts from zeros.
    """
    return _layer(_LSTM, weights, x, steps)


def gru(
    weights: RecurrentWeights, x: Float[Array, "T B D"], steps: Int[Array, ""]
) -> Float[Array, "T B H"]:
    """Runs gated recurrent units as torch defines them: the reset gate acts after the product.

    After Cho et al., EMNLP 2014:
    p = x_t kernel + bias, q = h_{t-1} recurrent + recurrent_bias;  r, z = sigmoid(p + q), n =
    tanh(p + r q); h_t = (1 - z) n + z h_{t-1}

    Args:
      weights: gates in the order r, z, n.
      x, steps: inputs and number of steps, as for `lstm`.

    Returns:
      h float [T, B, H]; it starts from zeros.
    """
    return _layer(_GRU, weights, x, steps)


@jax.custom_batching.custom_vmap
def longest(lengths: Int[Array, "..."]) -> Int[Array, ""]:
    """Returns the largest of int32 [...]; under `vmap` that of all lanes.

    All clients then have the same number of steps, so that the loop's condition stays a scalar and
    chunks are really skipped.
    """
    return lengths.max()


@longest.def_vmap
def _longest_of_all(axis_size: int, in_batched: list[bool], lengths: Array) -> tuple[Array, bool]:
    return longest(lengths), False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layer(
    cell: _Cell, weights: RecurrentWeights, x: Float[Array, "T B D"], steps: Int[Array, ""]
) -> Float[Array, "T B H"]:
    return _run(cell, weights, x, steps, store=False)[0]


def _layer_forward(cell: _Cell, weights: RecurrentWeights, x: Array, steps: Array):
    h, stored = _run(cell, weights, x, steps, store=True)
    return h, (weights, x, steps, stored)


def _run(cell: _Cell, weights: RecurrentWeights, x: Array, steps: Array, store: bool):
    """Returns h [T, B, H], and the arrays stored for the gradient, by chunk."""

    def chunk(states, x):
        states, (h, stored) = cell.forward(weights, states, x)
        return states, (h, stored if store else ())

    start = (jnp.zeros((x.shape[1], weights.recurrent.shape[0]), x.dtype),) * cell.states
    h, stored = _by_chunks(chunk, start, _chunks(x), steps)[1]
    return _joined(h, len(x)), stored


def _layer_backward(cell: _Cell, saved: tuple, upstream: Array):
    weights, x, steps, stored = saved

    def chunk(carry, inputs):
        states, total = carry
        states, to_x, to_weights = cell.backward(weights, states, *inputs)
        return (states, jax.tree.map(jnp.add, total, to_weights)), to_x

    start = (jnp.zeros_like(upstream[0]),) * cell.states, jax.tree.map(jnp.zeros_like, weights)
    inputs = _chunks(upstream), _chunks(x), stored
    (_, total), to_x = _by_chunks(chunk, start, inputs, steps, reverse=True)
    return total, _joined(to_x, len(x)), None


_layer.defvjp(_layer_forward, _layer_backward)


def _by_chunks(chunk: Callable, start: PyTree, inputs: PyTree, steps: Array, reverse: bool = False):
    """Scans over chunks; those at `steps` or later change nothing and return zeros.

    On a GPU, where a branch waits for the host, all chunks run.
    """

    def zeros(x):
        return jnp.zeros(x.shape, x.dtype)

    def skip(carry, part):
        return carry, jax.tree.map(zeros, jax.eval_shape(chunk, carry, part)[1])

    def body(carry, item):
        first, part = item
        if jax.default_backend() == "gpu":
            return chunk(carry, part)
        return lax.cond(first < steps, chunk, skip, carry, part)

    number, length = jax.tree.leaves(inputs)[0].shape[:2]
    return lax.scan(
        body, start, (jnp.arange(number, dtype=jnp.int32) * length, inputs), reverse=reverse
    )


def _chunks(x: Array) -> Array:
    """Cuts [T, ...] into [chunks, steps, ...], with zeros after the end."""
    length = min(CHUNK, len(x))
    x = jnp.pad(x, [(0, -len(x) % length), *[(0, 0)] * (x.ndim - 1)])
    return x.reshape(-1, length, *x.shape[1:])


def _joined(x: Array, length: int) -> Array:
    return x.reshape(-1, *x.shape[2:])[:length]


def _affine(x: Array, kernel: Array, bias: Array) -> Array:
    """Computes x kernel + bias, [C, B, D] -> [C, B, G], as one product."""
    return (product(x.reshape(-1, x.shape[-1]), kernel) + bias).reshape(*x.shape[:2], -1)


def _gradients(weights: RecurrentWeights, x: Array, before: Array, inner: Array, outer: Array):
    """Returns the gradients of a chunk's x and of the weights.

    Args:
      weights: weights of the layer.
      x: inputs of the chunk, float [C, B, D].
      before: h before each step, float [C, B, H].
      inner, outer: gradients of x kernel + bias and of h recurrent + recurrent_bias, [C, B, G H].
    """
    rows, before, inner, outer = (a.reshape(-1, a.shape[-1]) for a in (x, before, inner, outer))
    to_weights = RecurrentWeights(
        kernel=product(rows.T, inner),
        bias=inner.sum(0),
        recurrent=product(before.T, outer),
        recurrent_bias=outer.sum(0),
    )
    return product(inner, weights.kernel.T).reshape(x.shape), to_weights


def _lstm_chunk(weights: RecurrentWeights, states, x: Array):
    # sigmoid(x) = (tanh(x / 2) + 1) / 2, so that one tanh serves all gates; halving is exact.
    scale = jnp.repeat(jnp.array([0.5, 0.5, 1.0, 0.5], x.dtype), weights.recurrent.shape[0])
    offset, recurrent = 1 - scale, weights.recurrent * scale
    gates = _affine(x, weights.kernel * scale, (weights.bias + weights.recurrent_bias) * scale)

    def step(states, gates):
        h, c = states
        active = scale * jnp.tanh(gates + product(h, recurrent)) + offset
        i, f, g, o = jnp.split(active, 4, -1)
        new = f * c + i * g
        squashed = jnp.tanh(new)
        out = o * squashed
        return (out, new), (out, (h, c, active, squashed))

    return lax.scan(step, states, gates, unroll=UNROLL)


def _lstm_chunk_backward(weights: RecurrentWeights, states, upstream: Array, x: Array, stored):
    h, c, active, squashed = stored
    i, f, g, o = jnp.split(active, 4, -1)
    to_cell = o * (1 - squashed * squashed)
    to_gates = jnp.concatenate(
        [g * i * (1 - i), c * f * (1 - f), i * (1 - g * g), squashed * o * (1 - o)], -1
    )
    transposed = weights.recurrent.T

    def step(states, inputs):
        dh, dc = states
        upstream, to_cell, to_gates, f = inputs
        dh = dh + upstream
        dc = dc + dh * to_cell
        gates = jnp.concatenate([dc, dc, dc, dh], -1) * to_gates
        return (product(gates, transposed), dc * f), gates

    states, gates = lax.scan(
        step, states, (upstream, to_cell, to_gates, f), reverse=True, unroll=UNROLL
    )
    return states, *_gradients(weights, x, h, gates, gates)


def _gru_chunk(weights: RecurrentWeights, states, x: Array):
    width, recurrent = weights.recurrent.shape[0], weights.recurrent

    def step(states, p):
        (h,) = states
        q = product(h, recurrent) + weights.recurrent_bias
        opened = 0.5 * jnp.tanh(0.5 * (p[:, : 2 * width] + q[:, : 2 * width])) + 0.5
        r, z = jnp.split(opened, 2, -1)
        n = jnp.tanh(p[:, 2 * width :] + r * q[:, 2 * width :])
        out = n + z * (h - n)
        return (out,), (out, (h, opened, n, q[:, 2 * width :]))

    return lax.scan(step, states, _affine(x, weights.kernel, weights.bias), unroll=UNROLL)


def _gru_chunk_backward(weights: RecurrentWeights, states, upstream: Array, x: Array, stored):
    h, opened, n, q = stored
    r, z = jnp.split(opened, 2, -1)
    to_n = (1 - z) * (1 - n * n)
    to_opened = jnp.concatenate([to_n * q * r * (1 - r), (h - n) * z * (1 - z)], -1)
    to_outer, transposed = jnp.concatenate([to_opened, to_n * r], -1), weights.recurrent.T

    def step(states, inputs):
        (dh,) = states
        upstream, to_outer, z = inputs
        dh = dh + upstream
        outer = jnp.concatenate([dh, dh, dh], -1) * to_outer
        return (dh * z + product(outer, transposed),), (outer, dh)

    states, (outer, dh) = lax.scan(
        step, states, (upstream, to_outer, z), reverse=True, unroll=UNROLL
    )
    inner = jnp.concatenate([outer[..., : 2 * h.shape[-1]], dh * to_n], -1)
    return states, *_gradients(weights, x, h, inner, outer)


_LSTM = _Cell(2, _lstm_chunk, _lstm_chunk_backward)
_GRU = _Cell(1, _gru_chunk, _gru_chunk_backward)

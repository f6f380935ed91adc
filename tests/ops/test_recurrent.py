"""Recurrent layers beside a NumPy loop; gradients beside differences and JAX's own."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.ops import RecurrentWeights, gru, longest, lstm, recurrent
from tests.reference import recurrent as reference
from tests.reference.gradients import numerical_gradient

CELLS = {"lstm": (lstm, 4), "gru": (gru, 3)}
BATCH, INPUTS, WIDTH = 3, 2, 4


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(recurrent, "CHUNK", 4)
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def problem(cell, length, seed=0):
    rng, gates = np.random.default_rng(seed), CELLS[cell][1] * WIDTH
    shapes = (INPUTS, gates), (gates,), (WIDTH, gates), (gates,)
    return RecurrentWeights(*(rng.normal(size=shape) for shape in shapes)), rng.normal(
        size=(length, BATCH, INPUTS)
    )


def stepwise(cell, weights, x):
    return np.stack([getattr(reference, cell)(*weights, x[:, b]) for b in range(BATCH)], 1)


@pytest.mark.parametrize("length", [1, 4, 5, 9])  # around one chunk and two
@pytest.mark.parametrize("cell", CELLS)
def test_forward(cell, length):
    weights, x = problem(cell, length)
    states = jax.jit(CELLS[cell][0])(weights, x, jnp.int32(length))
    np.testing.assert_allclose(states, stepwise(cell, weights, x), atol=1e-12)


@pytest.mark.parametrize(("length", "steps"), [(3, 3), (9, 9), (9, 5)])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_by_central_differences(cell, length, steps):
    """The loss is a sum of the states before `steps`; padding follows them."""
    weights, x = problem(cell, length)
    weigh = np.random.default_rng(1).normal(size=(steps, BATCH, WIDTH))

    def loss(weights, x):
        return (CELLS[cell][0](weights, x, jnp.int32(steps))[:steps] * weigh).sum()

    to_weights, to_x = jax.jit(jax.grad(loss, (0, 1)))(weights, x)

    def slow(weights, x):
        return (stepwise(cell, weights, x)[:steps] * weigh).sum()

    np.testing.assert_allclose(to_x, numerical_gradient(lambda v: slow(weights, v), x), atol=1e-7)
    for name in RecurrentWeights._fields:
        want = numerical_gradient(
            lambda v, name=name: slow(weights._replace(**{name: v}), x), getattr(weights, name)
        )
        np.testing.assert_allclose(getattr(to_weights, name), want, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("cell", CELLS)
def test_steps_that_are_padding_are_left_out(cell):
    """Chunks of padding alone: from the one on that begins at `steps` or behind it."""
    weights, x = problem(cell, 12)
    layer, expected = jax.jit(CELLS[cell][0]), stepwise(cell, weights, x)
    for steps, computed in ((0, 0), (1, 4), (4, 4), (5, 8), (8, 8), (9, 12), (12, 12)):
        states = layer(weights, x, jnp.int32(steps))
        np.testing.assert_allclose(states[:computed], expected[:computed], atol=1e-12)
        assert not states[computed:].any()


@pytest.mark.parametrize("cell", CELLS)
def test_clients_side_by_side(cell):
    """Every client has weights and lengths of its own; one number of steps serves all."""
    clients = [problem(cell, 10, seed) for seed in range(3)]
    weights, x = jax.tree.map(lambda *leaves: np.stack(leaves), *clients)
    lengths = np.array([[1, 3, 2], [5, 4, 1], [2, 2, 7]])

    def loss(weights, x, lengths):
        h = CELLS[cell][0](weights, x, longest(lengths))
        return (h[lengths - 1, np.arange(BATCH)] ** 2).sum()

    both = jax.jit(jax.vmap(jax.value_and_grad(loss)))
    value, gradients = both(weights, x, lengths)
    for i, (client_weights, client_x) in enumerate(clients):
        want, want_gradients = jax.value_and_grad(loss)(client_weights, client_x, lengths[i])
        np.testing.assert_allclose(value[i], want, atol=1e-12)
        of_client = jax.tree.map(lambda leaf, i=i: leaf[i], gradients)
        chex.assert_trees_all_close(of_client, want_gradients, rtol=1e-7, atol=1e-11)
    assert "cond" in str(jax.make_jaxpr(both)(weights, x, lengths))

"""Compression by singular values, against NumPy's decomposition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked, wire_elements
from fedjax_ht.methods import fedkd
from fedjax_ht.models.layers import uniform_fan_in
from tests.reference import low_rank

SHAPES = {"tall": (30, 8), "broad": (7, 40), "conv": (3, 3, 4, 20), "bias": (12,)}
FORMS = ("paper", "released")
compressed = jax.jit(fedkd.compress, static_argnums=2)
decompressed = jax.jit(fedkd.decompress, static_argnums=1)


def arrays(decay: float = 0.5) -> dict[str, np.ndarray]:
    """Random arrays whose singular values fall by `decay` from one to the next."""
    rng, tree = np.random.default_rng(0), {}
    for name, shape in SHAPES.items():
        matrix = rng.normal(size=(int(np.prod(shape[:-1])), shape[-1]))
        if len(shape) > 1:
            u, _, v = np.linalg.svd(matrix, full_matrices=False)
            matrix = (u * decay ** np.arange(u.shape[1])) @ v
        tree[name] = matrix.reshape(shape).astype(np.float32)
    return tree


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("energy", [0.5, 0.95, 0.98, 0.999])
def test_received_arrays_and_their_cost_equal_the_reference(energy, form):
    tree = arrays()
    message = compressed(tree, energy, form)
    got = decompressed(message, form)
    for name, array in tree.items():
        want, numbers = low_rank.compress(array, energy, form)
        np.testing.assert_allclose(got[name], want, rtol=0, atol=2e-6)
        assert wire_elements(message[name]).payload_elements == numbers
    assert wire_elements(message["tall"]).payload_elements < 30 * 8


@pytest.mark.parametrize("energy", [0.5, 0.7, 0.95, 0.99999])
def test_released_kernels_are_cut_one_by_one_and_never_cost_more_than_raw(energy):
    """Kernels are 5x5, of ranks 1 to 5; two components are 22 numbers for 25."""
    rng = np.random.default_rng(1)
    tree = {
        f"rank{k}": sum(np.multiply.outer(a, b) for a, b in rng.normal(size=(k, 2, 5)))
        for k in (1, 2, 3, 5)
    }
    tree = {
        name: kernel[:, :, None, None] * rng.normal(size=(2, 3)) for name, kernel in tree.items()
    }
    tree["small"] = rng.normal(size=(1, 1, 4, 6))
    tree = {name: kernel.astype(np.float32) for name, kernel in tree.items()}
    message = compressed(tree, energy, "released")
    got = decompressed(message, "released")
    for name, kernel in tree.items():
        want, numbers = low_rank.compress(kernel, energy, "released")
        np.testing.assert_allclose(got[name], want, rtol=0, atol=1e-5)
        assert wire_elements(message[name]).payload_elements == numbers <= kernel.size
        assert np.abs(got[name]).max() > 0
    assert wire_elements(message["rank1"]).payload_elements == 6 * 11
    np.testing.assert_array_equal(got["small"], tree["small"])


def test_components_are_the_singular_ones():
    for name in ("tall", "broad"):
        matrix = arrays()[name]
        left, values, right = fedkd.singular_components(jnp.asarray(matrix))
        rank = min(matrix.shape)
        np.testing.assert_allclose(values, 0.5 ** np.arange(rank), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose((left * values) @ right.T, matrix, rtol=0, atol=1e-6)
        np.testing.assert_allclose(left[:, :4].T @ left[:, :4], np.eye(4), atol=1e-4)
        np.testing.assert_allclose(right[:, :4].T @ right[:, :4], np.eye(4), atol=1e-4)
        # signs do not depend on the solver's mood
        again = fedkd.singular_components(jnp.asarray(-matrix))
        smaller = 2 if matrix.shape[0] >= matrix.shape[1] else 0
        np.testing.assert_allclose(again[smaller], (left, values, right)[smaller], atol=1e-4)


def test_everything_is_whole_where_components_would_be_no_smaller():
    """Full rank always; and at rank k as soon as k (M + N + 1) reaches M N."""
    tree = arrays(decay=1.0)  # equal singular values
    for energy in (0.999, 1.0):
        message = compressed(tree, energy)
        assert wire_elements(message).payload_elements == sum(x.size for x in tree.values())
        jax.tree.map(np.testing.assert_array_equal, fedkd.decompress(message), tree)
        assert not message["tall"].components.mask.any()


def test_everything_is_whole_at_energy_one_whatever_its_rank():
    """Rounding decides which singular values of a rank-one matrix are zero. If the energy is known,
    nothing is decomposed: the message is the same, and has a gradient."""
    tree = {
        "kernel": np.random.default_rng(0).normal(size=(3, 3, 4, 6)).astype(np.float32),
        "single": np.zeros((16, 8), np.float32),
        "outer": np.outer(np.arange(16), np.arange(8)).astype(np.float32),
        "bias": np.ones(5, np.float32),
    }
    tree["single"][3, 4] = 1.0
    with_zeros = tree | {"zeros": np.zeros((6, 9), np.float32)}
    message = compressed(with_zeros, 1.0)
    for name, array in tree.items():
        assert wire_elements(message[name]).payload_elements == array.size, name
    jax.tree.map(np.testing.assert_array_equal, decompressed(message, "paper"), with_zeros)
    known = jax.jit(functools.partial(fedkd.compress, energy=1.0))(with_zeros)
    jax.tree.map(np.testing.assert_array_equal, known, message)

    def loss(tree):
        received = fedkd.decompress(fedkd.compress(tree, 1.0))
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(received))

    gradients = jax.jit(jax.grad(loss))(tree)
    for name, array in tree.items():
        np.testing.assert_allclose(gradients[name], 2 * array, rtol=1e-6)


def test_an_array_of_zeros_costs_nothing():
    message = compressed({"kernel": np.zeros((6, 9), np.float32)}, 0.95)
    cost = wire_elements(message)
    assert cost.payload_elements == cost.metadata_elements == 0
    np.testing.assert_array_equal(fedkd.decompress(message)["kernel"], np.zeros((6, 9)))


@pytest.mark.parametrize("form", FORMS)
def test_components_that_are_not_sent_are_not_read(form):
    tree = arrays()
    message = compressed(tree, 0.95, form)

    def spoil(leaf: Masked) -> Masked:
        sent = leaf.mask.reshape(leaf.mask.shape + (1,) * (leaf.values.ndim - leaf.mask.ndim))
        return Masked(jnp.where(sent, leaf.values, jnp.nan), leaf.mask)

    spoiled = jax.tree.map(spoil, message, is_leaf=lambda x: isinstance(x, Masked))
    jax.tree.map(
        np.testing.assert_array_equal, decompressed(spoiled, form), decompressed(message, form)
    )


@pytest.mark.parametrize("form", FORMS)
def test_send_nothing_costs_nothing_and_has_the_structure_of_a_message(form):
    message, like = fedkd.send_nothing(arrays(), form), compressed(arrays(), 0.95, form)
    assert wire_elements(message).payload_elements == 0
    assert jax.tree.map(jnp.shape, message) == jax.tree.map(jnp.shape, like)


@pytest.mark.parametrize(
    ("shape", "fan_in", "rank"), [((1600, 512), 1600, 430), ((512, 100), 512, 88)]
)
def test_ranks_of_fresh_layers_of_the_papers_cnn(shape, fan_in, rank):
    """At T = 0.95 FedKD keeps 430 of 512 components of the hidden layer, 88 of 100 of the head."""
    layer = uniform_fan_in(jax.random.key(0), shape, fan_in)
    values = np.asarray(fedkd.singular_components(layer)[1], np.float64)
    share = np.cumsum(values**2) / np.sum(values**2)
    assert abs(int((share < 0.95).sum()) + 1 - rank) <= 1

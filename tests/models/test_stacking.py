"""Blocks under a scan compute the same as unrolled ones, and their variables convert both ways."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.models import stacking
from fedjax_ht.models.convnets import ResNet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.stacking import scan_blocks, stack_blocks, unstack_blocks

SHAPE = (20, 20, 1)
SCANNED = ResNet((3,), feature_dim=4, width=4, scan_from=2)
UNROLLED = SCANNED.clone(scan_from=3)


def shapes(module):
    return jax.eval_shape(lambda key: module.init(key, jnp.zeros((1, *SHAPE))), jax.random.key(0))


def randomised(module):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.uniform(0.5, 1, leaf.shape).astype(np.float32), shapes(module)
    )


def test_scanned_and_unrolled_blocks_give_the_same_features_gradients_and_statistics():
    x = np.random.default_rng(1).normal(size=(4, *SHAPE)).astype(np.float32)
    mask = np.array([True, True, True, False])

    def run(module, variables):
        def loss(params):
            out, changed = module.apply(
                {**variables, "params": params}, x, True, mask, mutable=["batch_stats"]
            )
            return (out * jnp.arange(1.0, 5.0))[mask].sum(), (out, changed["batch_stats"])

        gradient, (out, stats) = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
        return out, unstack_blocks(stats), unstack_blocks(gradient)

    variables = randomised(SCANNED)
    scanned, unrolled = run(SCANNED, variables), run(UNROLLED, unstack_blocks(variables))
    chex.assert_trees_all_close(scanned, unrolled, rtol=1e-4, atol=1e-4)


def test_scanned_norms_note_the_moments_of_their_inputs():
    x = np.random.default_rng(1).normal(size=(4, *SHAPE)).astype(np.float32)
    scanned = SCANNED.clone(norm="static_batch")
    variables = randomised(scanned)

    def moments(module, variables):
        _, noted = module.apply(variables, x, False, np.ones(4, bool), mutable=["intermediates"])
        return unstack_blocks(noted["intermediates"])

    unrolled = moments(UNROLLED.clone(norm="static_batch"), unstack_blocks(variables))
    chex.assert_trees_all_close(moments(scanned, variables), unrolled, rtol=1e-4, atol=1e-4)


def test_on_gpus_a_turn_runs_several_blocks_and_gives_the_same(monkeypatch):
    """With blocks left over and without, of variables in the same form."""
    x = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)
    one_by_one = jax.jit(Chain().init_with_output)(jax.random.key(0), x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for at_once in (2, 3, 7):
        monkeypatch.setattr(stacking, "ON_GPUS", at_once)
        run = jax.jit(Chain().init_with_output)
        assert str(run.trace(jax.random.key(0), x).jaxpr).count(f"unroll={at_once}")
        chex.assert_trees_all_close(run(jax.random.key(0), x), one_by_one, rtol=1e-5)


def test_variables_convert_both_ways():
    stacked = randomised(SCANNED)
    flat = unstack_blocks(stacked)
    assert jax.tree.map(np.shape, flat) == jax.tree.map(lambda leaf: leaf.shape, shapes(UNROLLED))
    expected = stacked["params"]["layer1_blocks"]["conv1"]["kernel"][1]
    np.testing.assert_array_equal(flat["params"]["layer1_2"]["conv1"]["kernel"], expected)
    jax.tree.map(np.testing.assert_array_equal, stack_blocks(flat, shapes(SCANNED)), stacked)
    jax.tree.map(np.testing.assert_array_equal, stack_blocks(flat, shapes(UNROLLED)), flat)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a_0", "a_1"), r"^'a_2' is missing among a_0, a_1$"),
        (("a_0", "a_1", "a_2", "a_3"), r"^'a_3' is not expected among a_0, a_1, a_2, a_3$"),
    ],
)
def test_blocks_that_do_not_match_are_named(names, message):
    like = {"a_0": {"w": np.zeros(3)}, "a_blocks": {"w": np.zeros((2, 3))}}
    with pytest.raises(ValueError, match=message):
        stack_blocks({name: {"w": np.zeros(3)} for name in names}, like)


class Chain(nn.Module):
    @nn.compact
    def __call__(self, x):
        return scan_blocks(Linear(4, name="layers_blocks"), x, length=3)


def test_scanned_blocks_follow_each_other_with_initial_weights_of_their_own():
    x = np.random.default_rng(2).normal(size=(2, 4)).astype(np.float32)
    out, variables = jax.jit(Chain().init_with_output)(jax.random.key(0), x)
    layers = unstack_blocks(variables)["params"]
    assert list(layers) == ["layers_0", "layers_1", "layers_2"]
    assert len({np.asarray(layer["kernel"]).tobytes() for layer in layers.values()}) == 3
    for layer in layers.values():
        x = x @ layer["kernel"] + layer["bias"]
    np.testing.assert_allclose(out, x, rtol=1e-5, atol=1e-6)

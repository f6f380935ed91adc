"""Heads of more than one layer: sizes, formulas, the released quirk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.models.split import htc4_heads, vit_head

FEATURES = np.random.default_rng(0).standard_normal((5, 512)).astype(np.float32)


def size(head):
    variables = jax.eval_shape(
        head.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 512), jnp.float32)
    )
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def layers(params):
    return [
        (np.asarray(params[f"fc{i}"]["kernel"]), np.asarray(params[f"fc{i}"]["bias"]))
        for i in range(1, len(params) + 1)
    ]


def test_published_sizes_at_100_classes():
    assert [size(head) for head in htc4_heads(100)] == [51_300, 313_956, 157_028, 78_564]
    assert size(vit_head(100)) == 470_884


@pytest.mark.parametrize(
    ("head", "activate"), [(vit_head(3), np.tanh), (htc4_heads(3)[2], lambda x: np.maximum(x, 0))]
)
def test_an_activation_stands_between_the_layers_and_not_behind_them(head, activate):
    variables = head.init(jax.random.key(0), FEATURES)
    (w1, b1), (w2, b2) = layers(variables["params"])
    expected = activate(FEATURES @ w1 + b1) @ w2 + b2
    assert (expected < 0).any()
    np.testing.assert_allclose(head.apply(variables, FEATURES), expected, rtol=1e-4, atol=1e-5)


def test_output_relu_cuts_the_logits_of_every_htc4_head():
    for plain, released in zip(htc4_heads(3), htc4_heads(3, output_relu=True)):
        variables = plain.init(jax.random.key(0), FEATURES)
        logits = plain.apply(variables, FEATURES)
        assert (logits < 0).any()
        np.testing.assert_array_equal(released.apply(variables, FEATURES), np.maximum(logits, 0))

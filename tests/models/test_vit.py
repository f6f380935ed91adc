"""Vision transformers: published sizes, a NumPy forward pass, torchvision's initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from scipy.special import erf

from fedjax_ht.models.stacking import unstack_blocks
from fedjax_ht.models.vits import ViT, vit


def shapes(module, size=(32, 32, 3)):
    return jax.eval_shape(
        module.init, jax.random.key(0), jax.ShapeDtypeStruct((1, *size), jnp.float32)
    )


@pytest.mark.parametrize(
    ("name", "base", "tokens"), [("vit_b16", 85_651_200, 5), ("vit_b32", 87_418_368, 2)]
)
def test_published_sizes(name, base, tokens):
    params = shapes(vit(name, 100))["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params["base"])) == base
    assert sum(leaf.size for leaf in jax.tree.leaves(params["head"])) == 470_884
    assert params["base"]["pos_embedding"].shape == (1, tokens, 768)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="images of 28x28 pixels do not split into patches of"):
        shapes(vit("vit_b16", 10), (28, 28, 1))
    with pytest.raises(ValueError, match="unknown vision transformer 'vit'; there are"):
        vit("vit", 10)


def reference(x, params, patch, heads, feature_dim):
    """One image [H, W, C] in float64, token by token and head by head."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def dense(tokens, p):
        return tokens @ p["kernel"] + p["bias"]

    def norm(tokens, p):
        centred = tokens - tokens.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]
        )

    def attention(tokens, p):
        queries, keys, values = np.split(dense(tokens, p["in_proj"]), 3, axis=-1)
        out = []
        for q, k, v in zip(*(np.split(part, heads, axis=-1) for part in (queries, keys, values))):
            weights = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
            out.append(weights / weights.sum(-1, keepdims=True) @ v)
        return dense(np.concatenate(out, -1), p["out_proj"])

    tokens = [params["class_token"][0, 0]]
    for top in range(0, x.shape[0], patch):
        for left in range(0, x.shape[1], patch):
            piece = x[top : top + patch, left : left + patch, :, None]
            tokens.append(
                (piece * params["conv_proj"]["kernel"]).sum((0, 1, 2)) + params["conv_proj"]["bias"]
            )
    tokens = np.stack(tokens) + params["pos_embedding"][0]
    for name in sorted(name for name in params if name.startswith("layers_")):
        layer = params[name]
        tokens = tokens + attention(norm(tokens, layer["ln_1"]), layer["self_attention"])
        hidden = dense(norm(tokens, layer["ln_2"]), layer["mlp_0"])
        tokens = tokens + dense(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, layer["mlp_3"])
    token, length = norm(tokens[0], params["ln"]), tokens.shape[-1]
    return [
        token[i * length // feature_dim : -(-(i + 1) * length // feature_dim)].mean()
        for i in range(feature_dim)
    ]


def test_features_are_those_of_a_numpy_transformer():
    module = ViT(patch=4, layers=3, heads=3, width=12, mlp_width=20, feature_dim=8)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 12, 2)).astype(np.float32)
    params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    params = jax.tree.map(
        lambda leaf: 0.5 * rng.standard_normal(leaf.shape).astype(np.float32), params
    )
    out = jax.jit(module.apply)({"params": params}, x)
    expected = [reference(image, unstack_blocks(params), 4, 3, 8) for image in x]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_layers_begin_as_torchvisions_do_and_apart():
    module = ViT(patch=4, layers=2, heads=2, width=64, mlp_width=192)
    params = unstack_blocks(
        jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    )
    np.testing.assert_allclose(params["conv_proj"]["kernel"].std(), (4 * 4 * 3) ** -0.5, rtol=0.05)
    np.testing.assert_allclose(params["pos_embedding"].std(), 0.02, rtol=0.05)
    np.testing.assert_array_equal(params["class_token"], 0)
    first, second = (flatten_dict(params[f"layers_{i}"], sep="/") for i in (0, 1))
    xavier = (6 / (64 + 192)) ** 0.5
    bounds = dict.fromkeys(("self_attention/in_proj", "mlp_0", "mlp_3"), xavier)
    bounds["self_attention/out_proj"] = 64**-0.5  # as torch's linear layer
    for path, bound in bounds.items():
        kernel = second[f"{path}/kernel"]
        assert np.abs(kernel).max() <= bound
        np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.05)
        assert np.abs(second[f"{path}/bias"]).max() < 1e-5
    assert not np.allclose(first["mlp_0/kernel"], second["mlp_0/kernel"])

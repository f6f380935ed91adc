"""HtFLlib's networks for windows of sensor signals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import features, init_variables, logits
from fedjax_ht.core.federation import make_federation
from fedjax_ht.models import SplitModel, model_group
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.sensors import TimeConvFeatures, harcnn
from tests.federations import count_parameters
from tests.reference import conv as ref

SEN8 = [f"harcnn{kind}_s{i}" for kind in ("", "1") for i in (1, 2, 3)]
SEN8 += ["harcnn3_s1", "harcnn3_s2"]


@pytest.mark.parametrize(
    ("group", "names"),
    {
        "htfe_sen2": SEN8[:2],
        "htfe_sen3": SEN8[:3],
        "htfe_sen5": [*SEN8[:4], "harcnn3_s1"],
        "htfe_sen8": SEN8,
        "harcnn1_s3": ["harcnn1_s3"],
    }.items(),
)
def test_groups_in_the_order_of_the_clients(group, names):
    assert list(model_group(group, 6, (128, 9))) == names
    narrow = model_group(group, 6, (128, 9), feature_dim=96).values()
    assert {module.base.feature_dim for module in narrow} == {96}


@pytest.mark.parametrize("shape", [(128, 9), (256, 3, 9)], ids=str)
def test_sizes_do_not_depend_on_the_windows(shape):
    """k C_in C_out + C_out of every convolution; the head has 512 features and a bias."""
    two_layers = 9 * 9 * 32 + 32 + 9 * 32 * 64 + 64
    one_layer = 9 * 9 * 32 + 32
    three_layers = 5 * (9 * 32 + 32 * 64 + 64 * 128) + 224
    federation = make_federation(model_group("htfe_sen8", 6, shape), shape, 6, num_clients=8)
    bases = [two_layers] * 3 + [one_layer] * 3 + [three_layers] * 2
    sizes = [count_parameters(bucket) for bucket in federation.buckets]
    assert sizes == [{"base": base, "head": 513 * 6} for base in bases]


def _block(units: np.ndarray, layer: dict[str, np.ndarray], stride: int) -> np.ndarray:
    """[units, T, C], each by itself; the kernel is [1, k, C, O]."""
    out = ref.conv2d(units[:, None], layer["kernel"], stride)[:, 0] + layer["bias"]
    pairs = out.shape[1] // 2
    return np.maximum(out, 0)[:, : 2 * pairs].reshape(len(units), pairs, 2, -1).max(2)


def _pooled(x: np.ndarray, width: int) -> np.ndarray:
    return np.array(
        [x[i * len(x) // width : -(-(i + 1) * len(x) // width)].mean() for i in range(width)]
    )


@pytest.mark.parametrize("shape", [(29, 4), (29, 3, 4)], ids=str)
@pytest.mark.parametrize(("stride", "feature_dim"), [(1, 10), (2, 16)])
def test_forward_pass_of_each_unit_by_itself(shape, stride, feature_dim):
    module = SplitModel(TimeConvFeatures((5, 6), 3, stride, feature_dim), Linear(2))
    bucket = make_federation({"m": module}, shape, 2, num_clients=1).buckets[0]
    params = jax.jit(lambda key: init_variables(bucket, key))(jax.random.key(0))["params"]
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    base, want = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["base"]), []
    for sample in x.astype(np.float64):
        units = sample.reshape(shape[0], -1, shape[-1]).swapaxes(0, 1)
        for name in ("conv1_0", "conv2_0"):
            units = _block(units, base[name], stride)
        # channels, units, time
        want.append(_pooled(units.transpose(2, 0, 1).ravel(), feature_dim))
    got, _ = jax.jit(lambda p, x: features(bucket, p, {}, x, jnp.ones(2, bool), train=True))(
        params, x
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert logits(bucket, params, got).shape == (2, 2)


def test_initial_weights_are_torchs():
    base = harcnn("harcnn3", 1, 6).base
    params = base.init(jax.random.key(0), jnp.zeros((1, 128, 9)))["params"]
    for name, fan_in in {"conv1_0": 5 * 9, "conv2_0": 5 * 32, "conv3_0": 5 * 64}.items():
        bound = fan_in**-0.5
        for leaf in params[name].values():
            assert 0.7 * bound < np.abs(leaf).max() <= bound


@pytest.mark.parametrize("name", SEN8)
def test_the_shortest_windows_of_which_something_is_left(name):
    (module,) = model_group(name, 2, (128, 9)).values()
    shortest = module.base.shortest
    out = jax.eval_shape(module.init_with_output, jax.random.key(0), jnp.zeros((3, shortest, 9)))[0]
    assert out.shape == (3, 2)
    with pytest.raises(ValueError, match=rf"at least {shortest} steps; a sample is"):
        model_group(name, 2, (shortest - 1, 9))
    with pytest.raises(ValueError, match=f"along time needs windows of at least {shortest}"):
        module.init(jax.random.key(0), jnp.zeros((3, shortest - 1, 9)))


@pytest.mark.parametrize("shape", [(128, 9), (256, 3, 9), (7,)], ids=str)
def test_perceptrons_take_any_array(shape):
    federation = make_federation(model_group("mlp2", 6, shape), shape, 6, num_clients=2)
    expected = [(np.prod(shape) + 1) * width + (width + 1) * 32 for width in (32, 64)]
    assert [count_parameters(b)["base"] for b in federation.buckets] == expected

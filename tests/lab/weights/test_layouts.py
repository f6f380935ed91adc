"""A model's arrays as torch names them, and back: names, heads, which architecture it is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import features, init_variables, logits
from fedjax_ht.core.federation import make_federation
from fedjax_ht.lab.weights.start import own_names, starting_weights, state_dict
from fedjax_ht.models.convnets import GoogLeNet, MobileNetV2, ResNet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.registry import model_group
from fedjax_ht.models.sensors import harcnn
from fedjax_ht.models.split import DenseHead, SplitModel, vit_head
from fedjax_ht.models.vits import ViT
from tests.lab.weights.test_torchvision import SIZE

CASES = {
    "wider features": SplitModel(ResNet((1, 1, 1, 1), 1024), Linear(10), stateful=True),
    "bottlenecks, scanned": SplitModel(
        ResNet((3, 1, 1, 1), bottleneck=True, scan_from=1), Linear(10), stateful=True
    ),
    "another head": SplitModel(
        ResNet((1, 1, 1, 1), 40, width=8), DenseHead((16,), 10), stateful=True
    ),
    "transformer": SplitModel(ViT(8, 3, 2, 24, 40, feature_dim=16), vit_head(10, 20)),
    "transformer, linear": SplitModel(ViT(8, 2, 2, 24, 40, feature_dim=16), Linear(10)),
    "mobilenet": SplitModel(MobileNetV2(512), Linear(10), stateful=True),
    "googlenet": SplitModel(GoogLeNet(512), Linear(10), stateful=True),
}


def random_model(module):
    """A bucket and its variables, biases and statistics among them, as NumPy."""
    bucket = make_federation({"model": module}, SIZE, 10, num_clients=1).buckets[0]
    shapes = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = rng.standard_normal(leaf.shape).astype(np.float32) * 0.1
        return 1 + abs(values) if path[-1].key in ("scale", "var") else values

    return bucket, jax.tree.map_with_path(draw, shapes)


def scores(bucket, variables, x):
    representations, _ = features(
        bucket, variables["params"], variables["stats"], x, jnp.ones(len(x), bool), train=False
    )
    return np.asarray(logits(bucket, variables["params"], representations))


def whole(variables):
    # a transformer has no statistics
    return {name: tree for name, tree in variables.items() if tree}


SOME = [
    name if name in ("another head", "transformer") else pytest.param(name, marks=pytest.mark.slow)
    for name in CASES
]


@pytest.mark.parametrize("case", SOME)
def test_a_state_dict_is_taken_back(case):
    module = CASES[case]
    bucket, variables = random_model(module)
    arrays = state_dict(module, variables)
    assert not any(name.startswith("params/") for name in arrays)
    loaded = starting_weights(arrays, module, variables, head=True)
    assert jax.tree.structure(loaded) == jax.tree.structure(whole(variables))
    x = np.random.default_rng(1).standard_normal((2, *SIZE)).astype(np.float32)
    expected, again = (scores(bucket, v, x) for v in (variables, {"stats": {}} | loaded))
    np.testing.assert_allclose(again, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    # Where there are no more features than the extractor's own, the arrays themselves are the same.
    if case != "wider features":
        same = functools.partial(np.testing.assert_allclose, atol=1e-6)
        jax.tree.map(same, loaded, whole(variables))
    assert "head" not in starting_weights(arrays, module, variables)["params"]


def test_a_model_without_a_torch_original_has_its_own_names():
    module = model_group("cnn5", 10, SIZE)["cnn1"]
    _, variables = random_model(module)
    arrays = state_dict(module, variables)
    assert arrays.keys() == own_names(variables).keys() and "params/head/kernel" in arrays
    more = arrays | {"shared/params/x": np.ones(2)}
    loaded = starting_weights(more, module, variables, head=True)
    jax.tree.map(np.testing.assert_array_equal, loaded["params"], variables["params"])


def test_networks_for_sensors_have_htfllibs_names():
    module = harcnn("harcnn1", 1, 4, feature_dim=8)
    bucket = make_federation({"model": module}, (51, 9), 4, num_clients=1).buckets[0]
    variables = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    arrays = {"conv1.0.weight": np.ones((32, 9, 1, 9)), "conv1.0.bias": np.zeros(32)}
    loaded = starting_weights(arrays | {"fc.bias": np.ones(6)}, module, variables)
    assert (loaded["params"]["base"]["conv1_0"]["kernel"] == 1).all()


def test_heads_that_do_not_fit_stay():
    # 16 features, means over those of the extractor
    module = SplitModel(ResNet((1, 1, 1, 1), 16, width=4), Linear(10), stateful=True)
    _, variables = random_model(module)
    arrays = state_dict(module, variables)

    def has_head(arrays):
        return "head" in starting_weights(arrays, module, variables, head=True)["params"]

    assert has_head(arrays)
    random = np.random.default_rng(0).standard_normal((10, 32))
    for changed in (
        {"fc.weight": np.ones((1000, 32)), "fc.bias": np.ones(1000)},  # other classes
        {"fc.weight": random},  # no function of the means
        {"fc.weight": np.ones((10, 77))},  # another extractor's
        {"fc.bias": np.ones(9)},
    ):
        changed = {name: np.float32(array) for name, array in changed.items()}
        assert not has_head(arrays | changed)
    del arrays["fc.bias"]
    assert not has_head(arrays)

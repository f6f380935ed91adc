import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import features, init_variables, logits
from fedjax_ht.core.federation import make_federation
from fedjax_ht.models import SplitModel, cnn4, cnn5_group, mlp
from fedjax_ht.models.cnn import ConvFeatures, ConvLayer
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import htc4_heads, vit_head
from tests.federations import count_parameters
from tests.reference import conv as ref


def parameters(modules, input_shape, num_classes):
    federation = make_federation(modules, input_shape, num_classes, num_clients=len(modules))
    counts = {b.name: count_parameters(b) for b in federation.buckets}
    return {name: (c["base"], c["head"]) for name, c in counts.items()}


def initialised(bucket):
    return jax.jit(lambda key: init_variables(bucket, key))(jax.random.key(0))


@pytest.mark.parametrize(
    ("input_shape", "base"),
    [((28, 28, 1), 576_896), ((32, 32, 3), 873_408), ((64, 64, 3), 5_592_000)],
    ids=str,
)
def test_parameters_of_the_4_layer_cnn(input_shape, base):
    assert parameters({"cnn": cnn4(100)}, input_shape, 100) == {"cnn": (base, 512 * 100 + 100)}


@pytest.mark.parametrize(
    ("num_classes", "shape", "width", "totals"),
    [
        (10, (32, 32, 3), 500, [2_621_558, 1_815_142, 1_320_558, 1_060_358, 670_058]),
        (100, (32, 32, 3), 500, [2_666_648, 1_860_232, 1_365_648, 1_105_448, 715_148]),
        (10, (28, 28, 1), 50, [122_400, 85_300, 66_750, 48_200, 29_650]),
    ],
)
def test_parameters_of_the_five_cnns(num_classes, shape, width, totals):
    counts = parameters(cnn5_group(num_classes, shape[-1]), shape, num_classes)
    assert list(counts) == ["cnn1", "cnn2", "cnn3", "cnn4", "cnn5"]
    assert [sum(c) for c in counts.values()] == totals
    assert {head for _, head in counts.values()} == {(width + 1) * num_classes}


@pytest.fixture(scope="module")
def small_cnn():
    module = SplitModel(ConvFeatures((ConvLayer(8), ConvLayer(12)), (24,)), Linear(40))
    bucket = make_federation({"m": module}, (17, 16, 1), 40, num_clients=1).buckets[0]
    return bucket, initialised(bucket)["params"]


def test_forward_pass_of_a_cnn_is_conv_relu_pool_then_linear_relu(small_cnn):
    bucket, params = small_cnn
    base, head = jax.tree.map(lambda x: np.asarray(x, np.float64), (params["base"], params["head"]))
    x = np.random.default_rng(0).normal(size=(2, 17, 16, 1)).astype(np.float32)

    z = x
    for layer in ("conv1", "conv2"):
        z = ref.conv2d(z, base[layer]["kernel"]) + base[layer]["bias"]
        z = ref.max_pool_2x2(np.maximum(z, 0))
    z = np.maximum(z.reshape(2, -1) @ base["fc1"]["kernel"] + base["fc1"]["bias"], 0)

    @jax.jit
    def forward(params, x):
        z, _ = features(bucket, params, {}, x, jnp.ones(2, bool), train=True)
        return z, logits(bucket, params, z)

    got, scores = forward(params, x)
    np.testing.assert_allclose(got, z, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores, z @ head["kernel"] + head["bias"], rtol=1e-5, atol=1e-6)


def test_a_cnn_drops_out_where_there_is_a_key():
    base = ConvFeatures((ConvLayer(8, 3, padding=1, pooled=False),), (64,), dropout=(0.25, 0.5))
    x, mask = jnp.ones((2, 4, 4, 1)), jnp.ones(2, bool)
    models = {"kept": base.clone(dropout=(0.0, 0.0)), "dropping": base}
    models = {name: SplitModel(part, Linear(3)) for name, part in models.items()}
    kept, dropping = make_federation(models, (4, 4, 1), 3, num_clients=2).buckets
    params = initialised(dropping)["params"]
    assert params["base"]["fc1"]["kernel"].shape == (4 * 4 * 8, 64)  # padded, not pooled

    def run(bucket, key=None):
        return np.asarray(features(bucket, params, {}, x, mask, train=key is not None, key=key)[0])

    first, second = (run(dropping, jax.random.key(seed)) for seed in range(2))
    np.testing.assert_array_equal(run(dropping), run(kept))
    np.testing.assert_array_equal(run(kept, jax.random.key(0)), run(kept))
    assert np.any(first != second)
    assert np.mean(first == 0) > np.mean(run(kept) == 0) + 0.1


def test_initial_weights_and_biases_are_uniform_within_torchs_bounds(small_cnn):
    _, params = small_cnn
    layers = {**params["base"], "head": params["head"]}
    # fc1 sees 1x1 of 12 channels
    fan_in = {"conv1": 5 * 5 * 1, "conv2": 5 * 5 * 8, "fc1": 12, "head": 24}
    assert set(layers) == set(fan_in)
    for name, layer in layers.items():
        bound = fan_in[name] ** -0.5
        for part in ("kernel", "bias"):
            assert 0.7 * bound < np.abs(layer[part]).max() <= bound
        np.testing.assert_allclose(layer["kernel"].mean(), 0, atol=0.1 * bound)
        np.testing.assert_allclose(layer["kernel"].std(), bound / 3**0.5, rtol=0.1)


def test_flax_initialisation_has_zero_biases():
    bucket = make_federation({"m": mlp(3, (4,), "flax")}, (2, 2, 1), 3, num_clients=1).buckets[0]
    params = initialised(bucket)["params"]
    np.testing.assert_array_equal(params["head"]["bias"], 0)
    assert np.abs(params["head"]["kernel"]).max() > 0


def test_clients_take_architectures_in_turn():
    modules = {name: mlp(2, (4,)) for name in "abc"}
    federation = make_federation(modules, (2, 2, 1), 2, num_clients=7)
    assert [b.name for b in federation.buckets] == ["a", "b", "c"]
    assert federation.assignment == (0, 1, 2, 0, 1, 2, 0)
    assert [federation.members(b) for b in federation.buckets] == [(0, 3, 6), (1, 4), (2, 5)]
    assert federation.num_clients == 7


def test_an_explicit_assignment_makes_no_bucket_without_clients():
    modules = {name: mlp(2, (4,)) for name in "abc"}
    federation = make_federation(modules, (2, 2, 1), 2, assignment=["c", "a", "c"])
    assert [b.name for b in federation.buckets] == ["a", "c"]
    assert federation.assignment == (1, 0, 1)
    few = make_federation(modules, (2, 2, 1), 2, num_clients=2)
    assert [b.name for b in few.buckets] == ["a", "b"]


class OwnBase(nn.Module):
    """A user's extractor: counts the real samples it was trained on, as batch statistics would."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        seen = self.variable("batch_stats", "seen", lambda: jnp.int32(0))
        if train:
            seen.value += mask.sum()
        return nn.Dense(6)(x.mean((1, 2)))


class OwnModel(nn.Module):
    """A user's model that knows nothing of this library but the two method names."""

    def setup(self):
        self.base = OwnBase()
        self.head = nn.Dense(3)

    def features(self, x, train=False, mask=None):
        return self.base(x, train, mask)

    def classify(self, features):
        return self.head(features)

    def __call__(self, x):
        return self.classify(self.features(x))


@pytest.mark.parametrize(
    "module", [OwnModel(), SplitModel(OwnBase(), nn.Dense(3), stateful=True)], ids=["own", "split"]
)
def test_a_users_own_flax_module_with_batch_statistics(module):
    federation = make_federation({"own": module}, (4, 4, 3), 3, num_clients=2)
    bucket = federation.buckets[0]
    assert (bucket.num_classes, bucket.feature_dim) == (3, 6)
    assert count_parameters(bucket) == {"base": 3 * 6 + 6, "head": 6 * 3 + 3}
    variables = initialised(bucket)
    params, x, mask = variables["params"], jnp.ones((3, 4, 4, 3)), jnp.array([True, True, False])
    out, stats = features(bucket, params, variables["stats"], x, mask, train=True)
    assert out.shape == (3, 6)
    assert jax.tree.leaves(stats) == [2]
    _, kept = features(bucket, params, stats, x, mask, train=False)
    assert jax.tree.leaves(kept) == [2]


class Baseless(OwnModel):
    def features(self, x, train=False, mask=None):
        return x.reshape(len(x), -1)


class Unflattened(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


LISTED = nn.Sequential([nn.Dense(4), nn.relu])


def build(module=None, **changes):
    arguments = {"num_classes": 3, "num_clients": 2} | changes
    return make_federation({"m": module or mlp(3, (4,))}, (2, 2, 1), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(num_classes=4), r"model 'm' returns .* logits \(1, 3\) for one sample"),
        (lambda: build(SplitModel(Unflattened(), nn.Dense(3))), r"model 'm' returns features \(1"),
        (lambda: build(Baseless()), r"model 'm' has parameters \['head'\]; expected 'base' and"),
        (lambda: build(SplitModel(LISTED, nn.Dense(3))), r"model 'm' is not hashable: replace l"),
        (lambda: build(num_clients=None, assignment=["m", "n"]), r"assignment names 'n', but the"),
        (lambda: build(num_clients=None), r"give exactly one of num_clients and"),
        (lambda: build(assignment=["m"]), r"give exactly one of num_clients and"),
    ],
    ids=["classes", "features", "parameters", "hash", "assignment", "neither", "both"],
)
def test_make_federation_says_in_one_line_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_feature_dim_of_models_that_differ():
    modules = {"a": mlp(2, (4,)), "b": mlp(2, (5,))}
    federation = make_federation(modules, (2, 2, 1), 2, num_clients=2)
    with pytest.raises(ValueError, match=r"the same feature width, got \{'a': 4, 'b': 5\}"):
        _ = federation.feature_dim


FEATURES = np.random.default_rng(0).standard_normal((5, 512)).astype(np.float32)


def size(head):
    x = jax.ShapeDtypeStruct((1, 512), jnp.float32)
    variables = jax.eval_shape(head.init, jax.random.key(0), x)
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def test_published_sizes_at_100_classes():
    assert [size(head) for head in htc4_heads(100)] == [51_300, 313_956, 157_028, 78_564]
    assert size(vit_head(100)) == 470_884


@pytest.mark.parametrize(
    ("head", "activate"), [(vit_head(3), np.tanh), (htc4_heads(3)[2], lambda x: np.maximum(x, 0))]
)
def test_an_activation_stands_between_the_layers_and_not_behind_them(head, activate):
    variables = head.init(jax.random.key(0), FEATURES)
    first, second = (jax.device_get(variables["params"][f"fc{i}"]) for i in (1, 2))
    hidden = activate(FEATURES @ first["kernel"] + first["bias"])
    expected = hidden @ second["kernel"] + second["bias"]
    assert (expected < 0).any()
    np.testing.assert_allclose(head.apply(variables, FEATURES), expected, rtol=1e-4, atol=1e-5)


def test_output_relu_cuts_the_logits_of_every_htc4_head():
    for plain, released in zip(htc4_heads(3), htc4_heads(3, output_relu=True)):
        variables = plain.init(jax.random.key(0), FEATURES)
        logits = plain.apply(variables, FEATURES)
        assert (logits < 0).any()
        np.testing.assert_array_equal(released.apply(variables, FEATURES), np.maximum(logits, 0))

"""Width-sliced networks: published sizes, and a slice against the whole with zeros elsewhere."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.core.federation import make_sliced_federation
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared.slicing import make_plan
from fedjax_ht.models import model_group, sliced_network, width_budgets
from fedjax_ht.models.sliced import (
    ConvNet,
    PreActResNet,
    parameter_axes,
    sliced_model,
    sliced_width,
)
from tests.reference import slicing as ref

PARAMETERS = {  # at rates 1, 1/2, 1/4, 1/8, 1/16, ten classes, colour images
    "conv4": (1_558_026, 391_946, 99_210, 25_418, 6_666),
    "preact_resnet18": (11_172_170, 2_796_714, 701_018, 176_178, 44_510),
    "preact_resnet20": (11_467_594, 2_870_698, 719_578, 180_850, 45_694),
    "preact_resnet34": (21_280_330, 5_325_610, 1_334_170, 334_930, 84_430),
}
CLASSES, SHAPE = 3, (4, 4, 2)
RATES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
TINY = {"cnn": ConvNet((16, 32)), "resnet": PreActResNet((1, 2), (16, 32))}
SLOW_RATES = [pytest.param("resnet", r, marks=pytest.mark.slow) for r in RATES if r != 1 / 2]


def shapes(module, shape):
    return jax.eval_shape(lambda key: module.init(key, jnp.zeros((1, *shape))), jax.random.key(0))[
        "params"
    ]


def flat(tree):
    return flatten_dict(tree, sep="/")


@pytest.mark.parametrize(
    "name",
    ["conv4", "preact_resnet18"]
    + [pytest.param(f"preact_resnet{n}", marks=pytest.mark.slow) for n in (20, 34)],
)
def test_published_sizes(name):
    network = sliced_network(name, 10, (32, 32, 3))
    sizes = [
        sum(math.prod(x.shape) for x in jax.tree.leaves(shapes(network(rate), (32, 32, 3))))
        for rate in RATES
    ]
    assert tuple(sizes) == PARAMETERS[name]


def test_budgets_of_ten_clients():
    def exponents(rho):
        return [round(-math.log2(rate)) for rate in width_budgets(10, rho)]

    assert exponents(0) == [0] * 10
    assert exponents(5) == [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert exponents(10) == [1, 2, 3] + 7 * [4]
    assert exponents(40) == [4] * 10
    assert width_budgets(4, 8, sigma=2) == (0.25,) * 4
    with pytest.raises(ValueError, match="rho is -1 and sigma is 4; both must be at least 0"):
        width_budgets(10, -1)


def test_width_of_a_slice_rounds_up():
    pairs = ((64, 1 / 16), (10, 1 / 4), (100, 0.07), (3, 1 / 3), (2, 1 / 16))
    assert [sliced_width(*pair) for pair in pairs] == [4, 3, 7, 1, 1]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("per_layer", [False, True])
def test_axes_are_those_of_the_parameters_at_every_rate(name, per_layer):
    """Each axis is as long as its group is wide, at every rate."""
    for rate in (1.0, 1 / 2, 1 / 4):
        module = sliced_model(TINY[name].clone(rate=rate), CLASSES)
        params = shapes(module, SHAPE)
        widths = module.base.channels(per_layer).widths
        lengths = {g: sliced_width(w, rate) for g, w in widths.items()} | {"classes": CLASSES}
        axes = flat(parameter_axes(module, params, per_layer))
        for path, leaf in flat(params).items():
            assert len(axes[path]) == leaf.ndim, path
            unsliced = [size for size, name in zip(leaf.shape, axes[path]) if name is None]
            assert set(unsliced) <= {1, 3, SHAPE[-1]}, path  # kernel entries and image channels
            assert all(
                lengths[name] == size for size, name in zip(leaf.shape, axes[path]) if name
            ), path


def test_layers_joined_by_addition_share_their_channels():
    axes = flat(parameter_axes(*_tiny_resnet()))
    stream = axes["base/stage2_0/shortcut/kernel"][-1]
    written = [axes[f"base/stage2_{i}/conv2/kernel"][-1] for i in (0, 1)]
    read = [
        axes[path][0] for path in ("base/stage2_1/norm1/scale", "base/norm/scale", "head/kernel")
    ]
    assert {*written, *read} == {stream} and axes["base/stage2_1/conv1/kernel"][-2] == stream
    drawn_apart = flat(parameter_axes(*_tiny_resnet(), per_layer=True))
    first, second = (drawn_apart[f"base/stage2_{i}/conv2/kernel"][-1] for i in (0, 1))
    assert first != second


def _tiny_resnet():
    module = sliced_model(TINY["resnet"], CLASSES)
    return module, shapes(module, SHAPE)


@functools.cache
def whole_parameters(name):
    """Random, with norms that scale and shift; flat, float32."""
    rng = np.random.default_rng(0)
    params = flat(shapes(sliced_model(TINY[name], CLASSES), SHAPE))
    return {
        k: rng.uniform(0.5, 1.5, x.shape).astype(np.float32) * rng.choice([-0.4, 0.4], x.shape)
        for k, x in params.items()
    }


def batch():
    rng = np.random.default_rng(1)
    mask = np.arange(6) < 5
    x = rng.normal(size=(6, *SHAPE)).astype(np.float32)
    return x, rng.integers(0, CLASSES, 6), mask


@functools.cache
def logits_and_gradient(name, rate, norm="static_batch"):
    """params -> logits in evaluation, and the gradient of cross-entropy in training; both flat."""
    module = sliced_model(TINY[name].clone(rate=rate, norm=norm, scaler=False), CLASSES)
    x, y, mask = batch()

    def logits(params, train):
        variables = {"params": unflatten_dict(params, sep="/")}
        features = module.apply(variables, x, train, mask, method="features")
        return module.apply(variables, features, method="classify")

    return jax.jit(
        lambda p: (logits(p, False), jax.grad(lambda p: cross_entropy(logits(p, True), y, mask))(p))
    )


def slice_plan(name, rate, mode):
    widths = TINY[name].channels().widths
    plan = make_plan(widths, rate, mode, jnp.int32(13), jax.random.key(3))
    return {group: np.asarray(indices).tolist() for group, indices in plan.items()}


def oracle(name, rate, plan):
    """The slice's logits and gradient, those of the whole with zeros elsewhere; the mask."""
    params = whole_parameters(name)
    module = sliced_model(TINY[name], CLASSES)
    axes = flat(parameter_axes(module, unflatten_dict(params, sep="/")))
    held = ref.mask(params, axes, plan)
    sliced = logits_and_gradient(name, rate)(ref.extract(params, axes, plan))
    logits, gradient = logits_and_gradient(name, 1.0)({k: x * held[k] for k, x in params.items()})
    gradient = {k: np.asarray(g) * held[k] for k, g in gradient.items()}
    return sliced, (logits, ref.extract(gradient, axes, plan))


@pytest.mark.parametrize(
    ("name", "rate"), [("cnn", 1 / 2), ("cnn", 1 / 16), ("resnet", 1 / 2), *SLOW_RATES]
)
def test_a_slice_is_the_whole_network_without_the_rest(name, rate):
    """Forward and gradient, whatever picks the channels; the gradient goes through the mask."""
    for mode in ("static", "random", "rolling"):
        (logits, gradient), (expected, expected_gradient) = oracle(
            name, rate, slice_plan(name, rate, mode)
        )
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4, err_msg=mode)
        for path, value in gradient.items():
            np.testing.assert_allclose(
                value, expected_gradient[path], rtol=1e-3, atol=1e-4, err_msg=f"{mode} {path}"
            )


def test_the_scaler_divides_by_the_rate_in_training_alone():
    """Without norms each of two layers doubles what it gets, biases and all."""
    x, _, mask = batch()
    modules = [
        sliced_model(ConvNet((8,), 1 / 2, "none", scaler), CLASSES) for scaler in (True, False)
    ]
    variables = modules[0].init(jax.random.key(0), x)

    def features(module, train):
        return module.apply(variables, x, train, mask, method="features")

    expected = 2 * features(modules[1], True)
    np.testing.assert_allclose(features(modules[0], True), expected, rtol=1e-6)
    np.testing.assert_array_equal(features(modules[0], False), features(modules[1], False))


def test_first_weights():
    """Kernels and convolution biases uniform within 1/sqrt(fan_in), the head's bias zero."""
    init = jax.jit(sliced_network("conv4_quarter", 10, (16, 16, 1))(1.0).init)
    params = init(jax.random.key(0), jnp.zeros((1, 16, 16, 1)))
    base, head = params["params"]["base"], params["params"]["head"]
    for leaf, fan_in in (
        (base["conv3"]["kernel"], 9 * 32),
        (base["conv4"]["bias"], 9 * 64),
        (head["kernel"], 128),
    ):
        assert 0.9 * fan_in**-0.5 < np.abs(leaf).max() <= fan_in**-0.5
    assert not head["bias"].any() and not base["norm1"]["bias"].any()
    assert (base["norm1"]["scale"] == 1).all()


def test_whole_networks_are_groups():
    (module,) = model_group("preact_resnet18", 10, (32, 32, 3), norm="layer").values()
    assert module.base.rate == 1.0 and module.base.norm == "layer"


@pytest.mark.parametrize(
    ("group", "shape", "message"),
    [
        ("cnn", SHAPE, "model group 'cnn' cannot be sliced; conv4, conv4_quarter"),
        ("conv4", (8, 8, 1), "needs images of at least 16x16 pixels, got"),
        ("conv4", (128, 9), "model group 'conv4' needs images, float"),
        ("conv4", jax.ShapeDtypeStruct((23,), jnp.int32), "'conv4' needs images"),
    ],
    ids=str,
)
def test_bad_networks_are_named(group, shape, message):
    with pytest.raises(ValueError, match=message):
        sliced_network(group, 10, shape)


def test_a_federation_has_a_bucket_a_rate():
    def network(rate):
        return sliced_model(TINY["cnn"].clone(rate=rate), CLASSES)

    federation = make_sliced_federation(network, (0.25, 1, 0.25, 0.5), SHAPE, CLASSES)
    rates = {1.0: 32, 0.5: 16, 0.25: 8}
    buckets = [(b.name, b.width, b.feature_dim) for b in federation.buckets]
    assert buckets == [(f"rate{rate}", rate, width) for rate, width in rates.items()]
    assert federation.assignment == (2, 0, 2, 1)
    assert federation.global_model.module == network(1.0)
    assert federation.global_model.feature_dim == 32
    with pytest.raises(ValueError, match=r"the width rate of client 1 is 1\.5; it must be above 0"):
        make_sliced_federation(network, (1, 1.5), SHAPE, CLASSES)

"""The convolutional extractors: sizes, names, masks and dropout, blocks against NumPy."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from fedjax_ht.lab.weights.start import own_names, starting_weights, state_dict
from fedjax_ht.models import convnets
from fedjax_ht.models.efficientnet import MobileBlock, efficientnet_lite, padded, scaled
from fedjax_ht.models.layers import Norm
from fedjax_ht.models.registry import model_group
from tests.reference import conv as ref

BASE_PARAMETERS = {  # of the extractor, without its head
    "resnet4": 83_520,
    "resnet6": 313_664,
    "resnet8": 1_232_704,
    "resnet10": 4_905_792,
    "resnet18": 11_176_512,
    "resnet34": 21_284_672,
    "resnet50": 23_508_032,
    "resnet101": 42_500_160,
    "resnet152": 58_143_808,
    "googlenet": 5_599_904,
    "mobilenet_v2": 2_223_872,
    "efficientnet_lite0": 3_371_008,
    "efficientnet_lite1": 4_135_680,
    "efficientnet_lite2": 4_811_072,
}


def build(name: str, num_classes: int = 10, **options) -> nn.Module:
    if name.startswith("resnet"):
        return convnets.resnet(int(name.removeprefix("resnet")), num_classes, **options)
    if name.startswith("efficientnet_lite"):
        return efficientnet_lite(int(name[-1]), num_classes, **options)
    builders = {"googlenet": convnets.googlenet, "mobilenet_v2": convnets.mobilenet_v2}
    return builders[name](num_classes, **options)


@functools.cache
def shapes(module: nn.Module, input_shape=(32, 32, 3), *args):
    """(of the output, of the variables) for one image, without computing either."""
    return jax.eval_shape(
        lambda key: module.init_with_output(key, jnp.zeros((1, *input_shape)), *args),
        jax.random.key(0),
    )


def randomised(module: nn.Module, x, seed: int = 0):
    """Variables of the module, every entry random, scales and variances positive."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        drawn = rng.uniform(0.5, 1.5, leaf.shape) * rng.choice([-0.3, 0.3], leaf.shape)
        return np.float32(abs(drawn) if path[-1].key in ("scale", "var") else drawn)

    _, variables = shapes(module, x.shape[1:], False, None)
    return jax.tree_util.tree_map_with_path(draw, variables)


@pytest.mark.parametrize("name", BASE_PARAMETERS)
def test_parameters_and_features_of_every_architecture(name):
    features, variables = shapes(build(name).base)
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"])]
    assert sum(sizes) == BASE_PARAMETERS[name]
    assert (features.shape, features.dtype) == ((1, 512), jnp.float32)


@pytest.mark.parametrize(
    "name", ["resnet4", "resnet18", "resnet50", "googlenet", "mobilenet_v2", "efficientnet_lite0"]
)
@pytest.mark.parametrize(
    "input_shape", [(28, 28, 1), pytest.param((64, 64, 3), marks=pytest.mark.slow)], ids=str
)
def test_features_for_other_sizes_of_image(name, input_shape):
    features, _ = shapes(build(name).base, input_shape)
    assert (features.shape, features.dtype) == ((1, 512), jnp.float32)


def test_unknown_depth():
    with pytest.raises(ValueError, match=r"unknown ResNet of depth 20; the depths are 4, 6, 8, 10"):
        convnets.resnet(20, 10)
    with pytest.raises(ValueError, match="unknown EfficientNet-Lite5; the variants are 0, 1 and 2"):
        efficientnet_lite(5, 10)


def test_channels_of_a_wider_network_are_multiples_of_eight():
    channels = [16, 24, 40, 80, 112, 192, 320]
    assert [scaled(c, 1.0) for c in channels] == channels
    assert [scaled(c, 1.1) for c in channels] == [16, 24, 48, 88, 120, 208, 352]  # of Lite2
    assert scaled(100, 0.13) == 16 and scaled(10, 0.1) == 8
    assert scaled(11, 1.0) == 16  # the nearest multiple, 8, is below 0.9 of 11


KERNELS = {
    "resnet50": {
        "conv1": (7, 7, 3, 64),
        "layer2_0/downsample_0": (1, 1, 256, 512),
        "layer4_2/conv3": (1, 1, 512, 2048),
    },
    "googlenet": {
        "conv3/conv": (3, 3, 64, 192),
        "inception3a/branch1/conv": (1, 1, 192, 64),
        "inception4e/branch4_1/conv": (1, 1, 528, 128),
        "inception5b/branch3_1/conv": (3, 3, 48, 128),
    },
    "mobilenet_v2": {
        "features_0_0": (3, 3, 3, 32),
        "features_1/conv_0_0": (3, 3, 1, 32),
        "features_1/conv_1": (1, 1, 32, 16),
        "features_3/conv_1_0": (3, 3, 1, 144),
        "features_17/conv_2": (1, 1, 960, 320),
        "features_18_0": (1, 1, 320, 1280),
    },
}


@pytest.mark.parametrize("name", KERNELS)
def test_modules_are_named_after_torchvisions(name):
    kernels = flatten_dict(shapes(build(name).base)[1]["params"], sep="/")
    assert {path: kernels[f"{path}/kernel"].shape for path in KERNELS[name]} == KERNELS[name]


def spied(module, kind, *args, **options):
    """[(path, module, arguments)] of all calls of a kind of module, and the variables' shapes."""
    seen = []

    def spy(call, positional, named, context):
        if isinstance(context.module, kind) and context.method_name == "__call__":
            seen.append(("/".join(context.module.path), context.module.clone(), positional))
        return call(*positional, **named)

    def run(variables):
        x = jnp.zeros((2, 32, 32, 3))
        return module.apply(variables, x, *args, mutable=["batch_stats"], **options)

    _, variables = shapes(module)
    with nn.intercept_methods(spy):
        jax.eval_shape(run, variables)
    return seen, variables


@pytest.mark.parametrize(
    "module",
    [
        convnets.ResNet((1, 3), norm="group", scan_from=2),
        convnets.ResNet((1, 3), bottleneck=True, scan_from=2),
        build("googlenet").base,
        build("mobilenet_v2", norm="static_batch").base,
    ],
    ids=lambda module: f"{type(module).__name__}-{module.norm}",
)
def test_every_norm_is_of_the_kind_asked_for_and_is_given_train_and_mask(module):
    mask = np.array([True, False])
    calls, variables = spied(module, Norm, True, mask)
    scales = [path for path in flatten_dict(variables["params"], sep="/") if "scale" in path]
    assert {path for path, _, _ in calls} == {path.removesuffix("/scale") for path in scales}
    for _, norm, (_, train, norm_mask) in calls:
        epsilon = 1e-3 if isinstance(module, convnets.GoogLeNet) else 1e-5
        assert (norm.kind, norm.epsilon) == (module.norm, epsilon)
        assert train is True and norm_mask is mask
    assert ("batch_stats" in variables) == (module.norm == "batch")


@pytest.mark.parametrize(("name", "width"), [("googlenet", 1024), ("mobilenet_v2", 1280)])
@pytest.mark.parametrize("train", [True, False])
def test_dropout_is_in_training_only_and_before_the_pooling(name, width, train):
    """Without a key none is needed: the test of norms gives none."""
    calls, _ = spied(build(name).base, nn.Dropout, train, None, rngs={"dropout": jax.random.key(0)})
    expected = [(0.2, not train, (2, width))]
    assert [(drop.rate, drop.deterministic, x.shape) for _, drop, (x,) in calls] == expected


SIDES = [16] * 2 + [8] * 2 + [4] * 3 + [2] * 7 + [1] * 3


@pytest.mark.parametrize(
    ("name", "kind", "sides"),
    [
        ("resnet34", convnets.BasicBlock, [8] * 4 + [4] * 4 + [2] * 6 + [1] * 2),
        ("googlenet", convnets.Inception, [4] * 2 + [2] * 5 + [1] * 2),
        ("mobilenet_v2", convnets.InvertedResidual, SIDES),
    ],
)
def test_resolution_of_every_blocks_input(name, kind, sides):
    calls, _ = spied(build(name).base, kind)
    assert [x.shape[1] for _, _, (x, *_) in calls] == sides


def test_initial_weights():
    """Kaiming normal with torch's fan-out, for depthwise kernels too; or std 0.01."""
    modules = (convnets.Bottleneck(64, 2), convnets.InvertedResidual(64, 1, 6))

    @jax.jit
    def initial(key):
        x = jnp.zeros((1, 4, 4, 64))
        return [m.init(key, x, False, None) for m in (*modules, convnets.ConvNorm(64, 3))]

    variables = jax.device_get(initial(jax.random.key(0)))
    bottleneck, inverted, inception = (flatten_dict(v["params"], sep="/") for v in variables)
    kernels = {
        "conv1": (bottleneck["conv1/kernel"], (2 / 64) ** 0.5),
        "conv2": (bottleneck["conv2/kernel"], (2 / (9 * 64)) ** 0.5),
        "conv3": (bottleneck["conv3/kernel"], (2 / 256) ** 0.5),
        "downsample": (bottleneck["downsample_0/kernel"], (2 / 256) ** 0.5),
        "expansion": (inverted["conv_0_0/kernel"], (2 / 384) ** 0.5),
        "depthwise": (inverted["conv_1_0/kernel"], (2 / (9 * 384)) ** 0.5),
        "projection": (inverted["conv_2/kernel"], (2 / 64) ** 0.5),
        "inception": (inception["conv/kernel"], 0.01),
    }
    for name, (kernel, std) in kernels.items():
        assert kernel.std() == pytest.approx(std, rel=4 / (2 * kernel.size) ** 0.5), name
        assert abs(kernel.mean()) < 4 * std / kernel.size**0.5, name
    for name, leaf in (bottleneck | inverted).items():
        if not name.endswith("kernel"):
            np.testing.assert_array_equal(leaf, 1.0 if name.endswith("scale") else 0.0)


def conv(x, kernel, stride=1, groups=1):
    return ref.conv2d(x, kernel, stride, kernel.shape[0] // 2, groups)


def running_norm(x, variables, name, epsilon=1e-5):
    params, stats = variables["params"][name], variables["batch_stats"][name]
    return (x - stats["mean"]) / np.sqrt(stats["var"] + epsilon) * params["scale"] + params["bias"]


def relu(x):
    return np.maximum(x, 0)


def relu6(x):
    return np.clip(x, 0, 6)


def kernels_of(v):
    return {name: leaves["kernel"] for name, leaves in v["params"].items() if "kernel" in leaves}


def beside(x, v, stride):
    """What a residual block adds: its input, or where it strides a projection."""
    if stride == 1:
        return x
    return running_norm(conv(x, kernels_of(v)["downsample_0"], stride), v, "downsample_1")


def basic(x, v, stride):
    k = kernels_of(v)
    y = relu(running_norm(conv(x, k["conv1"], stride), v, "bn1"))
    return relu(running_norm(conv(y, k["conv2"]), v, "bn2") + beside(x, v, stride))


def bottleneck(x, v, stride):
    k = kernels_of(v)
    y = relu(running_norm(conv(x, k["conv1"]), v, "bn1"))
    y = relu(running_norm(conv(y, k["conv2"], stride), v, "bn2"))
    return relu(running_norm(conv(y, k["conv3"]), v, "bn3") + beside(x, v, stride))


def inverted_residual(x, v, stride):
    k = kernels_of(v)
    y = relu6(running_norm(conv(x, k["conv_0_0"]), v, "conv_0_1"))
    y = relu6(running_norm(conv(y, k["conv_1_0"], stride, y.shape[-1]), v, "conv_1_1"))
    y = running_norm(conv(y, k["conv_2"]), v, "conv_3")
    return y + x if stride == 1 else y


def inception(x, v, _):
    def layer(x, name):
        inner = {collection: tree[name] for collection, tree in v.items()}
        return relu(running_norm(conv(x, inner["params"]["conv"]["kernel"]), inner, "bn", 1e-3))

    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    pooled = windows.max((-2, -1))
    branches = [layer(x, "branch1")]
    branches += [layer(layer(x, f"branch{i}_0"), f"branch{i}_1") for i in (2, 3)]
    return np.concatenate([*branches, layer(pooled, "branch4_1")], axis=-1)


@pytest.mark.parametrize(
    ("module", "stride", "reference"),
    [
        (convnets.BasicBlock(4, 1), 1, basic),
        (convnets.BasicBlock(8, 2), 2, basic),
        (convnets.Bottleneck(1, 1), 1, bottleneck),
        (convnets.Bottleneck(2, 2), 2, bottleneck),
        (convnets.InvertedResidual(4, 1, 2), 1, inverted_residual),
        (convnets.InvertedResidual(4, 2, 2), 2, inverted_residual),
        (convnets.Inception((2, 3, 4, 5, 6, 7)), 1, inception),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, nn.Module) else None,
)
def test_blocks_against_numpy(module, stride, reference):
    x = np.random.default_rng(3).normal(size=(2, 5, 4, 4)).astype(np.float32)
    variables = randomised(module, x, seed=4)
    got = jax.jit(lambda v: module.apply(v, x, False, None))(variables)
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables)
    expected = reference(x.astype(np.float64), exact, stride)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_resnet_is_stem_stages_average_and_pooling_to_the_feature_width():
    base = convnets.ResNet((1, 2), feature_dim=16, width=4)
    x = np.random.default_rng(5).normal(size=(2, 20, 20, 1)).astype(np.float32)
    variables = randomised(base, x)
    v = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables)

    def inner(name):
        return {collection: tree[name] for collection, tree in v.items()}

    y = relu(running_norm(conv(x, v["params"]["conv1"]["kernel"], 2), v, "bn1"))
    y = np.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))  # zeros serve behind a ReLU
    y = np.max([y[:, i : i + 9 : 2, j : j + 9 : 2] for i in range(3) for j in range(3)], axis=0)
    for name, stride in (("layer1_0", 1), ("layer2_0", 2), ("layer2_1", 1)):
        y = basic(y, inner(name), stride)
    expected = np.repeat(y.mean((1, 2)), 2, axis=-1)
    got = jax.jit(lambda v: base.apply(v, x))(variables)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_efficientnet_pads_one_pixel_more_behind():
    x = jnp.arange(1.0, 5).reshape(1, 4, 1, 1) * jnp.ones((1, 1, 4, 1))
    rows = {(3, 1): [0, 1, 2, 3, 4, 0], (3, 2): [1, 2, 3, 4, 0], (5, 2): [0, 1, 2, 3, 4, 0, 0]}
    for (size, stride), expected in rows.items():
        result = padded(x, size, stride)
        assert result[0, :, size // 2, 0].tolist() == expected
        assert result.shape[1] == result.shape[2]


def test_a_mobile_block():
    """Without expansion."""
    block = MobileBlock(features=2, stride=2, expansion=1, size=5, norm="none")
    x = np.random.default_rng(0).normal(size=(1, 6, 6, 2)).astype(np.float32)
    variables = randomised(block, x)
    found = block.apply(variables, x, False, None)
    kernels = kernels_of(variables)
    wide = np.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)))
    rows = relu6(ref.conv2d(wide, kernels["depthwise_conv"], stride=2, groups=2))
    expected = rows @ kernels["project_conv"][0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("variant", "blocks"), [(0, 16), (2, 21)])
def test_efficientnet_takes_the_names_of_its_port(variant, blocks):
    module = efficientnet_lite(variant, 10)
    _, form = shapes(module)
    blank = {"params": form["params"], "stats": form["batch_stats"]}
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), blank)
    arrays = {"_fc.weight": np.zeros((10, 1280)), "_fc.bias": np.ones(10)}
    names = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
    for tree in blank.values():
        for path, leaf in flatten_dict(tree.get("base", {})).items():
            *modules, last = path
            torch_path = ["_" + name.replace("blocks_", "blocks.") for name in modules]
            layout = (3, 2, 0, 1) if leaf.ndim == 4 else range(leaf.ndim)
            arrays[".".join([*torch_path, names.get(last, last)])] = leaf.transpose(layout) + 1
    names_of_port = {f"_blocks.{blocks - 1}._depthwise_conv.weight", "_conv_stem.weight"}
    assert names_of_port <= set(arrays)
    loaded = starting_weights(arrays, module, blank, head=True)
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(loaded["params"]["base"]))
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(loaded["stats"]["base"]))
    assert not loaded["params"]["head"]["kernel"].any()
    assert (loaded["params"]["head"]["bias"] == 1).all()
    assert state_dict(module, blank).keys() == own_names(blank).keys()  # exports have our names


def test_unets_give_each_pixel_a_class_by_heads_of_one_shape():
    shapes = []
    for name, module in model_group("unet3", 9 * 7 * 4, (9, 7, 1)).items():
        x = jax.random.normal(jax.random.key(0), (2, 9, 7, 1))
        logits, variables = module.init_with_output(jax.random.key(1), x)
        shapes.append(jax.tree.map(jnp.shape, variables["params"]["head"]))
        # each pixel sees its surroundings alone: two at the fine level, four and a half at the other
        far = module.apply(variables, x.at[:, 8, 6].add(1.0)) != logits
        assert name in ("unet8", "unet16", "unet32")
        assert far.reshape(2, 9, 7, 4)[:, 8, 6].any() and not far.reshape(2, 9, 7, 4)[:, 0, 0].any()
    assert shapes[0] == shapes[1] == shapes[2]


def test_a_unet_is_for_pixels():
    with pytest.raises(ValueError, match="gives each of 9x7 pixels a class, but the task has 10"):
        model_group("unet3", 10, (9, 7, 1))

"""torchvision's models: names without torch, numbers beside torch where it is installed."""

import functools
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.core.bucket import features, init_variables
from fedjax_ht.core.federation import make_federation
from fedjax_ht.lab.safe.torch_files import load_state_dict
from fedjax_ht.lab.weights.torchvision import variables_from_torchvision
from fedjax_ht.models.convnets import ResNet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.registry import model_group
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.stacking import unstack_blocks
from fedjax_ht.models.vits import ViT

SIZE = (32, 32, 3)


def bucket_of(module):
    return make_federation({"model": module}, SIZE, 10, num_clients=1).buckets[0]


def zeros(bucket, dtype=np.float32):
    shapes = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype), shapes)


CONV, ENCODER, ATTN = (2, 3, 1, 0), "encoder.layers.encoder_layer_", "self_attention"
NAMES = {  # torchvision's name and shape -> place here, and how the axes of the value move
    "conv1.weight": ((4, 3, 7, 7), "conv1/kernel", CONV),
    "conv1.0.weight": ((8, 9, 1, 5), "conv1_0/kernel", CONV),  # of windows, as HtFLlib names it
    "bn1.weight": ((4,), "bn1/scale", (0,)),
    "bn1.bias": ((4,), "bn1/bias", (0,)),
    "bn1.running_mean": ((4,), "bn1/mean", (0,)),
    "bn1.running_var": ((4,), "bn1/var", (0,)),
    "layer1.0.conv1.weight": ((4, 4, 3, 3), "layer1_0/conv1/kernel", CONV),
    "layer2.0.downsample.0.weight": ((8, 4, 1, 1), "layer2_0/downsample_0/kernel", CONV),
    "layer2.0.downsample.1.running_var": ((8,), "layer2_0/downsample_1/var", (0,)),
    "layer2.10.bn2.weight": ((8,), "layer2_10/bn2/scale", (0,)),
    "features.0.1.running_mean": ((32,), "features_0_1/mean", (0,)),
    "features.3.conv.0.0.weight": ((144, 24, 1, 1), "features_3/conv_0_0/kernel", CONV),
    "features.3.conv.1.0.weight": ((144, 1, 3, 3), "features_3/conv_1_0/kernel", CONV),
    "features.3.conv.3.bias": ((24,), "features_3/conv_3/bias", (0,)),
    "inception3a.branch2.0.conv.weight": ((9, 5, 1, 1), "inception3a/branch2_0/conv/kernel", CONV),
    "inception3a.branch1.bn.running_mean": ((64,), "inception3a/branch1/bn/mean", (0,)),
    "class_token": ((1, 1, 6), "class_token", (0, 1, 2)),
    "conv_proj.weight": ((6, 3, 4, 4), "conv_proj/kernel", CONV),
    "encoder.pos_embedding": ((1, 5, 6), "pos_embedding", (0, 1, 2)),
    f"{ENCODER}0.ln_1.weight": ((6,), "layers_0/ln_1/scale", (0,)),
    f"{ENCODER}10.{ATTN}.in_proj_weight": ((18, 6), f"layers_10/{ATTN}/in_proj/kernel", (1, 0)),
    f"{ENCODER}0.{ATTN}.in_proj_bias": ((18,), f"layers_0/{ATTN}/in_proj/bias", (0,)),
    f"{ENCODER}0.{ATTN}.out_proj.weight": ((6, 6), f"layers_0/{ATTN}/out_proj/kernel", (1, 0)),
    f"{ENCODER}0.mlp.0.weight": ((9, 6), "layers_0/mlp_0/kernel", (1, 0)),
    f"{ENCODER}1.mlp.linear_1.bias": ((9,), "layers_1/mlp_0/bias", (0,)),
    f"{ENCODER}1.mlp.linear_2.weight": ((6, 9), "layers_1/mlp_3/kernel", (1, 0)),
    "encoder.ln.bias": ((6,), "ln/bias", (0,)),
}


@pytest.mark.parametrize("key", NAMES)
def test_names_and_layouts(key):
    shape, place, axes = NAMES[key]
    value = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = value.transpose(axes)
    place = tuple(place.split("/"))
    collection = "stats" if place[-1] in ("mean", "var") else "params"
    blank = {("base", *place): np.zeros(expected.shape, np.float32)}
    variables = {collection: unflatten_dict(blank)}
    result = variables_from_torchvision({key: value}, variables)
    np.testing.assert_array_equal(flatten_dict(result)[(collection, "base", *place)], expected)


def tiny_resnet():
    """Shapes of a ResNet whose second to fourth blocks are stacked, and a state dict that fits."""
    bucket = bucket_of(SplitModel(ResNet((4,), 8, width=2, scan_from=3), Linear(10), stateful=True))
    rng = np.random.default_rng(0)
    shapes = {"conv1.weight": (2, 3, 7, 7)}
    for block in range(4):
        shapes |= {f"layer1.{block}.conv{i}.weight": (2, 2, 3, 3) for i in (1, 2)}
    for norm in ("bn1", *(f"layer1.{block}.bn{i}" for block in range(4) for i in (1, 2))):
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{leaf}"] = (2,)
    state_dict = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    ignored = {"bn1.num_batches_tracked": np.array(3), "fc.bias": np.ones(1000)}
    return zeros(bucket), state_dict, ignored | {"fc.weight": np.ones((1000, 2))}


def test_stacked_blocks_and_untouched_parts():
    variables, state_dict, ignored = tiny_resnet()
    before = jax.tree.map(np.copy, variables)
    result = variables_from_torchvision(state_dict | ignored, variables)
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), variables)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), result) == expected
    blocks = result["params"]["base"]["layer1_blocks"], result["stats"]["base"]["layer1_blocks"]
    for block in (1, 2, 3):
        expected = state_dict[f"layer1.{block}.conv2.weight"].transpose(2, 3, 1, 0)
        np.testing.assert_allclose(blocks[0]["conv2"]["kernel"][block - 1], expected)
        expected = state_dict[f"layer1.{block}.bn1.running_var"]
        np.testing.assert_allclose(blocks[1]["bn1"]["var"][block - 1], expected)
    assert result["params"]["head"] is variables["params"]["head"]
    jax.tree.map(np.testing.assert_array_equal, variables, before)
    apart = {name: unstack_blocks(tree) for name, tree in variables.items()}
    unstacked = variables_from_torchvision(state_dict, apart)["params"]
    jax.tree.map(np.testing.assert_array_equal, unstacked, unstack_blocks(result["params"]))


def test_weights_that_do_not_fit_are_refused():
    variables, state_dict, _ = tiny_resnet()
    rest = {name: value for name, value in state_dict.items() if name != "layer1.2.bn1.running_var"}
    with pytest.raises(ValueError, match=r"^the state dict has nothing for the model's"):
        variables_from_torchvision(rest, variables)
    more = state_dict | {"layer1.4.conv1.weight": np.ones((2, 2, 3, 3))}
    with pytest.raises(ValueError, match=r"^the state dict has layer1\.4\.conv1\.weight, for"):
        variables_from_torchvision(more, variables)
    grey = state_dict | {"conv1.weight": np.ones((2, 1, 7, 7))}
    message = (
        r"conv1.weight has shape \(2, 1, 7, 7\), .* the model's conv1/kernel has \(7, 7, 3, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        variables_from_torchvision(grey, variables)
    rotated = state_dict | {"conv1.weight": state_dict["conv1.weight"] * 1j}
    with pytest.raises(ValueError, match=r"conv1.weight is complex\d+; weights are real numbers"):
        variables_from_torchvision(rotated, variables)


@functools.cache
def torchvision_models():
    """torchvision.models, or a skipped test."""
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        import torchvision.models
    # its compiled operators are for another build of torch; the models need only their schemas
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        torchvision_models.library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            scheme = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torchvision_models.library.define(scheme)
        import torchvision.models
    return torchvision.models


def randomised(model):
    """Moves scales, biases, tokens and statistics off ones and zeros; drops the classifier."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter.add_(0.2 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 1.5)
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    for name in ("fc", "classifier", "heads"):
        if hasattr(model, name):
            setattr(model, name, torch.nn.Identity())
    return model


def googlenet(models):
    import torch

    model = models.googlenet(weights=None, aux_logits=False, init_weights=False)
    for parameter in model.parameters():
        if parameter.ndim == 4:
            torch.nn.init.kaiming_normal_(parameter)
    return model


def compare(model, module, path, precision):
    """Loads torch weights through a file; {mode: (largest difference, over the largest value)}."""
    import torch

    model = randomised(model).to(getattr(torch, precision))
    torch.save(model.state_dict(), path)
    bucket = bucket_of(module)
    variables = variables_from_torchvision(load_state_dict(path), zeros(bucket, precision))
    x = np.random.default_rng(0).standard_normal((8, *SIZE)).astype(precision)
    differences = {}
    for train in (False, True):
        model.train(train)
        with torch.no_grad():
            expected = model(torch.from_numpy(x).permute(0, 3, 1, 2))
            expected = torch.nn.functional.adaptive_avg_pool1d(expected, bucket.feature_dim).numpy()
        run = jax.jit(functools.partial(features, bucket, train=train))
        out, stats = run(variables["params"], variables["stats"], x, jnp.ones(len(x), bool))
        assert out.dtype == precision
        differences["train" if train else "eval"] = difference(out, expected)
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    expected = variables_from_torchvision(after, variables)["stats"]
    leaves = zip(*map(jax.tree.leaves, (stats, expected)), strict=True)
    worst = [difference(out, value) for out, value in leaves]
    if worst:
        differences["statistics"] = tuple(max(values) for values in zip(*worst))
    return differences


def difference(out, expected):
    gap = np.abs(np.asarray(out) - np.asarray(expected)).max()
    return float(gap), float(gap / np.abs(np.asarray(expected)).max())


SMALL = {
    "basic blocks": (
        lambda m: m.resnet.ResNet(m.resnet.BasicBlock, [4, 1, 1, 1]),
        SplitModel(ResNet((4, 1, 1, 1), 384), Linear(10), stateful=True),
    ),
    "bottlenecks": (
        lambda m: m.resnet.ResNet(m.resnet.Bottleneck, [1, 2, 1, 1]),
        SplitModel(ResNet((1, 2, 1, 1), bottleneck=True, scan_from=1), Linear(10), stateful=True),
    ),
    "vit": (
        lambda m: m.VisionTransformer(32, 8, num_layers=3, num_heads=2, hidden_dim=24, mlp_dim=40),
        SplitModel(ViT(8, 3, 2, 24, 40, feature_dim=16), Linear(10)),
    ),
}
WHOLE = {"mobilenet_v2": lambda m: m.mobilenet_v2(weights=None), "googlenet": googlenet}
BIG = {
    "resnet18": lambda m: m.resnet18(weights=None),
    "resnet34": lambda m: m.resnet34(weights=None),
    "resnet50": lambda m: m.resnet50(weights=None),
    "resnet101": lambda m: m.resnet101(weights=None),
    "resnet152": lambda m: m.resnet152(weights=None),
    "vit_b16": lambda m: m.vit_b_16(weights=None, image_size=32),
    "vit_b32": lambda m: m.vit_b_32(weights=None, image_size=32),
}
# In training the last stages normalise over the batch's few values, which magnifies rounding.
TOLERANCES = {
    "float32": {"eval": 2e-5, "train": 5e-3, "statistics": 5e-3},
    "float64": {"eval": 1e-9, "train": 1e-9, "statistics": 1e-9},
}


def check(model, module, path, precision):
    differences = compare(model, module, path, precision)
    print(precision, differences)
    for mode, (_, relative) in differences.items():
        assert relative < TOLERANCES[precision][mode], (mode, differences)


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", SMALL)
def test_small_members_compute_what_torchvision_does(tmp_path, name, precision):
    reference, module = SMALL[name]
    check(reference(torchvision_models()), module, tmp_path / "weights.pth", precision)


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_compute_what_torchvision_does(tmp_path, name, precision):
    module = model_group(name, 10, SIZE)[name]
    check(WHOLE[name](torchvision_models()), module, tmp_path / "weights.pth", precision)


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_big_models_compute_what_torchvision_does(tmp_path, name, precision):
    module = model_group(name, 10, SIZE)[name]
    check(BIG[name](torchvision_models()), module, tmp_path / "weights.pth", precision)

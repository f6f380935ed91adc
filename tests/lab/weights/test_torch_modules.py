"""Weights of a PyTorch module: the flax model computes what the layers of torch compute."""

import re

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from tests.lab.runs.folders import refused

RNG = np.random.default_rng(0)
ARRAYS = {  # of torch, by its names, in its layouts
    "conv.weight": (4, 2, 3, 3),
    "conv.bias": (4,),
    "norm.weight": (4,),
    "norm.bias": (4,),
    "norm.running_mean": (4,),
    "norm.running_var": (4,),
    "groups.weight": (4,),
    "groups.bias": (4,),
    "fc.weight": (3, 36),
    "fc.bias": (3,),
    "out.weight": (2, 3),
}
ARRAYS = {key: RNG.uniform(0.5, 1.5, shape).astype(np.float32) for key, shape in ARRAYS.items()}
KINDS = {"conv": "Conv2d", "norm": "BatchNorm2d", "groups": "GroupNorm", "fc": "Linear"}
KINDS["out"] = "Linear"
LAYERS = {"conv": "base/Conv_0", "norm": "base/BatchNorm_0", "groups": "base/GroupNorm_0"}
LAYERS |= {"fc": "base/Dense_0", "out": "head"}
FLATTENED = {"fc": (4, 3, 3)}


class Module:
    """What is asked of a `torch.nn.Module`: the class and the arrays of each layer, by name."""

    def __init__(self, kinds, arrays):
        self.kinds, self.arrays = kinds, arrays

    def named_modules(self):
        yield "", self
        for name, kind in self.kinds.items():
            yield name, type(kind, (), {})()

    def state_dict(self):
        counts = {
            f"{n}.num_batches_tracked": np.array(7) for n, k in self.kinds.items() if "Ba" in k
        }
        return self.arrays | counts


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.Conv(4, (3, 3), padding=0)(x)
        real = None if mask is None else mask[:, None, None, None]
        x = nn.BatchNorm(use_running_average=not train, epsilon=1e-5)(x, mask=real)
        x = nn.GroupNorm(2, epsilon=1e-5)(x)
        return nn.Dense(3)(x.reshape(len(x), -1))


def by_hand(x, a):
    """The scores of images [B, C, H, W] by torch's definitions, in loops and sums."""
    maps = np.zeros((len(x), 4, 3, 3))
    for i in range(3):
        for j in range(3):
            patch = x[:, :, i : i + 3, j : j + 3]
            maps[:, :, i, j] = np.einsum("bchw,ochw->bo", patch, a["conv.weight"]) + a["conv.bias"]

    def channel(name):
        return a[f"norm.{name}"][:, None, None]

    maps = (maps - channel("running_mean")) / np.sqrt(channel("running_var") + 1e-5)
    maps = maps * channel("weight") + channel("bias")
    parts = maps.reshape(len(x), 2, -1)
    mean, var = parts.mean(-1, keepdims=True), parts.var(-1, keepdims=True)
    maps = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(maps.shape)
    maps = maps * a["groups.weight"][:, None, None] + a["groups.bias"][:, None, None]
    return (maps.reshape(len(x), -1) @ a["fc.weight"].T + a["fc.bias"]) @ a["out.weight"].T


def test_scores_are_those_of_torchs_layers_computed_by_hand():
    model = fl.SplitModel(Net(), nn.Dense(2, use_bias=False), stateful=True)
    federation = fl.make_federation({"net": model}, (5, 5, 2), 2, num_clients=1)
    arrays = fl.weights_from_torch(Module(KINDS, ARRAYS), LAYERS, FLATTENED)
    bucket = fl.with_weights(federation, {"net": arrays}, head=True).buckets[0]
    images = RNG.normal(size=(6, 2, 5, 5)).astype(np.float32)
    scores = fl.head_scores(bucket, bucket.weights, images.transpose(0, 2, 3, 1), jnp.ones(6, bool))
    np.testing.assert_allclose(scores, by_hand(images, ARRAYS), rtol=1e-4, atol=1e-5)


def test_rows_of_an_embedding_and_steps_of_a_convolution():
    a = {"e.weight": RNG.normal(size=(9, 4)), "c.weight": RNG.normal(size=(5, 4, 3))}
    module = Module({"e": "Embedding", "c": "Conv1d"}, {k: np.float32(v) for k, v in a.items()})
    arrays = fl.weights_from_torch(module, {"e": "base/Embed_0", "c": "base/Conv_0"})
    tokens = np.array([[1, 8, 0, 2]])
    embed, conv = nn.Embed(9, 4), nn.Conv(5, (3,), padding=0, use_bias=False)
    rows = embed.apply({"params": {"embedding": arrays["params/base/Embed_0/embedding"]}}, tokens)
    found = conv.apply({"params": {"kernel": arrays["params/base/Conv_0/kernel"]}}, rows)
    rows = a["e.weight"][tokens[0]]
    wanted = [np.einsum("tc,oct->o", rows[i : i + 3], a["c.weight"]) for i in range(2)]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)


REFUSED = {  # kinds, more arrays, layers, flattened -> the message
    "not named": ({}, {}, {"out": ...}, {}, "layers: 'out' is missing or unknown; weights are in"),
    "unknown": ({}, {}, {"fc2": "head"}, {}, "layers: 'fc2' is missing or unknown"),
    "unknown flattened": ({}, {}, {}, {"fc3": (4, 3, 3)}, "layers: 'fc3' is missing or unknown"),
    "recurrent": ({"out": "LSTM"}, {}, {}, {}, "'out' is a LSTM with weight, which cannot be conv"),
    "transposed": ({"conv": "ConvTranspose2d"}, {}, {}, {}, "'conv' is a ConvTranspose2d with we"),
    "own parameter": ({}, {"scale": np.ones(3)}, {"": "base"}, {}, "'' is a Module with scale, wh"),
    "more arrays": ({}, {"fc.gain": np.ones(3)}, {}, {}, "'fc' is a Linear with weight, bias"),
    "twice": ({}, {}, {"groups": "base/BatchNorm_0"}, {}, "layers has the path 'base/BatchNorm_0'"),
    "other image": ({}, {}, {}, {"fc": (4, 3)}, "'fc' takes 36 values of a flattened image; its"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_by_name(case):
    kinds, arrays, layers, flattened, message = REFUSED[case]
    layers = {name: path for name, path in (LAYERS | layers).items() if path is not ...}
    with refused(f"^{re.escape(message)}"):
        module = Module(KINDS | kinds, ARRAYS | arrays)
        fl.weights_from_torch(module, layers, FLATTENED | flattened)


def test_every_layer_on_a_flattened_image_has_its_order():
    """Two heads on one image, a normalisation of it, and a Linear of channels in between."""
    more = {"squeeze.weight": (2, 4), "excite.weight": (4, 2), "b.weight": (3, 36)}
    more |= {f"flat.{leaf}": (36,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    arrays = ARRAYS | {key: np.float32(RNG.normal(size=shape)) for key, shape in more.items()}
    names = ("conv", "squeeze", "excite", "flat", "fc", "b")
    arrays = {key: x for key, x in arrays.items() if key.split(".")[0] in names}
    kinds = dict.fromkeys(names, "Linear") | {"conv": "Conv2d", "flat": "BatchNorm1d"}
    layers, image = {name: f"base/{name}" for name in names}, (4, 3, 3)
    for asked in ("flat", "fc", "b"):
        flattened = {name: image for name in ("flat", "fc", "b") if name != asked}
        with pytest.raises(ValueError, match=f"'{asked}' takes 36 values of a flattened image"):
            fl.weights_from_torch(Module(kinds, arrays), layers, flattened)
    found = fl.weights_from_torch(Module(kinds, arrays), layers, flattened | {"b": image})
    order = np.arange(36).reshape(image).transpose(1, 2, 0).ravel()
    for name in ("fc", "b"):
        np.testing.assert_array_equal(
            found[f"params/base/{name}/kernel"], arrays[f"{name}.weight"].T[order]
        )
    np.testing.assert_array_equal(found["stats/base/flat/mean"], arrays["flat.running_mean"][order])
    np.testing.assert_array_equal(found["params/base/excite/kernel"], arrays["excite.weight"].T)


FLAT = {  # sizes of the weights, in order -> the shape of what fc takes
    "a perceptron": ({"fc": (8, 48), "out": (5, 8)}, (3, 4, 4)),
    "as wide as an earlier convolution": (
        {"wide": (64, 3, 3, 3), "conv": (16, 64, 3, 3), "fc": (10, 64)},
        (16, 2, 2),
    ),
    "before its convolution": ({"fc": (3, 36), "conv": (4, 2, 3, 3)}, (4, 3, 3)),
    "as wide as itself": ({"conv": (16, 3, 3, 3), "fc": (64, 64), "out": (5, 64)}, (16, 2, 2)),
}


@pytest.mark.parametrize("case", FLAT)
def test_a_flattened_image_is_known_by_the_layers_before(case):
    sizes, image = FLAT[case]
    kinds = {name: "Linear" if len(size) == 2 else "Conv2d" for name, size in sizes.items()}
    values = {f"{name}.weight": np.float32(RNG.normal(size=size)) for name, size in sizes.items()}
    module, layers = Module(kinds, values), {name: f"base/{name}" for name in sizes}
    inputs = sizes["fc"][1]
    with refused(rf"'fc' takes {inputs} values of a .* \({inputs}, 1, 1\) if it is no image"):
        fl.weights_from_torch(module, layers)
    order = np.arange(inputs).reshape(image).transpose(1, 2, 0).ravel()
    for given, rows in ((image, order), ((inputs, 1, 1), np.arange(inputs))):
        found = fl.weights_from_torch(module, layers, {"fc": given})
        np.testing.assert_array_equal(found["params/base/fc/kernel"], values["fc.weight"].T[rows])


NORMS = {  # sizes of the weights before it, size of a LayerNorm -> how its axes move, if known
    "an image": ({"conv": (4, 2, 3, 3)}, (4, 5, 6), (1, 2, 0)),
    "a sequence": ({"fc": (6, 3)}, (5, 6), (0, 1)),
    "steps of a convolution": ({"conv": (5, 4, 3)}, (5, 6), None),
    "channels last": ({"conv": (4, 2, 3, 3)}, (5, 6, 4), None),
    "no convolution": ({"fc": (4, 3)}, (4, 5, 6), None),
}


@pytest.mark.parametrize("case", NORMS)
def test_a_norm_of_several_axes_has_flaxs_order_or_is_refused(case):
    sizes, size, axes = NORMS[case]
    kinds = {name: "Linear" if name == "fc" else f"Conv{len(s) - 2}d" for name, s in sizes.items()}
    values = {f"{name}.weight": np.ones(s) for name, s in sizes.items()}
    values |= {"norm.weight": RNG.normal(size=size), "norm.bias": RNG.normal(size=size)}
    module, layers = Module(kinds | {"norm": "LayerNorm"}, values), dict.fromkeys(sizes)
    if axes is None:
        with refused(re.escape(f"'norm' normalises {size}, which is not the [C, H, W] of a conv")):
            fl.weights_from_torch(module, layers | {"norm": "base/norm"})
        return
    found = fl.weights_from_torch(module, layers | {"norm": "base/norm"})
    for leaf, name in (("scale", "weight"), ("bias", "bias")):
        expected = values[f"norm.{name}"].transpose(axes)
        np.testing.assert_array_equal(found[f"params/base/norm/{leaf}"], expected)


def test_a_model_of_tokens_flattens_no_image():
    values = {"e.weight": np.ones((9, 4)), "fc.weight": np.ones((2, 8))}
    module = Module({"e": "Embedding", "fc": "Linear"}, values)
    fl.weights_from_torch(module, {"e": "base/e", "fc": "base/fc"})


def test_a_flattened_image_is_asked_for_and_a_skipped_layer_is_not_read():
    with pytest.raises(ValueError, match=r"give flattened=\{'fc': \(C, H, W\)\}"):
        fl.weights_from_torch(Module(KINDS, ARRAYS), LAYERS)
    with pytest.raises(ValueError, match=r"module is .*; it must be a torch\.nn\.Module"):
        fl.weights_from_torch(ARRAYS, LAYERS)
    kinds = KINDS | {"out": "LSTM"}
    arrays = fl.weights_from_torch(Module(kinds, ARRAYS), LAYERS | {"out": None}, FLATTENED)
    assert not any("head" in path for path in arrays)

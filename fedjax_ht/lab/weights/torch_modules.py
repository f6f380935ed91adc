"""Converts weights of a PyTorch module to flax's names and layouts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ht.check.names import kind_of_value, listed
from fedjax_ht.check.options import checked
from fedjax_ht.data.conversion import as_array
from fedjax_ht.lab.weights.torchvision import kernel_of

_WEIGHTS = {"Embedding": "embedding"}  # torch class -> flax's name of its weight
_WEIGHTS |= dict.fromkeys(("Linear", "Conv1d", "Conv2d"), "kernel")
_WEIGHTS |= dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm"), "scale")
_ON_ROWS = ("Linear", "BatchNorm1d")  # may take flattened images
_OTHERS = {"bias": "bias", "running_mean": "mean", "running_var": "var"}


@checked
def weights_from_torch(
    module: Any,
    layers: Mapping[str, str | None],
    flattened: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the arrays of a `torch.nn.Module` as in flax, for `fl.with_weights`.

    Names and layouts are flax's. Layers are Linear, Conv, BatchNorm, GroupNorm, LayerNorm (over
    features, over [C, H, W] behind a convolution, or over [T, C] in a module without convolutions)
    and Embedding. Their settings come from the flax module: epsilon, padding, stride and the order
    of layers are not compared.

    Args:
      module: the module.
      layers: name of each layer with weights -> path of the flax layer, {"conv1": "base/Conv_0"};
        None skips a layer, such as a classifier for other classes.
      flattened: name of a Linear or a BatchNorm1d that takes flattened images -> their shape
        [C, H, W]. Flax flattens [H, W, C], so its kernel has another order. Layers need a shape
        unless they have as many inputs as the last convolution has channels, or as a Linear since
        then has outputs. Without convolutions, the images are the module's inputs; a module with
        embeddings has none. "Last" is by the order of `module.state_dict()`: name layers yourself
        if the forward pass has another. (N, 1, 1) keeps the order of N inputs.

    Raises:
      ValueError: a layer is missing from `layers` or from the module, has another kind, or takes
        flattened images of unknown shape. One line.

    Example:
      >>> layers = {"0": "base/Conv_0", "3": "base/Dense_0"}
      >>> arrays = fl.weights_from_torch(net, layers, {"3": (8, 4, 4)})  # doctest: +SKIP
      >>> federation = fl.with_weights(federation, {"cnn": arrays})  # doctest: +SKIP
    """
    if not hasattr(module, "named_modules"):
        raise ValueError(f"module is {kind_of_value(module)}; it must be a torch.nn.Module")
    sources: dict[str, dict[str, np.ndarray]] = {}
    for key, value in module.state_dict().items():
        name, _, leaf = key.rpartition(".")
        if leaf != "num_batches_tracked":
            sources.setdefault(name, {})[leaf] = as_array(key, value)
    images = flattened or {}
    if wrong := sorted((layers.keys() ^ sources.keys()) | (images.keys() - sources.keys())):
        raise ValueError(
            f"layers: {wrong[0]!r} is missing or unknown; weights are in {listed(list(sources))}; "
            "give each the path of its flax layer, such as 'base/Dense_0', or None to skip it"
        )
    kinds = {name: type(layer).__name__ for name, layer in module.named_modules()}
    arrays: dict[str, np.ndarray] = {}
    shapes = {name: next(iter(source.values())).shape for name, source in sources.items()}
    channels = [shapes[name][0] for name in sources if kinds[name].startswith("Conv")]
    sees_images = bool(channels) or "Embedding" not in kinds.values()
    # Numbers of inputs that are no flattened image: the channels of the last convolution so far and
    # the outputs of Linears since. A Linear before all convolutions may be the classifier.
    widths = set(channels[-1:])
    for name, source in sources.items():
        kind, path, shape = kinds[name], layers[name], shapes[name]
        is_flat = sees_images and kind in _ON_ROWS and shape[-1] not in widths
        if kind.startswith("Conv"):
            widths = {shape[0]}
        elif kind == "Linear":
            widths.add(shape[0])
        if path is None:
            continue
        if kind not in _WEIGHTS or not source.keys() - _OTHERS.keys() <= {"weight"}:
            found = f"{name!r} is a {kind} with {listed(list(source))}"
            raise ValueError(f"{found}, which cannot be converted; {', '.join(_WEIGHTS)} can")
        if is_flat or name in images:
            for leaf in ("weight",) if kind == "Linear" else tuple(source):
                source[leaf] = _channels_last(name, source[leaf], images.get(name))
        if kind == "LayerNorm" and (len(shape) > 2 or (len(shape) == 2 and channels)):
            if not channels or len(shape) != 3 or shape[0] not in widths:
                raise ValueError(
                    f"{name!r} normalises {shape}, which is not the [C, H, W] of a convolution; "
                    "give None in layers to skip it, and its arrays in flax's order by name"
                )
            source = {leaf: np.moveaxis(value, 0, -1) for leaf, value in source.items()}
        for leaf, value in source.items():
            target = _OTHERS.get(leaf, _WEIGHTS[kind])
            if target == "kernel":
                value = kernel_of(value)
            collection = "stats" if leaf.startswith("running") else "params"
            if arrays.setdefault(f"{collection}/{path}/{target}", value) is not value:
                raise ValueError(f"layers has the path {path!r} more than once")
    return arrays


def _channels_last(name: str, array: np.ndarray, image: Sequence[int] | None) -> np.ndarray:
    """Returns an array whose last axis is a flattened [C, H, W] in the order of [H, W, C]."""
    inputs = array.shape[-1]
    if image is None or len(image) != 3 or math.prod(image) != inputs:
        found = f"{name!r} takes {inputs} values of a flattened image; its shape is {image}"
        advice = f"give flattened={{{name!r}: (C, H, W)}}, or ({inputs}, 1, 1) if it is no image"
        raise ValueError(f"{found}; {advice}")
    return np.moveaxis(array.reshape(-1, *image), 1, -1).reshape(array.shape)

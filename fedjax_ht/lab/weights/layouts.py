"""Weights of a whole model from the arrays of a file, and back to torch.

Models whose extractor is torchvision's have a state dict of its names, which torchvision loads
strictly: the mean over features that brings its width to K is linear, and folded into the head's
first layer. Others have names of their own.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.lab.weights.hugging_face.folder import names_of
from fedjax_ht.lab.weights.hugging_face.names import head_arrays, own_arrays
from fedjax_ht.models.convnets import GoogLeNet, MobileNetV2, ResNet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import DenseHead, SplitModel
from fedjax_ht.models.torchvision import (
    extractor_arrays,
    has_flax_names,
    in_flax_layout,
    state_dict_of_torchvision,
    variables_from_torchvision,
)
from fedjax_ht.models.vits import ViT
from fedjax_ht.ops import adaptive_pool

Arrays = Mapping[str, np.ndarray]
Variables = dict[str, Any]


def state_dict(module: nn.Module, variables: Variables) -> dict[str, np.ndarray]:
    """Returns a model's arrays for torch.

    They have torchvision's names and layouts where the extractor is torchvision's, else those of
    `own_names`.

    Args:
      module: a `SplitModel`, or any that has parameters "base" and "head".
      variables: the module's {"params", "stats"}.
    """
    layers, head = _head_layers(module), variables["params"]["head"]
    # A method may have put a head of its own in the place of the model's.
    if layers is None or any("kernel" not in _at(head, path) for path in layers):
        return own_names(variables)
    arrays = state_dict_of_torchvision(variables)
    for i, (path, name) in enumerate(layers.items()):
        layer = _at(head, path)
        kernel = np.asarray(layer["kernel"])
        # torchvision's head sees all of the extractor's features, ours their means.
        weight = _pooling(module.base) @ kernel if i == 0 else kernel
        arrays[f"{name}.weight"] = weight.T.astype(kernel.dtype)
        arrays[f"{name}.bias"] = np.asarray(layer["bias"])
    return arrays


def own_names(variables: Variables) -> dict[str, np.ndarray]:
    """Returns arrays by path, such as "params/base/conv1/kernel", in flax's layouts."""
    return {path: np.asarray(leaf) for path, leaf in flatten_dict(variables, sep="/").items()}


def starting_weights(
    arrays: Arrays, module: nn.Module, variables: Variables, head: bool = False
) -> Variables:
    """Returns the weights that a model starts from: an extractor's, and a head's where it fits.

    Args:
      arrays: a map from names to arrays: torchvision's or our own, see `state_dict`, or those of a
        file of Hugging Face's, for a model of one of its folders.
      module, variables: the model's module and its variables.
      head: True takes the head, too, where it computes the same here.

    Returns:
      The extractor's weights and running statistics, and perhaps the head's, in `variables`' form.

    Raises:
      ValueError: the extractor's arrays do not fit, or are not finite.
    """
    blank = {}
    for collection, tree in variables.items():
        if "base" in tree:
            blank[collection] = {"base": _blank(tree["base"])}
    extractor, names = arrays, names_of(module)
    if names is not None and not has_flax_names(arrays):
        extractor = own_arrays(arrays, names, blank["params"]["base"])
    weights = variables_from_torchvision(extractor, blank)
    if head:
        head_weights = _head(arrays, module, variables["params"]["head"])
        if head_weights is not None:
            weights["params"]["head"] = head_weights
    weights = jax.tree.map(np.asarray, weights)
    for path, array in own_names(weights).items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path} has values that are not finite")
    return weights


def has_head(arrays: Arrays, module: nn.Module, variables: Variables) -> bool:
    """Returns whether `starting_weights` would find a head for the model."""
    return _head(arrays, module, variables["params"]["head"]) is not None


def size(arrays: Arrays, module: nn.Module, variables: Variables) -> tuple[int, int]:
    """Returns how many arrays of a model a file has, and how many the model would be written as."""
    if has_flax_names(arrays):
        stored = [key for key in arrays if key.startswith(("params/", "stats/"))]
        return len(stored), len(own_names(variables))
    return len(arrays), len(state_dict(module, _blank(variables)))


def looks_like(arrays: Arrays, known: Mapping[str, Variables]) -> str | None:
    """Returns the architecture whose extractor has arrays of the same names as a file.

    Args:
      arrays: the arrays of the file, by name.
      known: a map from architectures to their variables.

    Returns:
      Of several the one with the most arrays of the same shapes; None if none has these names.
    """
    shapes = {}
    for path, (key, value) in extractor_arrays(arrays).items():
        shapes[path] = in_flax_layout(path, key, value).shape
    num_equal = {}
    for name, variables in known.items():
        candidate = extractor_arrays(own_names(_blank(variables)))
        if candidate.keys() == shapes.keys():
            num_equal[name] = sum(
                shapes[path] == value.shape for path, (_, value) in candidate.items()
            )
    return max(num_equal, key=num_equal.__getitem__, default=None)


def _head(arrays: Arrays, module: nn.Module, like: Variables) -> Variables | None:
    """Returns the head of a file in the form of `like`, or None where it has none that fits."""
    paths: dict[str, Any] = flatten_dict(like, sep="/")
    if has_flax_names(arrays):
        values = {path: arrays.get(f"params/head/{path}") for path in paths}
    elif names := names_of(module):
        values = head_arrays(arrays, names)
    else:
        values = _torchs_head(arrays, module)
    if values.keys() != paths.keys():
        return None
    head = {}
    for path, value in values.items():
        if value is None or value.shape != paths[path].shape:
            return None
        head[path] = value.astype(paths[path].dtype)
    return unflatten_dict(head, sep="/")


def _torchs_head(arrays: Arrays, module: nn.Module) -> dict[str, np.ndarray | None]:
    """Returns a torch head's arrays by flax's paths, None where one is missing."""
    values = {}
    for i, (path, name) in enumerate((_head_layers(module) or {}).items()):
        kernel = arrays.get(f"{name}.weight")
        if kernel is not None:
            kernel = kernel.T
            if i == 0:
                kernel = _unfolded(kernel, module.base)
        values["/".join((*path, "kernel"))] = kernel
        values["/".join((*path, "bias"))] = arrays.get(f"{name}.bias")
    return values


def _unfolded(kernel: np.ndarray, base: nn.Module) -> np.ndarray | None:
    """Returns the kernel on K pooled features that is the same function as one on all features.

    None where there is none: pooling loses what the kernel needs.
    """
    pooling = _pooling(base)
    if len(kernel) != len(pooling):
        return None
    on_features = np.linalg.pinv(pooling) @ kernel
    tolerance = 1e-5 * np.abs(kernel).max(initial=0)
    if np.allclose(pooling @ on_features, kernel, rtol=0, atol=tolerance):
        return on_features
    return None


def _pooling(base: nn.Module) -> np.ndarray:
    """Returns the matrix [width, K] that `adaptive_pool` multiplies an extractor's features by."""
    return np.asarray(adaptive_pool(jnp.eye(_width(base)), base.feature_dim), np.float64)


def _width(base: nn.Module) -> int:
    """Returns the number of features of torchvision's extractor, before they are pooled."""
    if isinstance(base, ResNet):
        channels = base.width * 2 ** (len(base.stages) - 1)
        return 4 * channels if base.bottleneck else channels
    if isinstance(base, ViT):
        return base.width
    return {GoogLeNet: 1024, MobileNetV2: 1280}[type(base)]


def _head_layers(module: nn.Module) -> dict[tuple[str, ...], str] | None:
    """Returns the path of each of the head's layers -> its name in torchvision's model.

    A head of several layers is an `nn.Sequential` in the place of torchvision's classifier. None
    where the extractor or the head is none of torchvision's.
    """
    places = {ResNet: "fc", GoogLeNet: "fc", MobileNetV2: "classifier.1", ViT: "heads.head"}
    if not isinstance(module, SplitModel) or type(module.base) not in places:
        return None
    place, head = places[type(module.base)], module.head
    if isinstance(head, Linear):
        return {(): place}
    if not isinstance(head, DenseHead):
        return None
    if not head.widths:
        return {("fc1",): place}
    if isinstance(module.base, ViT) and len(head.widths) == 1:
        return {("fc1",): "heads.pre_logits", ("fc2",): place}
    # Activations stand between the linear layers, so that these have even places.
    return {(f"fc{i + 1}",): f"{place}.{2 * i}" for i in range(len(head.widths) + 1)}


def _at(tree: Variables, path: tuple[str, ...]) -> Variables:
    return tree.get(path[0], {}) if path else tree


def _blank(tree: Any) -> Any:
    """Returns zeros of the same shapes and dtypes, which take no memory."""

    def zeros(x):
        return np.broadcast_to(np.zeros((), x.dtype), x.shape)

    return jax.tree.map(zeros, tree)

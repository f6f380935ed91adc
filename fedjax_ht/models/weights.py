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

from fedjax_ht.models.heads import DenseHead
from fedjax_ht.models.inception import GoogLeNet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.mobilenet import MobileNetV2
from fedjax_ht.models.resnets import ResNet
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.torchvision import (
    OWN,
    extractor_arrays,
    in_flax_layout,
    state_dict_of_torchvision,
    variables_from_torchvision,
)
from fedjax_ht.models.vits import ViT
from fedjax_ht.ops import adaptive_pool

Arrays = Mapping[str, np.ndarray]
Variables = dict[str, Any]


def state_dict(module: nn.Module, variables: Variables) -> dict[str, np.ndarray]:
    """A model for torch: torchvision's names and layouts where its extractor is torchvision's, else
    `own_names`.

    Args:
      module: a `SplitModel`, or any that has parameters "base" and "head".
      variables: its {"params", "stats"}.
    """
    layers, head = _head_layers(module), variables["params"]["head"]
    # a method's own head
    if layers is None or any("kernel" not in _at(head, path) for path in layers):
        return own_names(variables)
    arrays = state_dict_of_torchvision(variables)
    for i, (path, name) in enumerate(layers.items()):
        layer = _at(head, path)
        kernel = np.asarray(layer["kernel"])
        arrays[f"{name}.weight"] = (_pooling(module.base) @ kernel if i == 0 else kernel).T.astype(
            kernel.dtype
        )
        arrays[f"{name}.bias"] = np.asarray(layer["bias"])
    return arrays


def own_names(variables: Variables) -> dict[str, np.ndarray]:
    """Arrays by path, "params/base/conv1/kernel", in flax's layouts."""
    return {path: np.asarray(leaf) for path, leaf in flatten_dict(variables, sep="/").items()}


def starting_weights(
    arrays: Arrays, module: nn.Module, variables: Variables, head: bool = False
) -> Variables:
    """What a model starts from, of `variables`' form: its extractor's weights and running
    statistics; and its head's where it is asked for and computes the same here.

    Args:
      arrays: by torchvision's names, or by our own, see `state_dict`.
      module, variables: the model's.

    Raises:
      ValueError: the extractor's arrays do not fit.
    """
    blank = {c: {"base": _blank(tree["base"])} for c, tree in variables.items() if "base" in tree}
    found = variables_from_torchvision(arrays, blank)
    given = _head(arrays, module, variables["params"]["head"]) if head else None
    if given is not None:
        found["params"]["head"] = given
    return jax.tree.map(np.asarray, found)


def has_head(arrays: Arrays, module: nn.Module, variables: Variables) -> bool:
    """Returns whether `starting_weights` would find a head for the model."""
    return _head(arrays, module, variables["params"]["head"]) is not None


def size(arrays: Arrays, module: nn.Module, variables: Variables) -> tuple[int, int]:
    """How many arrays a file has, and how many there would be of the model."""
    own = any(key.startswith(OWN) for key in arrays)
    model = own_names(variables) if own else state_dict(module, _blank(variables))
    return sum(not own or key.startswith(("params/", "stats/")) for key in arrays), len(model)


def looks_like(arrays: Arrays, known: Mapping[str, Variables]) -> str | None:
    """Which of the known architectures, with their variables, has an extractor of these names; of
    several the one with the most arrays of the same shapes."""
    found = extractor_arrays(arrays)
    shapes = {path: in_flax_layout(path, key, value).shape for path, (key, value) in found.items()}
    same = {}
    for name, variables in known.items():
        own = extractor_arrays(own_names(_blank(variables)))
        if own.keys() == shapes.keys():
            same[name] = sum(shapes[path] == value.shape for path, (_, value) in own.items())
    return max(same, key=same.__getitem__, default=None)


def _head(arrays: Arrays, module: nn.Module, wanted: Variables) -> Variables | None:
    """The head that is given, or None where it does not fit."""
    paths, layers = flatten_dict(wanted, sep="/"), _head_layers(module) or {}
    if any(key.startswith(OWN) for key in arrays):
        found = {path: arrays.get(f"params/head/{path}") for path in paths}
    else:
        found = {
            "/".join((*path, "kernel")): arrays.get(f"{name}.weight")
            for path, name in layers.items()
        }
        found = {path: None if kernel is None else kernel.T for path, kernel in found.items()}
        found |= {
            "/".join((*path, "bias")): arrays.get(f"{name}.bias") for path, name in layers.items()
        }
        first = next(iter(found), None)
        if first is not None and found[first] is not None:
            found[first] = _unfolded(found[first], module.base)
    if found.keys() != paths.keys() or any(
        v is None or v.shape != paths[p].shape for p, v in found.items()
    ):
        return None
    return unflatten_dict(
        {path: value.astype(paths[path].dtype) for path, value in found.items()}, sep="/"
    )


def _unfolded(kernel: np.ndarray, base: nn.Module) -> np.ndarray | None:
    """The kernel on K features that is the same function as one on all of them, or None where there
    is none."""
    pooling = _pooling(base)
    if len(kernel) != len(pooling):
        return None
    on_features = np.linalg.pinv(pooling) @ kernel
    same = np.allclose(
        pooling @ on_features, kernel, rtol=0, atol=1e-5 * np.abs(kernel).max(initial=0)
    )
    return on_features if same else None


def _pooling(base: nn.Module) -> np.ndarray:
    """The matrix [width, K] that `adaptive_pool` multiplies an extractor's own features by."""
    return np.asarray(adaptive_pool(jnp.eye(_width(base)), base.feature_dim), np.float64)


def _width(base: nn.Module) -> int:
    if isinstance(base, ResNet):
        return base.width * 2 ** (len(base.stages) - 1) * (4 if base.bottleneck else 1)
    return base.width if isinstance(base, ViT) else {GoogLeNet: 1024, MobileNetV2: 1280}[type(base)]


def _head_layers(module: nn.Module) -> dict[tuple[str, ...], str] | None:
    """Where the head's layers are here -> their names in torchvision's model, or in an
    `nn.Sequential` in the place of its classifier; None where the extractor or the head is none of
    torchvision's."""
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
    return {(f"fc{i + 1}",): f"{place}.{2 * i}" for i in range(len(head.widths) + 1)}


def _at(tree: Variables, path: tuple[str, ...]) -> Variables:
    return tree.get(path[0], {}) if path else tree


def _blank(tree: Any) -> Any:
    """Zeros that take no memory."""
    return jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), tree)

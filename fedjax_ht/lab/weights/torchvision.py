"""Converts weights between torchvision's models and this library's, by their names.

Dots between a name and a number become underscores: "layer1.0.conv1.weight" is
`layer1_0/conv1/kernel`, "features.3.conv.0.0.weight" is `features_3/conv_0_0/kernel`. A
transformer's `encoder` has no level of its own here: "encoder.layers.encoder_layer_0.ln_1.weight"
is `layers_0/ln_1/scale`. Arrays with this library's names, "params/base/conv1/kernel", also have
flax's layouts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.models.stacking import stack_blocks, unstack_blocks

CLASSIFIERS = ("fc", "_fc", "classifier", "heads", "aux1", "aux2")
_RENAMES = (
    (r"(^|\.)_", r"\1"),  # names of EfficientNet
    (r"^encoder\.layers\.encoder_layer_", "layers_"),
    (r"^encoder\.", ""),
    (r"\.in_proj_", ".in_proj."),
    (r"\.mlp\.linear_1\.", ".mlp.0."),  # in older files
    (r"\.mlp\.linear_2\.", ".mlp.3."),
    (r"\.(\d+)(?=\.)", r"_\1"),
)
_RENAMES_BACK = (
    (r"(?<!ln)_(\d+)(?=[._])", r".\1"),
    (r"^layers\.", "encoder.layers.encoder_layer_"),
    (r"^(ln\.|pos_embedding)", r"encoder.\1"),
    (r"\.in_proj\.", ".in_proj_"),
)
_LEAVES = {"running_mean": "mean", "running_var": "var"}
_LEAVES_BACK = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
FLAX_PREFIX = "params/base/"  # of an extractor's arrays with this library's names
Path = tuple[str, ...]


def variables_from_torchvision(
    state_dict: Mapping[str, np.ndarray], variables: dict[str, Any]
) -> dict[str, Any]:
    """Loads the extractor's weights and running statistics from a torchvision model.

    It supports the ResNets, GoogLeNet, MobileNetV2 and the vision transformers, with or without
    stacked blocks. Classifiers and auxiliary classifiers are ignored, and the head does not change.
    (Normalise images for torchvision's pretrained GoogLeNet with mean and standard deviation 0.5:
    torchvision's model converts ImageNet's normalisation to this one.)

    Args:
      state_dict: torchvision's names -> arrays, see `safe.torch_files.load_state_dict`.
      variables: variables of a model of the same architecture, from `core.bucket.init_variables` or
        a module's `init`.

    Returns:
      `variables` with these arrays in the same shapes and dtypes, and the same head.

    Raises:
      ValueError: a weight is missing, unknown to the model, or has another shape.
    """
    arrays = extractor_arrays(state_dict)
    expected = {}  # collection -> path -> array of the model
    for collection, tree in variables.items():
        if "base" in tree:
            expected[collection] = dict(_leaves(tree["base"]))
    _check_paths(arrays, {path for leaves in expected.values() for path in leaves})
    result = dict(variables)
    for collection, leaves in expected.items():
        base = {}
        for path, leaf in leaves.items():
            base[path] = _converted(path, *arrays[path], leaf)
        stacked = stack_blocks(unflatten_dict(base), variables[collection]["base"])
        result[collection] = variables[collection] | {"base": stacked}
    return result


def _check_paths(arrays: dict[Path, tuple[str, np.ndarray]], expected: set[Path]) -> None:
    """Rejects a state dict with arrays that the model lacks, or without some that it has."""
    if unknown := sorted(arrays.keys() - expected):
        key, _ = arrays[unknown[0]]
        raise ValueError(
            f"the state dict has {key}, for which the model has no {_joined(unknown[0])}"
        )
    if missing := sorted(expected - arrays.keys()):
        raise ValueError(f"the state dict has nothing for the model's {_joined(missing[0])}")


def state_dict_of_torchvision(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the extractor's part of torchvision's `state_dict()`.

    `variables_from_torchvision` takes it back.

    Args:
      variables: {"params", "stats"} of a model, see `variables_from_torchvision`.
    """
    arrays = {}
    for tree in variables.values():
        for path, leaf in _leaves(tree.get("base", {})):
            key, leaf = _key(path), np.asarray(leaf)
            if path[-1] == "kernel":
                leaf = leaf.transpose(-1, -2, *range(leaf.ndim - 2))
            arrays[key] = leaf
            if path[-1] == "mean":  # torch also counts batches
                arrays[key.removesuffix("running_mean") + "num_batches_tracked"] = np.array(0)
    return arrays


def extractor_arrays(state_dict: Mapping[str, np.ndarray]) -> dict[Path, tuple[str, np.ndarray]]:
    """Returns an extractor's arrays by their path in this library's models.

    Args:
      state_dict: a map from names, torchvision's or this library's, to arrays.

    Returns:
      path below "base" -> (name in the state dict, array).
    """
    if has_flax_names(state_dict):
        return _by_flax_names(state_dict)
    arrays = {}
    for key, value in state_dict.items():
        is_classifier = key.split(".")[0] in CLASSIFIERS
        if not is_classifier and not key.endswith("num_batches_tracked"):
            arrays[_path(key, value.ndim)] = key, value
    return arrays


def has_flax_names(state_dict: Mapping[str, np.ndarray]) -> bool:
    """Returns whether arrays have this library's names rather than torchvision's."""
    return any(key.startswith(FLAX_PREFIX) for key in state_dict)


def _by_flax_names(state_dict: Mapping[str, np.ndarray]) -> dict[Path, tuple[str, np.ndarray]]:
    arrays = {}
    for collection in ("params", "stats"):
        tree = {}
        for key, value in state_dict.items():
            if key.startswith(f"{collection}/base/"):
                tree[tuple(key.split("/")[2:])] = value
        for path, value in _leaves(unflatten_dict(tree)):
            arrays[path] = _joined(path), value
    return arrays


def _leaves(tree: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yields the path and array of every leaf, with stacked blocks separated."""
    yield from flatten_dict(unstack_blocks(tree)).items()


def _key(path: Path) -> str:
    key = ".".join((*path[:-1], _LEAVES_BACK.get(path[-1], path[-1])))
    for pattern, replacement in _RENAMES_BACK:
        key = re.sub(pattern, replacement, key)
    return key


def _path(key: str, ndim: int) -> Path:
    for pattern, replacement in _RENAMES:
        key = re.sub(pattern, replacement, key)
    *modules, leaf = key.split(".")
    if leaf == "weight":
        leaf = "kernel" if ndim > 1 else "scale"
    return (*modules, _LEAVES.get(leaf, leaf))


def kernel_of(weight: np.ndarray) -> np.ndarray:
    """Converts a torch weight, [outputs, inputs, *size], to flax's [*size, inputs, outputs]."""
    return weight.transpose(*range(2, weight.ndim), 1, 0)


def _converted(path: Path, key: str, value: np.ndarray, leaf: jnp.ndarray) -> jnp.ndarray:
    # arrays with this library's names already have flax's layout
    is_torchs = path[-1] == "kernel" and key != _joined(path)
    array = kernel_of(value) if is_torchs else value
    if array.shape != leaf.shape:
        transposed = f", which is {array.shape} in flax's layout" if array is not value else ""
        raise ValueError(
            f"the state dict's {key} has shape {value.shape}{transposed}, but the model's "
            f"{_joined(path)} has {leaf.shape}"
        )
    if np.iscomplexobj(array):
        raise ValueError(f"the state dict's {key} is {array.dtype}; weights are real numbers")
    return jnp.asarray(array, leaf.dtype)


def _joined(path: Path) -> str:
    return "/".join(path)

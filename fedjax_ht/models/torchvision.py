"""Weights of torchvision's models in this library's and back: a state dict's names say where its
arrays belong.

Dots between a name and a number become underscores: "layer1.0.conv1.weight" is
`layer1_0/conv1/kernel`, "features.3.conv.0.0.weight" is `features_3/conv_0_0/kernel`. A
transformer's `encoder` has no level of its own here: "encoder.layers.encoder_layer_0.ln_1.weight"
is `layers_0/ln_1/scale`. What has this library's own names, "params/base/conv1/kernel", has flax's
layouts, too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.models.stacking import stack_blocks, unstack_blocks

CLASSIFIERS = ("fc", "classifier", "heads", "aux1", "aux2")
_RENAMES = (
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
OWN = "params/base/"  # what names begin with that are this library's own
Path = tuple[str, ...]


def variables_from_torchvision(
    state_dict: Mapping[str, np.ndarray], variables: dict[str, Any]
) -> dict[str, Any]:
    """`variables` with the extractor's weights and running statistics taken from a torchvision
    model's state dict.

    Serves the ResNets, GoogLeNet, MobileNetV2 and the vision transformers, their blocks stacked or
    not. Classifiers and auxiliary classifiers are passed over; the head stays as it is. (Images for
    torchvision's pretrained GoogLeNet are normalised with mean and standard deviation 0.5: there
    the model itself brings them from ImageNet's to these.)

    Args:
      state_dict: torchvision's names -> arrays, see `data.files.torch_files.load_state_dict`.
      variables: of the same architecture, as `core.federation.init_variables` or a module's `init`
        makes them.

    Returns:
      The same tree; arrays keep their shapes and dtypes.

    Raises:
      ValueError: a weight is missing, unknown to the model, or of another shape.
    """
    given = extractor_arrays(state_dict)
    wanted = {
        collection: dict(_leaves(tree["base"]))
        for collection, tree in variables.items()
        if "base" in tree
    }
    paths = {path for leaves in wanted.values() for path in leaves}
    if unknown := sorted(given.keys() - paths):
        raise ValueError(
            f"the state dict has {given[unknown[0]][0]}, for which the model has no "
            f"{_joined(unknown[0])}"
        )
    if missing := sorted(paths - given.keys()):
        raise ValueError(f"the state dict has nothing for the model's {_joined(missing[0])}")
    result = dict(variables)
    for collection, leaves in wanted.items():
        base = unflatten_dict(
            {path: _converted(path, *given[path], leaf) for path, leaf in leaves.items()}
        )
        result[collection] = variables[collection] | {
            "base": stack_blocks(base, variables[collection]["base"])
        }
    return result


def state_dict_of_torchvision(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """The extractor's part of what torchvision's `state_dict()` has: `variables_from_torchvision`
    takes it back."""
    arrays = {}
    for tree in variables.values():
        for path, leaf in _leaves(tree.get("base", {})):
            key, leaf = _key(path), np.asarray(leaf)
            if path[-1] == "kernel":
                leaf = leaf.transpose((3, 2, 0, 1) if leaf.ndim == 4 else (1, 0))
            arrays[key] = leaf
            if path[-1] == "mean":
                arrays[key.removesuffix("running_mean") + "num_batches_tracked"] = np.array(0)
    return arrays


def extractor_arrays(state_dict: Mapping[str, np.ndarray]) -> dict[Path, tuple[str, np.ndarray]]:
    """The extractor's arrays by their place here, their names in the state dict beside them."""
    if any(key.startswith(OWN) for key in state_dict):
        parts = (
            {k: v for k, v in state_dict.items() if k.startswith(f"{c}/base/")}
            for c in ("params", "stats")
        )
        trees = (
            unflatten_dict({tuple(k.split("/")[2:]): v for k, v in part.items()}) for part in parts
        )
        return {path: (_joined(path), value) for tree in trees for path, value in _leaves(tree)}
    return {
        _path(key, value.ndim): (key, value)
        for key, value in state_dict.items()
        if key.split(".")[0] not in CLASSIFIERS and not key.endswith("num_batches_tracked")
    }


def _leaves(tree: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Of the blocks one by one."""
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


def in_flax_layout(path: Path, key: str, value: np.ndarray) -> np.ndarray:
    """The last axis of a kernel is its output."""
    if path[-1] != "kernel" or key == _joined(path) or value.ndim not in (2, 4):
        return value
    return value.transpose((2, 3, 1, 0) if value.ndim == 4 else (1, 0))


def _converted(path: Path, key: str, value: np.ndarray, leaf: jnp.ndarray) -> jnp.ndarray:
    array = in_flax_layout(path, key, value)
    if array.shape != leaf.shape:
        there = f", which is {array.shape} in flax's layout," if array is not value else ","
        raise ValueError(
            f"the state dict's {key} has shape {value.shape}{there} but the model's "
            f"{_joined(path)} has {leaf.shape}"
        )
    return jnp.asarray(array, leaf.dtype)


def _joined(path: Path) -> str:
    return "/".join(path)

"""Weights of torchvision's models in this library's: a state dict's names say where its arrays belong.

Dots between a name and a number become underscores: "layer1.0.conv1.weight" is `layer1_0/conv1/kernel`,
"features.3.conv.0.0.weight" is `features_3/conv_0_0/kernel`. A transformer's `encoder` has no level of its own here:
"encoder.layers.encoder_layer_0.ln_1.weight" is `layers_0/ln_1/scale`.
"""

import re
from collections.abc import Mapping
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
_LEAVES = {"running_mean": "mean", "running_var": "var"}


def variables_from_torchvision(state_dict: Mapping[str, np.ndarray], variables: dict[str, Any]) -> dict[str, Any]:
    """`variables` with the extractor's weights and running statistics taken from a torchvision model's state dict.

    Serves the ResNets, GoogLeNet, MobileNetV2 and the vision transformers, their blocks stacked or not. Classifiers and
    auxiliary classifiers are passed over; the head stays as it is. (Images for torchvision's pretrained GoogLeNet are
    normalised with mean and standard deviation 0.5: there the model itself brings them from ImageNet's to these.)

    Args:
      state_dict: torchvision's names -> arrays, see `io.torch_files.load_state_dict`.
      variables: of the same architecture, as `core.federation.init_variables` or a module's `init` makes them.

    Returns:
      The same tree; arrays keep their shapes and dtypes.

    Raises:
      ValueError: a weight is missing, unknown to the model, or of another shape.
    """
    given = {}
    for key, value in state_dict.items():
        if key.split(".")[0] not in CLASSIFIERS and not key.endswith("num_batches_tracked"):
            given[_path(key, value.ndim)] = key, value
    wanted = {
        collection: flatten_dict(unstack_blocks(tree["base"]))
        for collection, tree in variables.items()
        if "base" in tree
    }
    paths = {path for leaves in wanted.values() for path in leaves}
    if unknown := sorted(given.keys() - paths):
        raise ValueError(f"the state dict has {given[unknown[0]][0]}, for which the model has no {_joined(unknown[0])}")
    if missing := sorted(paths - given.keys()):
        raise ValueError(f"the state dict has nothing for the model's {_joined(missing[0])}")
    result = dict(variables)
    for collection, leaves in wanted.items():
        base = unflatten_dict({path: _converted(path, *given[path], leaf) for path, leaf in leaves.items()})
        result[collection] = variables[collection] | {"base": stack_blocks(base, variables[collection]["base"])}
    return result


def _path(key: str, ndim: int) -> tuple[str, ...]:
    for pattern, replacement in _RENAMES:
        key = re.sub(pattern, replacement, key)
    *modules, leaf = key.split(".")
    if leaf == "weight":
        leaf = "kernel" if ndim > 1 else "scale"
    return (*modules, _LEAVES.get(leaf, leaf))


def _converted(path: tuple[str, ...], key: str, value: np.ndarray, leaf: jnp.ndarray) -> jnp.ndarray:
    """`value` in flax's layout: the last axis of a kernel is its output."""
    array = value
    if path[-1] == "kernel":
        array = value.transpose((2, 3, 1, 0) if value.ndim == 4 else (1, 0))
    if array.shape != leaf.shape:
        raise ValueError(
            f"the state dict's {key} has shape {value.shape}, which is {array.shape} in flax's layout, "
            f"but the model's {_joined(path)} has {leaf.shape}"
        )
    return jnp.asarray(array, leaf.dtype)


def _joined(path: tuple[str, ...]) -> str:
    return "/".join(path)

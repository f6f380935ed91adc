"""Arrays of a file of Hugging Face's by the names that this library's modules have."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ht.lab.weights.torchvision import FLAX_PREFIX, kernel_of
from fedjax_ht.models.stacking import unstack_blocks

Arrays = Mapping[str, np.ndarray]
_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}


class Names(NamedTuple):
    """The names of a family's arrays.

    Attributes:
      layer: beginning of the names in layer i, such as "encoder.layer.{}.".
      modules: name of a module or array, in a layer or beside the layers -> its name in the file.
      prefix: beginning of all of an extractor's names where a file has more than the extractor.
      unused: pattern of names that an extractor has no use for, the prefix taken off.
      transposed: True for kernels [outputs, inputs], as torch's linear layers have; False for
        GPT-2's, [inputs, outputs].
      heads: names of linear heads on this library's features.
      tied: name of the embedding that serves as head of next tokens where a file has none.
    """

    layer: str
    modules: Mapping[str, str]
    prefix: str
    unused: str
    transposed: bool = True
    heads: tuple[str, ...] = ()
    tied: str = ""


def own_arrays(arrays: Arrays, names: Names, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Renames an extractor's arrays, and turns them into flax's layouts.

    Args:
      arrays: arrays by the file's names.
      names: the names of the extractor's family.
      like: the extractor's parameters, whose values are of no account.

    Returns:
      "params/base/..." -> array, of the shapes of `like` with blocks apart.

    Raises:
      ValueError: an array is missing, unknown, or of another shape. One line.
    """
    arrays = _unprefixed(arrays, names)
    renamed, used = {}, set()
    expected: dict[tuple[str, ...], Any] = flatten_dict(unstack_blocks(dict(like)))
    for path, leaf in expected.items():
        name = _name(path, names)
        if name not in arrays:
            raise ValueError(f"the file has no {name}")
        used.add(name)
        array = arrays[name]
        if path[-1] == "kernel" and names.transposed and array.ndim > 1:
            array = kernel_of(array)
        if array.shape != leaf.shape:
            raise ValueError(
                f"the file's {name} has shape {array.shape}, transposed as here; its config.json "
                f"says {leaf.shape}"
            )
        renamed[FLAX_PREFIX + "/".join(path)] = array
    unknown = [n for n in arrays if n not in used and not re.match(names.unused, n)]
    if unknown:
        raise ValueError(f"the file has {min(unknown)}, for which the model has no place")
    return renamed


def head_arrays(arrays: Arrays, names: Names) -> dict[str, np.ndarray]:
    """Returns the kernel and bias of a file's linear head on this library's features, {} without.

    A head without a bias has zeros. Where a decoder's file has no head, its embedding scores the
    next token.
    """
    candidates = [f"{head}.weight" for head in names.heads]
    if names.tied:
        candidates += [f"{names.prefix}{names.tied}.weight", f"{names.tied}.weight"]
    for name in candidates:
        weight = arrays.get(name)
        if weight is not None and weight.ndim == 2:
            bias = arrays.get(name.removesuffix("weight") + "bias")
            if bias is None:
                bias = np.zeros(len(weight), np.float32)
            return {"kernel": weight.T, "bias": bias}
    return {}


def _unprefixed(arrays: Arrays, names: Names) -> dict[str, np.ndarray]:
    """Takes the prefix off the names of a model with a head, whose other names are left out."""
    if not any(name.startswith(names.prefix) for name in arrays):
        return dict(arrays)
    kept = {}
    for name, array in arrays.items():
        if name.startswith(names.prefix):
            kept[name.removeprefix(names.prefix)] = array
    return kept


def _name(path: tuple[str, ...], names: Names) -> str:
    """Returns the file's name of an array, the prefix taken off."""
    layer = re.fullmatch(r"layers_(\d+)", path[0])
    begin = ""
    if layer:
        begin, path = names.layer.format(layer[1]), path[1:]
    if len(path) == 1:
        return begin + names.modules[path[0]]
    return f"{begin}{names.modules[path[0]]}.{_LEAVES[path[1]]}"

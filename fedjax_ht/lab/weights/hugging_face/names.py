"""Maps arrays of Hugging Face files to the names of this library's modules."""

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
      layer: prefix of the names in layer i, such as "encoder.layer.{}.".
      modules: name of a module or array, inside or outside the layers -> its name in the file.
      prefix: prefix of an extractor's names in a file that holds more than the extractor.
      unused: pattern of names, without the prefix, that an extractor ignores.
      transposed: True for kernels [outputs, inputs], as in torch's linear layers; False for
        GPT-2's, [inputs, outputs].
      heads: names of linear heads on this library's features.
      tied: name of the embedding that predicts next tokens if a file has no head.
    """

    layer: str
    modules: Mapping[str, str]
    prefix: str
    unused: str
    transposed: bool = True
    heads: tuple[str, ...] = ()
    tied: str = ""


def own_arrays(arrays: Arrays, names: Names, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Renames an extractor's arrays, and converts them to flax's layouts.

    Args:
      arrays: arrays by the file's names.
      names: the names of the extractor's family.
      like: the extractor's parameters, of which only the shapes matter.

    Returns:
      "params/base/..." -> array, with the shapes of `like`, blocks unstacked.

    Raises:
      ValueError: an array is missing, unknown, or has another shape. One line.
    """
    arrays = _unprefixed(arrays, names)
    renamed, used = {}, set()
    expected: dict[tuple[str, ...], Any] = flatten_dict(unstack_blocks(dict(like)))
    for path, leaf in expected.items():
        name = _name(path, names)
        if name not in arrays:
            raise ValueError(f"the file has no {name}")
        used.add(name)
        array, note = arrays[name], ""
        if path[-1] == "kernel" and names.transposed and array.ndim > 1:
            array, note = kernel_of(array), ", transposed as here"
        if array.shape != leaf.shape:
            raise ValueError(
                f"the file's {name} has shape {array.shape}{note}; its config.json says "
                f"{leaf.shape}"
            )
        renamed[FLAX_PREFIX + "/".join(path)] = array
    unknown = [n for n in arrays if n not in used and not re.match(names.unused, n)]
    if unknown:
        raise ValueError(f"the file has {min(unknown)}, which the model does not have")
    return renamed


def head_arrays(arrays: Arrays, names: Names) -> dict[str, np.ndarray]:
    """Returns kernel and bias of a file's linear head on this library's features; {} without one.

    A missing bias becomes zeros. If a decoder's file has no head, its embedding scores the next
    token.
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
    """Removes the prefix from names; drops names without it, such as a head's.

    Norms in older files have "gamma" and "beta".
    """
    arrays = {
        re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): array
        for name, array in arrays.items()
    }
    if not any(name.startswith(names.prefix) for name in arrays):
        return arrays
    kept = {}
    for name, array in arrays.items():
        if name.startswith(names.prefix):
            kept[name.removeprefix(names.prefix)] = array
    return kept


def _name(path: tuple[str, ...], names: Names) -> str:
    """Returns an array's name in the file, without the prefix."""
    layer = re.fullmatch(r"layers_(\d+)", path[0])
    begin = ""
    if layer:
        begin, path = names.layer.format(layer[1]), path[1:]
    if len(path) == 1:
        return begin + names.modules[path[0]]
    return f"{begin}{names.modules[path[0]]}.{_LEAVES[path[1]]}"

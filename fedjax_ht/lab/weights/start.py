"""Starts models from weights in files, `config.model.weights`."""

import contextlib
import dataclasses
import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_ht.check.names import unknown
from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.config.sections import ModelConfig
from fedjax_ht.lab.safe.torch_files import load_state_dict
from fedjax_ht.lab.weights.hugging_face.folder import weights_file
from fedjax_ht.lab.weights.layouts import (
    has_head,
    looks_like,
    own_names,
    size,
    starting_weights,
)
from fedjax_ht.models import model_group
from fedjax_ht.models.adapters import frozen_weights, is_adapted, unadapted
from fedjax_ht.models.registry import ARCHITECTURES, names_folder

Source = Path | str | Mapping[str, Any]
Weights = str | Mapping[str, str] | None  # config.model.weights


@checked
@with_standard_numerics
def with_weights(
    federation: Federation,
    weights: Path | str | Mapping[str, Source],
    head: bool | None = None,
) -> Federation:
    """Returns the federation with given initial weights: for every client, for an auxiliary model
    of the same architecture, and thus for a server that averages them.

    Args:
      federation: a federation of whole models.
      weights: name of an architecture -> a file, see `data.files.torch_files.load_state_dict`, or
        its arrays by name, or the variables {"params", "stats"} of a model of it; or one file for
        all. "resnet34" also serves "resnet34_head1" and so on,
        and "resnet34_r4" with adapters, which the weights are frozen under; "shared" the auxiliary
        model alone.
      head: True also loads heads if they compute the same here; else they stay random. None keeps
        them random, with a warning if the weights have any.

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
    # each file is read once, however many architectures it serves
    read = {str(s): load_state_dict(s) for s in sources.values() if not isinstance(s, Mapping)}

    unused = set()  # architectures whose weights have a head that is left out

    def starting(bucket: Bucket) -> PyTree:
        candidates = [name for name in names[bucket] if name in sources]
        if not candidates:
            return None
        name = candidates[0]  # the closest
        bucket, adapted = _plain(bucket), bucket
        arrays, origin = sources[name], f"the weights of {name}"
        if isinstance(arrays, Mapping):
            arrays = own_names(dict(arrays))  # of names, they stay as they are
        else:
            arrays, origin = read[str(arrays)], str(arrays)
        if head is None and has_head(arrays, bucket.module, _variables(bucket)):
            unused.add(name)
        fitted = _fitted(origin, arrays, bucket, federation, bool(head))
        return frozen_weights(fitted) if bucket is not adapted else fitted

    shared = dataclasses.replace(federation.shared, weights=starting(federation.shared))
    buckets = tuple(
        dataclasses.replace(bucket, weights=starting(bucket), shared=shared)
        for bucket in federation.buckets
    )
    if unused:
        warnings.warn(
            f"the weights of {', '.join(sorted(unused))} have heads, which stay random: "
            "give head=True to load them, or head=False to leave them out",
            stacklevel=4,  # behind the numerics and the check of arguments
        )
    return dataclasses.replace(federation, buckets=buckets)


def weights_of_model(model: ModelConfig) -> Weights:
    """Returns `config.model.weights`; where it is empty, the file in the folder of a group
    "hf:FOLDER", which is a trained model."""
    if model.weights is None and names_folder(model.group):
        return weights_file(model.group)
    return model.weights


def files(weights: Weights) -> list[str]:
    """Returns the files of `config.model.weights`, sorted."""
    if not weights:
        return []
    return [weights] if isinstance(weights, str) else sorted(set(weights.values()))


def missing(weights: Weights) -> list[str]:
    """Returns those of the files that do not exist."""
    return [file for file in files(weights) if not Path(file).is_file()]


def checksums(weights: Iterable[Weights]) -> dict[str, str]:
    """Returns the SHA-256 of every file that exists, by its name."""
    existing: set[str] = set()
    for each in weights:
        existing |= set(files(each)) - set(missing(each))
    sums = {}
    for file in sorted(existing):
        with open(file, "rb") as content:
            sums[file] = hashlib.file_digest(content, "sha256").hexdigest()
    return sums


def _names(bucket: Bucket, federation: Federation) -> list[str]:
    """Returns the names by which a bucket's weights may be given, the closest first."""
    name = bucket.name
    if name == "shared":  # a module of the group has its weights
        name = next((b.name for b in federation.buckets if b.module == bucket.module), name)
    without_rank = re.sub(r"_r\d+$", "", name) if is_adapted(bucket.module) else name
    names = [bucket.name, name, without_rank, re.sub(r"_head\d+$", "", without_rank)]
    if bucket is federation.shared:
        names.insert(0, "shared")
    return list(dict.fromkeys(names))


def _fitted(
    origin: str,
    arrays: Mapping[str, np.ndarray],
    bucket: Bucket,
    federation: Federation,
    head: bool,
) -> PyTree:
    """Returns the variables that a bucket's models start from; `origin` begins messages."""
    variables = _variables(bucket)
    try:
        return starting_weights(arrays, bucket.module, variables, head)
    except ValueError as error:
        num_given, num_needed = size(arrays, bucket.module, variables)
        architecture = looks_like(arrays, _known(federation))
        line = (
            f"{origin}: this looks like {architecture or 'no known architecture'} ({num_given} "
            f"tensors); the model is {bucket.name} ({num_needed})"
        )
        # what does not fit says more only where the architecture is not another one
        if architecture in (None, re.sub(r"_head\d+$", "", bucket.name)):
            line += f": {error}"
        raise ValueError(line) from error


def _known(federation: Federation) -> dict[str, PyTree]:
    """Returns the variables, as shapes, of all architectures."""
    bucket = federation.buckets[0]
    known = {}
    for each in federation.buckets:
        known[_names(each, federation)[-1]] = _variables(_plain(each))
    for group in ARCHITECTURES:
        with contextlib.suppress(ValueError, TypeError):  # it is not for images of this size
            for name, module in model_group(group, bucket.num_classes, bucket.input_shape).items():
                known.setdefault(name, _variables(dataclasses.replace(bucket, module=module)))
    return known


def _plain(bucket: Bucket) -> Bucket:
    """Returns the bucket of the same model without adapters, whose weights files have."""
    if not is_adapted(bucket.module):
        return bucket
    return dataclasses.replace(bucket, module=unadapted(bucket.module), freezes=False)


def _variables(bucket: Bucket) -> PyTree:
    return jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))

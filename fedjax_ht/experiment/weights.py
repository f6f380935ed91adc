"""Weights that models start from, out of files: `config.model.weights`."""

import contextlib
import dataclasses
import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import numpy as np

from fedjax_ht.core.federation import Bucket, Federation, PyTree, init_variables
from fedjax_ht.core.names import unknown
from fedjax_ht.data.files.torch_files import load_state_dict
from fedjax_ht.models import model_group
from fedjax_ht.models.registry import ARCHITECTURES
from fedjax_ht.models.weights import has_head, looks_like, size, starting_weights

Source = Path | str | Mapping[str, np.ndarray]


def with_weights(
    federation: Federation,
    weights: Path | str | Mapping[str, Source],
    head: bool | None = None,
) -> Federation:
    """The federation, its models starting from given weights: every client's, an auxiliary model's
    of the same architecture, and so a server's that averages them.

    Args:
      weights: name of an architecture -> a file, see `data.files.torch_files.load_state_dict`, or
        its arrays by name; or one file for all. "resnet34" also serves "resnet34_head1" and so on,
        "shared" the auxiliary model alone.
      head: also load heads, where they compute the same here; else they stay random. None leaves
        them so, too, and warns where the weights have any.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: the file is a .safetensors file, and that package is not installed.
      ValueError: there is no such architecture, or the weights are of another one. One line.
    """
    if federation.global_model is not None:
        raise ValueError("slices of one network take no weights; leave weights empty, or rates")
    names = {
        bucket: _names(bucket, federation) for bucket in (*federation.buckets, federation.shared)
    }
    known = sorted({name for own in names.values() for name in own})
    sources = dict(weights) if isinstance(weights, Mapping) else dict.fromkeys(known, weights)
    if others := sorted(set(sources) - set(known)):
        raise ValueError(f"weights: {unknown('architecture', others[0], known)}")
    read = {str(s): load_state_dict(s) for s in sources.values() if not isinstance(s, Mapping)}

    unused = []  # architectures whose weights have a head that is left out

    def given(bucket: Bucket) -> PyTree:
        name = next((name for name in names[bucket] if name in sources), None)
        if name is None:
            return None
        source, what = sources[name], f"the weights of {name}"
        if not isinstance(source, Mapping):
            source, what = read[str(source)], str(source)
        if head is None and has_head(source, bucket.module, _variables(bucket)):
            unused.append(name)
        return _fitted(what, source, bucket, federation, bool(head))

    shared = dataclasses.replace(federation.shared, weights=given(federation.shared))
    buckets = tuple(
        dataclasses.replace(b, weights=given(b), shared=shared) for b in federation.buckets
    )
    if unused:
        warnings.warn(
            f"the weights of {', '.join(sorted(set(unused)))} have heads, which stay random: "
            "give head=True to load them, or head=False to leave them out",
            stacklevel=2,
        )
    return dataclasses.replace(federation, buckets=buckets)


def files(weights: str | Mapping[str, str]) -> list[str]:
    """Those of `config.model.weights`."""
    return (
        sorted(set(weights[name] for name in weights))
        if not isinstance(weights, str)
        else [weights] * bool(weights)
    )


def missing(weights: str | Mapping[str, str]) -> list[str]:
    """Those of them that are not there."""
    return [file for file in files(weights) if not Path(file).is_file()]


def checksums(given: Iterable[str | Mapping[str, str]]) -> dict[str, str]:
    """The SHA-256 of every file that is there, by its name."""
    found = {}
    for file in sorted(
        {file for weights in given for file in set(files(weights)) - set(missing(weights))}
    ):
        with open(file, "rb") as content:
            found[file] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


def _names(bucket: Bucket, federation: Federation) -> list[str]:
    """By what names a bucket's weights may be given, the closest first."""
    name = bucket.name
    if name == "shared":  # a module of the group has its weights
        name = next((b.name for b in federation.buckets if b.module == bucket.module), name)
    names = [bucket.name, name, re.sub(r"_head\d+$", "", name)]
    return list(dict.fromkeys(["shared", *names] if bucket is federation.shared else names))


def _fitted(
    source: str,
    arrays: Mapping[str, np.ndarray],
    bucket: Bucket,
    federation: Federation,
    head: bool,
) -> PyTree:
    variables = _variables(bucket)
    try:
        return starting_weights(arrays, bucket.module, variables, head)
    except ValueError as error:
        there, here = size(arrays, bucket.module, variables)
        found = looks_like(arrays, _known(federation))
        words = f"{source}: this looks like {found or 'no known architecture'} ({there} tensors); "
        words += "the model is "
        own = re.sub(r"_head\d+$", "", bucket.name)
        told = "" if found and found != own else f": {error}"
        raise ValueError(f"{words}{bucket.name} ({here}){told}") from error


def _known(federation: Federation) -> dict[str, PyTree]:
    """The variables, as shapes, of all architectures."""
    bucket = federation.buckets[0]
    known = {b.name: _variables(b) for b in federation.buckets}
    for group in ARCHITECTURES:
        with contextlib.suppress(ValueError, TypeError):  # not for images of this size
            for name, module in model_group(group, bucket.num_classes, bucket.input_shape).items():
                known.setdefault(name, _variables(dataclasses.replace(bucket, module=module)))
    return known


def _variables(bucket: Bucket) -> PyTree:
    return jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))

"""Finds samples that occur in two sets, by content, e.g. test samples among training samples."""

import hashlib
import itertools
from collections.abc import Mapping

import jax
import numpy as np

from fedjax_ht.core.trees import PyTree

TOLD = 0.001
"""Share of copies in a set above which they are reported: many sets have a few."""
_FEW = 10  # test sets with fewer samples are toys, which may be copies
_CHUNK = 1 << 14  # samples per chunk


def same_samples(
    known_inputs: PyTree, known: np.ndarray, inputs: PyTree, asked: np.ndarray
) -> np.ndarray:
    """Returns which samples have the content of a known sample, bool [len(asked)].

    Args:
      known_inputs: the arrays of the known samples.
      known: indices of the known samples.
      inputs: the arrays of the samples, of the same form.
      asked: indices of the samples.
    """
    known_keys, keys = _keys(known_inputs, known), _keys(inputs, asked)
    same = np.isin(keys, known_keys)
    near = known[np.isin(known_keys, keys[same])]  # different samples may have equal keys
    contents = {_content(known_inputs, i) for i in near.tolist()}
    same[same] = [_content(inputs, i) in contents for i in asked[same].tolist()]
    return same


def _keys(inputs: PyTree, indices: np.ndarray) -> np.ndarray:
    """Returns a hash of each sample's middle row, uint64, without reading all of a large file."""
    keys, rng = np.zeros(len(indices), np.uint64), np.random.default_rng(0)
    for x in jax.tree.leaves(inputs):
        width = -(-x[:1, x.shape[1] // 2].nbytes // 8) if x.ndim > 2 else -(-x[:1].nbytes // 8)
        weights = rng.integers(1 << 63, size=width, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        for start in range(0, len(indices), _CHUNK):
            chunk = indices[start : start + _CHUNK]
            rows = x[chunk, x.shape[1] // 2] if x.ndim > 2 else x[chunk]
            content = np.ascontiguousarray(rows).view(np.uint8).reshape(len(chunk), -1)
            words = np.zeros((len(chunk), 8 * width), np.uint8)
            words[:, : content.shape[1]] = content
            keys[start : start + _CHUNK] += (words.view(np.uint64) * weights).sum(1)
    return keys


def _content(inputs: PyTree, i: int) -> bytes:
    content = hashlib.blake2b(digest_size=16)
    for x in jax.tree.leaves(inputs):
        content.update(np.ascontiguousarray(x[i]).tobytes())
    return content.digest()


def copied(
    dataset: str, inputs: PyTree, sets: Mapping[str, np.ndarray], labels: np.ndarray | None = None
) -> tuple[str, ...]:
    """Returns a warning for each two of the sets train, val and test that share samples.

    Args:
      dataset: name of the data set, for the error.
      inputs: its samples.
      sets: the indices of each set. Samples whose index is in two sets are shared on purpose.
      labels: its labels, for sets defined by the publisher or owner; None for random splits. These
        never raise an error, nor warn if samples repeat within the sets, as rows with few distinct
        values do.

    Raises:
      ValueError: all test samples are training samples, but not by chance. One line.
    """
    present = [key for key in ("train", "val", "test") if len(sets.get(key, ()))]
    lines = []
    for first, second in itertools.combinations(present, 2):
        known, asked = sets[first], np.setdiff1d(sets[second], sets[first])
        same = same_samples(inputs, known, inputs, asked)
        count, total = np.count_nonzero(same), len(sets[second])
        if not count or count < TOLD * total:
            continue
        is_varied = all(2 * len(np.unique(_keys(inputs, x))) > len(x) for x in (known, asked))
        if labels is None and not is_varied:
            continue
        is_whole = (first, second) == ("train", "test") and count == total >= _FEW
        if labels is not None and is_varied and is_whole:
            samples = inputs, labels
            if same_samples(samples, known, samples, asked).all():
                raise ValueError(
                    f"{dataset}: all {total:,} test samples are also training samples, so the "
                    "accuracy would be that of training; give other test samples"
                )
        lines.append(
            f"{count:,} of {total:,} {second} samples ({count / total:.1%}) are also {first} "
            "samples: scores on copies mean nothing; remove them from one of the sets"
        )
    return tuple(lines)

"""Finds samples that stand in two sets by their content, such as test samples that are training
samples, too."""

import hashlib
import itertools
from collections.abc import Mapping

import jax
import numpy as np

from fedjax_ht.core.trees import PyTree

TOLD = 0.001
"""Share of a set's samples from which on copies are told: many sets have a few."""
_FEW = 10  # test samples from which on their being copies is no toy
_CHUNK = 1 << 14  # samples that are looked at together


def same_samples(
    known_inputs: PyTree, known: np.ndarray, inputs: PyTree, asked: np.ndarray
) -> np.ndarray:
    """Returns which samples have the content of one of others, bool [len(asked)].

    Args:
      known_inputs: the arrays of the others.
      known: indices of the others.
      inputs: the arrays of the samples, of the same form.
      asked: indices of the samples.
    """
    known_keys, keys = _keys(known_inputs, known), _keys(inputs, asked)
    same = np.isin(keys, known_keys)
    near = known[np.isin(known_keys, keys[same])]  # equal keys may be of different samples
    contents = {_content(known_inputs, i) for i in near.tolist()}
    same[same] = [_content(inputs, i) in contents for i in asked[same].tolist()]
    return same


def _keys(inputs: PyTree, indices: np.ndarray) -> np.ndarray:
    """Returns a number of each sample, uint64, by its middle row: the pages of a large file beyond
    these are not read."""
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
    """Returns a line for each two of the sets train, val and test that share samples.

    Args:
      dataset: name of the data set, for the error.
      inputs: its samples.
      sets: the indices of each set. An index in two of them is a sample that is meant to be shared.
      labels: its labels, for sets of a publisher or of an owner; None for a split by chance, of
        which nothing is refused, nor told where samples repeat within the sets, as rows of a few
        values do.

    Raises:
      ValueError: all test samples are training samples, and chance has not made it so. One line.
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
                    f"{dataset}: all {total:,} test samples are training samples, too, so that the "
                    "accuracy would be that of training; give other samples to test on"
                )
        lines.append(
            f"{count:,} of {total:,} {second} samples ({count / total:.1%}) are {first} samples, "
            "too: copies, whose scores say nothing; take them out of one of the sets"
        )
    return tuple(lines)
